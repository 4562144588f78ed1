package router_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

func ExampleOpen() {
	topology, err := router.LoadTopology("groups.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	counts, err := router.Open(topology, router.Config{
		Redis: &redis.Options{
			Username:  "limiter",
			Password:  os.Getenv("REDIS_PASSWORD"),
			TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		},
		OnEvent: func(e router.Event) { slog.Warn("rate limits", "event", e.String()) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer counts.Close()
}

// Any backends can be groups. A key belongs to one of them.
func ExampleNew() {
	var groups []router.NodeGroup
	for _, name := range []string{"eu-1", "eu-2", "eu-3"} {
		primary, _ := memory.New(memory.Config{})
		groups = append(groups, router.NodeGroup{Name: name, Primary: primary})
	}
	counts, err := router.New(groups, router.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer counts.Close()

	policy := limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(2)}}
	for _, key := range []string{"alice", "carol", "alice", "alice"} {
		result, err := counts.Take(context.Background(), backend.Request{Key: key, Policy: &policy, Cost: 1})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(key, counts.Owner(key), result.Allowed, result.Source, result.Guarantee)
	}
	// Output:
	// alice eu-2 true primary exact
	// carol eu-3 true primary exact
	// alice eu-2 true primary exact
	// alice eu-2 false primary exact
}

// A topology is refused with everything that is wrong with it.
func ExampleParseTopology() {
	_, err := router.ParseTopology([]byte(`{"epoch": 1, "groups": [
		{"name": "eu-1", "primary": "10.0.0.1:6379", "replicas": ["10.0.0.1:6379"]},
		{"name": "eu-1", "primary": "10.0.0.300:6379"}
	]}`))
	fmt.Println(err)
	// Output:
	// router: groups[0].replicas[0] = "10.0.0.1:6379": must be unique: groups[0].primary is the same
	// router: groups[1].name = "eu-1": must be unique: groups[0].name is the same
	// router: groups[1].primary = "10.0.0.300:6379": must be host:port with a port from 1 to 65535
}

// A new topology is put in force while calls go on. Keys that change their owner take their counts along. Here nodes are
// memories; by default they are Redis servers at these addresses.
func ExampleRouter_Update() {
	cfg := router.Config{Node: func(string) (backend.Backend, error) { return memory.New(memory.Config{}) }}
	two := router.Topology{Epoch: 1, Groups: []router.Group{
		{Name: "eu-1", Primary: "10.0.0.1:6379"}, {Name: "eu-2", Primary: "10.0.1.1:6379"},
	}}
	counts, err := router.Open(two, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer counts.Close()
	policy := limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(10)}}
	take := func(key string) {
		result, err := counts.Take(context.Background(), backend.Request{Key: key, Policy: &policy, Cost: 1})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(key, "at", counts.Owner(key), "remaining", result.Binding().Remaining, result.Guarantee)
	}
	take("carol")

	three := router.Topology{Epoch: 2, Previous: &two}
	three.Groups = append(append(three.Groups, two.Groups...), router.Group{Name: "eu-3", Primary: "10.0.2.1:6379"})
	if err := counts.Update(three); err != nil {
		fmt.Println(err)
		return
	}
	take("carol")
	fmt.Println(counts.Update(two))
	// Output:
	// carol at eu-2 remaining 9 exact
	// carol at eu-3 remaining 8 exact
	// router: epoch = 1: must be above 2, which is in force: to go back, publish it as epoch 3 with epoch 2 as its "previous": a newer topology is in force
}

// Nodes is the state of each node, for people and dashboards.
func ExampleRouter_Nodes() {
	primary, _ := memory.New(memory.Config{})
	counts, err := router.New([]router.NodeGroup{{Name: "eu-1", Primary: primary}}, router.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer counts.Close()
	for _, n := range counts.Nodes() {
		fmt.Println(n.Group, n.Node, n.Role, "breaker", n.Breaker)
	}
	// Output: eu-1 primary primary breaker closed
}
