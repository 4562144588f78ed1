package otelthrottle_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

// A service tells its global providers of decisions, leases, nodes and their changes of state. It would open its router by
// a topology; here one counts in memory.
func Example() {
	observer, err := otelthrottle.New(otelthrottle.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer observer.Close()

	mem, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	groups, err := router.New([]router.NodeGroup{{Name: "eu-1", Weight: 1, Primary: mem}}, router.Config{
		OnEvent: func(e router.Event) {
			observer.EmitNode(otelthrottle.NodeEvent{
				Time: e.Time, Kind: e.Kind.String(), Group: e.Group, Node: e.Node, From: e.From, To: e.To, Err: e.Err, Lost: e.Lost,
			})
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ls, err := lease.New(groups, lease.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer ls.Close() // and what it holds
	if err := observer.WatchLease("limits", ls); err != nil {
		log.Fatal(err)
	}
	err = observer.WatchNodes(func() []otelthrottle.Node {
		var nodes []otelthrottle.Node
		for _, n := range groups.Nodes() {
			nodes = append(nodes, otelthrottle.Node{
				Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Age: n.Age,
				RTT: n.Heartbeat.RTT, Ahead: n.Heartbeat.Ahead,
			})
		}
		return nodes
	})
	if err != nil {
		log.Fatal(err)
	}

	err = observer.WatchRouter("limits", func() otelthrottle.RouterStats { return otelthrottle.RouterStats(groups.Stats()) })
	if err != nil {
		log.Fatal(err)
	}

	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(2)}}, Backend: ls, Observer: observer,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	decision, err := t.Allow(context.Background(), "user:42")
	fmt.Println(decision.Allowed, decision.Remaining, decision.Source, err)
	// Output: true 1 primary <nil>
}
