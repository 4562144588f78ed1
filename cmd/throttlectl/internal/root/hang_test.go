//go:build unix

package root_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
)

// A host that hangs takes its own time only: operators come when one does. A key of a Redis Cluster is the exception: the
// client asks its nodes one after the other which of them it should ask.
func TestHangingHosts(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	sentinels := testserver.Sentinels(t, "main", server, 0)
	shards := testserver.Cluster(t, 1, 0)
	topology := router.Topology{Epoch: 1, Groups: []router.Group{
		{Name: "alone", Primary: server.Addr},
		{Name: "hangs", Primary: fixture.Hanging(t)},
		{Name: "lost", Sentinels: []string{fixture.Hanging(t)}, Master: "main"},
		{Name: "lost-too", Sentinels: []string{fixture.Hanging(t)}, Master: "main"},
		{Name: "sharded", Cluster: []string{fixture.Hanging(t), shards[0].Primary.Addr}},
		{Name: "watched", Sentinels: []string{fixture.Hanging(t), sentinels[0].Addr}, Master: "main"},
	}}
	file := fixture.TopologyFile(t, topology)
	healthy := []string{"alone", "sharded", "watched"}
	asked := make(map[string]bool)
	for _, key := range strings.Split("abcdefghijklmnopqrstuvwxyz0123456789", "") {
		r, err := cluster.TopologyRing(topology)
		if err != nil {
			t.Fatal(err)
		}
		group := r.Owner(key)
		if asked[group] || !slices.Contains(healthy, group) || group == "sharded" {
			continue
		}
		asked[group] = true
		if got := clitest.Execute(t, "peek", key, "--limit", "100/1m", "--topology", file, "--timeout", "500ms"); !strings.Contains(got.Stderr, "nothing is stored") {
			t.Errorf("%s: %+v", group, got)
		}
	}
	if len(asked) < len(healthy)-1 {
		t.Errorf("asked %v only", asked)
	}
	for _, command := range [][]string{{"topology", "check", file}, {"doctor", "--topology", file}} {
		got := clitest.Execute(t, append(command, "--timeout", "500ms")...)
		for line := range strings.Lines(got.Stdout) {
			fields := strings.Fields(line)
			if len(fields) > 3 && slices.Contains(healthy, fields[0]) && fields[2] == "primary" && fields[3] != "yes" {
				t.Errorf("%v: %s", command[0], line)
			}
		}
		for _, group := range healthy {
			if !strings.Contains(got.Stdout, "\n"+group+" ") || strings.Contains(got.Stdout, "CRITICAL cluster") {
				t.Errorf("%v: no %s:\n%s", command[0], group, got.Stdout)
			}
		}
	}
}
