package redispipe

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
)

// TestShardsDropped: a shard keeps its connections while it is called, and idle ones are dropped when another one comes.
func TestShardsDropped(t *testing.T) {
	slots := []redis.ClusterSlot{
		{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}},
		{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:2"}}},
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1, ContextTimeoutEnabled: true, ClusterStateReloadInterval: time.Nanosecond,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil },
	})
	defer client.Close()
	c := NewCluster(client, Config{
		Guard: callguard.Config{Timeout: time.Minute}, Pipelines: 3, Queue: 1, Now: func() int64 { return 0 },
	}).(*cluster)
	defer c.Close()
	find := func(key string, after time.Duration) *pipeliner {
		t.Helper()
		l, _, err := c.find(t.Context(), c.guard.Deadline().Add(after), key)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	const low, high = "b", "a" // of slots 3300 and 15495
	first, second := find(low, 0), find(high, 0)
	if first == second || first != find(low, ShardIdle/2) || len(first.free) != 3 || len(first.all) <= 3 {
		t.Errorf("%d connections of %d are open, and shared: %t", len(first.free), len(first.all), first == second)
	}
	node, err := client.MasterForKey(t.Context(), high)
	if err != nil {
		t.Fatal(err)
	}
	delete(c.shards, node) // as if it were new
	if find(high, ShardIdle); len(c.shards) != 2 {
		t.Errorf("%d shards, want the one that was called lately, too", len(c.shards))
	}
	delete(c.shards, node)
	if find(high, 2*ShardIdle); len(c.shards) != 1 {
		t.Errorf("%d shards, want only the one that was called lately", len(c.shards))
	}
}

// TestAskedDropped: a node that takes over slots keeps its client while it is called, and idle ones are closed when another
// comes: over months, every node of a cluster takes over slots, and where addresses come from a pool, many more.
func TestAskedDropped(t *testing.T) {
	a := askRedirector{options: new(redis.ClusterOptions)}
	defer a.close()
	now := time.Now()
	first := a.client("127.0.0.1:1", now)
	if a.client("127.0.0.1:2", now); a.client("127.0.0.1:1", now.Add(ShardIdle)) != first || len(a.targets) != 2 {
		t.Errorf("%d clients, want two", len(a.targets))
	}
	if a.client("127.0.0.1:3", now.Add(2*ShardIdle)); len(a.targets) != 2 || a.client("127.0.0.1:1", now.Add(2*ShardIdle)) != first {
		t.Errorf("%d clients, want the new one, and the one that was called lately", len(a.targets))
	}
	if a.client("127.0.0.1:4", now.Add(9*ShardIdle)); len(a.targets) != 1 {
		t.Errorf("%d clients, want the new one only", len(a.targets))
	}
	if err := first.Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("a client that was dropped says %v, want that it is closed", err)
	}
}
