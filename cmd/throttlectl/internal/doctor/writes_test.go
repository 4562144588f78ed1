//go:build unix

package doctor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
)

// A server that refuses writes now comes first, whatever it is that it refuses them for; and of many alike one finding tells.
func TestDoctorFindsRefusedWrites(t *testing.T) {
	t.Parallel()
	set := func(s *testserver.Server, pairs ...string) {
		t.Helper()
		for i := 0; i < len(pairs); i += 2 {
			if err := s.Client().ConfigSet(t.Context(), pairs[i], pairs[i+1]).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	full, alsoFull := testserver.Redis(t), testserver.Redis(t)
	for _, s := range []*testserver.Server{full, alsoFull} {
		set(s, "maxmemory", "1", "maxmemory-policy", "noeviction")
	}
	deserted := testserver.Redis(t)
	set(deserted, "min-replicas-to-write", "1")
	primary := testserver.Redis(t)
	replica := testserver.Replica(t, primary)
	unsaved := testserver.Redis(t)
	set(unsaved, "save", "3600 1", "stop-writes-on-bgsave-error", "yes")
	dir := filepath.Join(unsaved.Client().ConfigGet(t.Context(), "dir").Val()["dir"])
	// A folder in place of the file: the save fails, for root as well.
	if err := os.Mkdir(filepath.Join(dir, unsaved.Client().ConfigGet(t.Context(), "dbfilename").Val()["dbfilename"]), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unsaved.Client().Set(t.Context(), "x", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := unsaved.Client().BgSave(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	healthy := testserver.Redis(t)
	topology := fixture.GroupsOf(1, full, alsoFull, deserted, replica, unsaved, healthy)
	args := []string{"--topology", fixture.TopologyFile(t, topology), "--fail-on", "critical"}
	awaitFinding(t, "critical", "writes", unsaved.Addr, "(MISCONF)", args...)
	got := diagnosed(t, args...)
	for server, code := range map[*testserver.Server]string{full: "OOM", alsoFull: "OOM", deserted: "NOREPLICAS", replica: "READONLY", unsaved: "MISCONF"} {
		if !got.Has("critical", "writes", server.Addr, "REFUSES ALL WRITES NOW ("+code+")") {
			t.Errorf("%s: %+v", code, got)
		}
	}
	if got.Has("critical", "writes", healthy.Addr, "") {
		t.Errorf("%+v", got)
	}
	for i, f := range got.Findings[:4] { // before all others that are critical
		if f.Check != "writes" {
			t.Errorf("finding %d: %+v", i, f)
		}
		if strings.Contains(f.What, "OOM") && len(f.Where) != 2 {
			t.Errorf("OOM is told for %+v, want both servers once", f.Where)
		}
	}
	printed := clitest.Execute(t, append([]string{"doctor"}, args...)...)
	if n := strings.Count(printed.Stdout, "(OOM)"); n != 1 || !strings.Contains(printed.Stderr, "found: 5 servers refuse writes now, ") {
		t.Errorf("OOM is told %d times: %+v", n, printed)
	}
	for _, s := range []*testserver.Server{deserted, replica, unsaved, healthy} {
		if keys := s.Client().Keys(t.Context(), "sl:*").Val(); len(keys) > 0 {
			t.Errorf("doctor left %v", keys)
		}
	}
	set(full, "maxmemory", "0")
	set(alsoFull, "maxmemory", "0")
	set(deserted, "min-replicas-to-write", "0")
	set(unsaved, "stop-writes-on-bgsave-error", "no")
	if got := diagnosed(t, args...); got.Has("critical", "writes", full.Addr, "") || got.Has("critical", "writes", deserted.Addr, "") ||
		got.Has("critical", "writes", unsaved.Addr, "") || !got.Has("critical", "writes", replica.Addr, "") {
		t.Errorf("%+v", got)
	}
}

// Only a node that has the slot of a name says whether it takes writes.
func TestDoctorFindsRefusedWritesInCluster(t *testing.T) {
	t.Parallel()
	shards := testserver.Cluster(t, 3, 0)
	file := fixture.TopologyFile(t, router.Topology{Epoch: 1, Groups: []router.Group{{Name: "sharded", Cluster: []string{shards[0].Primary.Addr}}}})
	full := shards[1].Primary
	if err := full.Client().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	got := diagnosed(t, "--topology", file, "--fail-on", "critical")
	for i, shard := range shards {
		if refuses := got.Has("critical", "writes", shard.Primary.Addr, "(OOM)"); refuses != (i == 1) {
			t.Errorf("shard %d refuses writes: %v; %+v", i, refuses, got)
		}
	}
}
