package router_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
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
	var groups []router.Nodes
	for _, name := range []string{"eu-1", "eu-2", "eu-3"} {
		primary, _ := backend.NewMemory(backend.MemoryConfig{})
		groups = append(groups, router.Nodes{Name: name, Primary: primary})
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
