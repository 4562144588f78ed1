//go:build unix

package redisbackend_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
)

// keysOf returns keys that a node of newCluster has.
func keysOf(t *testing.T, nodes [2]*testserver.Server, node, n int) []string {
	t.Helper()
	var keys []string
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("k", i)
		if int(nodes[0].Client().ClusterKeySlot(t.Context(), backendtesting.Stored(key)).Val())/8192 == node {
			keys = append(keys, key)
		}
	}
	return keys
}

// TestRedisClusterFrozenShard: a shard that hangs holds up its own keys only. Those of another one are counted, once each, and
// as fast as before; and the cluster is still there.
func TestRedisClusterFrozenShard(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t)
	for _, node := range nodes {
		do(t, node.Client(), "CONFIG", "SET", "cluster-node-timeout", 600_000) // or the other one would refuse its keys, too
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{nodes[0].Addr, nodes[1].Addr}, MaxRedirects: -1, ContextTimeoutEnabled: true,
	})
	defer client.Close()
	// The timeout is long for a machine under load, and what shares a pipeline with the frozen shard would reach it.
	b, err := redisbackend.New(client, redisbackend.Config{Timeout: 5 * time.Second, Queue: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	well, frozen := keysOf(t, nodes, 0, 8), keysOf(t, nodes, 1, 32)
	for _, key := range append(well, frozen...) {
		backendtesting.MustTake(t, b, backendtesting.Request(key))
	}

	taken := make([]atomic.Int64, len(well))
	run := func() (n int64) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		for i, key := range well {
			wg.Go(func() {
				for ctx.Err() == nil && !t.Failed() {
					if _, err := b.Take(context.Background(), backendtesting.Request(key)); err != nil {
						t.Errorf("a key of the shard that is well: %v", err)
						return
					}
					taken[i].Add(1)
				}
			})
		}
		wg.Wait()
		for i := range taken {
			n += taken[i].Load()
		}
		return n
	}
	alone := run()

	nodes[1].Pause()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var failed atomic.Int64
	for i := range 128 { // more than its queue holds
		wg.Go(func() {
			for ctx.Err() == nil {
				limited, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				if _, err := b.Take(limited, backendtesting.Request(frozen[i%len(frozen)])); err == nil {
					t.Error("a frozen shard has answered")
				}
				failed.Add(1)
				<-limited.Done() // its queue was full
				cancel()
			}
		})
	}
	backendtesting.Await(t, "the frozen shard to be felt", func() bool { return failed.Load() > 128 })
	beside := run() - alone
	if beside < alone/100 { // the rest is for a busy machine
		t.Errorf("%d takes beside a frozen shard, %d without it", beside, alone)
	}
	if _, err := b.Peek(t.Context(), backendtesting.Request(well[0])); err != nil {
		t.Errorf("peek: %v", err)
	}
	for range 8 {
		if _, err := b.Heartbeat(t.Context()); err != nil {
			t.Errorf("heartbeat: %v", err)
		}
	}
	cancel()
	wg.Wait()
	nodes[1].Resume()
	for i, key := range well {
		if n := backendtesting.Used(t, nodes[0], key); n != taken[i].Load()+1 {
			t.Errorf("%d takes of a key were counted %d times", taken[i].Load()+1, n)
		}
	}
	for _, key := range append(well, frozen...) {
		backendtesting.MustTake(t, b, backendtesting.Request(key))
	}
}

// TestRedisClusterReads: reads follow a key while its slot moves, and after.
func TestRedisClusterReads(t *testing.T) {
	t.Parallel()
	nodes, client, b := openCluster(t)
	backendtesting.MustTake(t, b, backendtesting.Request("7"))
	read := func(when string) {
		t.Helper()
		if r, err := b.Peek(t.Context(), backendtesting.Request("7")); err != nil || r.Binding().Remaining != 1_000_000-1 {
			t.Errorf("%s: peek finds %d left, %v", when, r.Binding().Remaining, err)
		}
		if s, err := b.Load(context.Background(), backendtesting.Request("7")); err != nil || s.State.String() == "" {
			t.Errorf("%s: load finds %q, %v", when, s.State.String(), err)
		}
	}
	read("at rest")
	slot, from, to := moveSlot(t, client, nodes, backendtesting.Stored("7"))
	read("before the key has moved")
	moveKey(t, from, to, backendtesting.Stored("7"))
	read("while the key has moved and the slot has not")
	do(t, to.Client(), "CLUSTER", "SETSLOT", slot, "NODE", id(t, to))
	do(t, from.Client(), "CLUSTER", "SETSLOT", slot, "NODE", id(t, to))
	read("after the slot has moved")
	for _, reply := range []string{"ASK", "MOVED"} {
		if n := from.Client().InfoMap(t.Context(), "errorstats").Item("Errorstats", "errorstat_"+reply); n == "" {
			t.Errorf("no node answered %s: the test shows nothing", reply)
		}
	}
}
