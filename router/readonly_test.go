//go:build unix

package router_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// TestReadOnlyTopology: an application that may read the published topology, and write none, takes over what others publish, and
// hands keys over. It is no fault that it can't publish, and it doesn't try over and over.
func TestReadOnlyTopology(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, 0)
	a, b := c.primaries["a"], c.primaries["b"]
	for _, s := range []*testserver.Server{a, b} {
		grant(t, s, strings.Fields("~sl:*:* ~sl:server %R~sl:topology +time +info +evalsha +eval +get +mget +set"))
	}
	one := router.Topology{Epoch: 1, Groups: c.topology.Groups[:1]}
	two := router.Topology{Epoch: 2, Groups: c.topology.Groups, Previous: &one}
	var events log
	r := dial(t, one, router.Config{Redis: app(), OnEvent: events.add, Backend: redisbackend.Config{Timeout: 2 * time.Second}})
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(10)}}
	after := dial(t, router.Topology{Groups: c.topology.Groups}, router.Config{Redis: app()})
	key := keyOf(after, "b", 0)
	takeN(t, r, key, policy, 4)

	operator, err := redisbackend.New(a.Client(), redisbackend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, operator, two)
	late := dial(t, one, router.Config{Redis: app(), OnEvent: events.add, Backend: redisbackend.Config{Timeout: 2 * time.Second}})
	await(t, "one that starts takes it over", func() bool { return late.Owner(key) == "b" })
	if n := takeN(t, late, key, policy, 10); n != 6 { // seals at a, adopts at b
		t.Errorf("%d are admitted, and 6 were left", n)
	}
	if n := takeN(t, r, key, policy, 1); n != 0 { // meets the seal, and finds the topology there
		t.Errorf("%d are admitted, and none was left", n)
	}
	for _, e := range events.all() {
		if e.Kind == router.Misconfigured || e.Kind == router.TopologyRejected {
			t.Error(e)
		}
	}
	if n := b.Client().Exists(t.Context(), "sl:topology").Val(); n != 0 {
		t.Error("the application has published a topology")
	}
	refused := 0
	for _, entry := range b.Client().ACLLog(t.Context(), 100).Val() {
		refused += int(entry.Count)
	}
	if refused > 4 { // each process tries once for each topology at a server
		t.Errorf("%d commands were refused at a server", refused)
	}
	client := a.Client()
	conn := client.Conn()
	defer conn.Close()
	if err := conn.AuthACL(t.Context(), "app", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Set(t.Context(), "sl:topology", "3 d\n{}", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
		t.Errorf("the application may write the topology: %v", err)
	}
}
