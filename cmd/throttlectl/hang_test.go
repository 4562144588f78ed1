//go:build unix

package main

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
)

// hanging is the address of a host that takes connections and says nothing.
func hanging(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// A host that hangs takes its own time only: operators come when one does. A key of a Redis Cluster is the exception: the
// client asks its nodes one after the other which of them it should ask.
func TestHangingHosts(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	sentinels := testserver.Sentinels(t, "main", server, 0)
	shards := testserver.Cluster(t, 1, 0)
	topology := router.Topology{Epoch: 1, Groups: []router.Group{
		{Name: "alone", Primary: server.Addr},
		{Name: "hangs", Primary: hanging(t)},
		{Name: "lost", Sentinels: []string{hanging(t)}, Master: "main"},
		{Name: "lost-too", Sentinels: []string{hanging(t)}, Master: "main"},
		{Name: "sharded", Cluster: []string{hanging(t), shards[0].Primary.Addr}},
		{Name: "watched", Sentinels: []string{hanging(t), sentinels[0].Addr}, Master: "main"},
	}}
	file := topologyFile(t, topology)
	healthy := []string{"alone", "sharded", "watched"}
	asked := make(map[string]bool)
	for _, key := range strings.Split("abcdefghijklmnopqrstuvwxyz0123456789", "") {
		all, err := owners(topology, []string{key})
		if err != nil {
			t.Fatal(err)
		}
		group := all[0].Group
		if asked[group] || !slices.Contains(healthy, group) || group == "sharded" {
			continue
		}
		asked[group] = true
		if got := execute(t, "peek", key, "--limit", "100/1m", "--topology", file, "--timeout", "500ms"); !strings.Contains(got.stderr, "nothing is stored") {
			t.Errorf("%s: %+v", group, got)
		}
	}
	if len(asked) < len(healthy)-1 {
		t.Errorf("asked %v only", asked)
	}
	for _, command := range [][]string{{"topology", "check", file}, {"doctor", "--topology", file}} {
		got := execute(t, append(command, "--timeout", "500ms")...)
		for line := range strings.Lines(got.stdout) {
			fields := strings.Fields(line)
			if len(fields) > 3 && slices.Contains(healthy, fields[0]) && fields[2] == rolePrimary && fields[3] != "yes" {
				t.Errorf("%v: %s", command[0], line)
			}
		}
		for _, group := range healthy {
			if !strings.Contains(got.stdout, "\n"+group+" ") || strings.Contains(got.stdout, "CRITICAL cluster") {
				t.Errorf("%v: no %s:\n%s", command[0], group, got.stdout)
			}
		}
	}
}
