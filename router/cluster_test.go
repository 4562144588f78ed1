//go:build unix

package router_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

func clusterGroup(name string, shards []testserver.Shard) router.Group {
	g := router.Group{Name: name}
	for _, shard := range shards {
		g.Cluster = append(g.Cluster, shard.Primary.Addr)
	}
	return g
}

// holder returns the shard that holds a key.
func holder(t *testing.T, shards []testserver.Shard, key string) int {
	t.Helper()
	for i, shard := range shards {
		if keys := shard.Primary.Client().Keys(t.Context(), "*"+key).Val(); len(keys) > 0 {
			return i
		}
	}
	t.Fatalf("no shard has %s", key)
	return 0
}

// TestClusterGroup: a Redis Cluster is a group beside others. Takes go to its primaries, peeks to its replicas.
func TestClusterGroup(t *testing.T) {
	t.Parallel()
	shards := testserver.Cluster(t, 3, 1)
	plain := testserver.Redis(t)
	topology := router.Topology{Epoch: 1, Groups: []router.Group{clusterGroup("c", shards), {Name: "s", Primary: plain.Addr}}}
	r := dial(t, topology, router.Config{})
	if err := r.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	keys := make([]string, 60)
	for i := range keys {
		keys[i] = keyOf(r, "c", i)
	}
	for _, shard := range shards {
		shard.Primary.ResetStats(t)
	}
	for _, key := range keys {
		if n := takeN(t, r, key, tenAnHour, 10); n != 10 {
			t.Errorf("%d of 10", n)
		}
		if n := takeN(t, r, key, tenAnHour, 1); n != 0 {
			t.Error("an 11th is admitted")
		}
	}
	for i, shard := range shards {
		if n := shard.Primary.Client().DBSize(t.Context()).Val(); n == 0 {
			t.Errorf("shard %d holds nothing", i)
		}
		shard.Replicas[0].AwaitSync(shard.Primary)
		shard.Replicas[0].ResetStats(t)
		shard.Primary.ResetStats(t)
	}
	for _, key := range keys {
		got, err := r.Peek(t.Context(), backend.Request{Key: key, Policy: tenAnHour, Cost: 1})
		if err != nil || got.Allowed || got.Source != backend.Replica {
			t.Errorf("peek: %v by %v, %v", got.Allowed, got.Source, err)
		}
	}
	var atReplicas, atPrimaries int64
	for _, shard := range shards {
		atReplicas += shard.Replicas[0].Stats(t)["get"]
		atPrimaries += shard.Primary.Stats(t)["get"]
	}
	if atReplicas != int64(len(keys)) || atPrimaries != 0 {
		t.Errorf("%d peeks: %d at replicas and %d at primaries", len(keys), atReplicas, atPrimaries)
	}

	// A cluster is added to and leaves a topology like another group.
	update(t, r, router.Topology{Epoch: 2, Groups: []router.Group{{Name: "s", Primary: plain.Addr}}})
	for _, key := range keys {
		if n := takeN(t, r, key, tenAnHour, 1); n != 0 {
			t.Error("the counts were not handed over")
		}
	}
	topology.Epoch = 3
	update(t, r, topology)
	for _, key := range keys {
		if n := takeN(t, r, key, tenAnHour, 1); n != 0 {
			t.Error("the counts were not handed back")
		}
	}
}

// TestClusterSlotMoves: takes follow a slot that moves from shard to shard, and none is counted twice.
func TestClusterSlotMoves(t *testing.T) {
	t.Parallel()
	shards := testserver.Cluster(t, 3, 0)
	r := dialAny(t, router.Topology{Groups: []router.Group{clusterGroup("c", shards)}})
	const keys, quota = 40, 200
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(quota)}}
	name := func(k int) string { return fmt.Sprintf("key-%d-", k) }
	for k := range keys {
		takeN(t, r, name(k), policy, 1)
	}
	var taken [keys]atomic.Int64
	var failed atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for caller := range 2 {
		all.Go(func() {
			for i := caller; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				result, err := r.Take(context.Background(), backend.Request{Key: name(i % keys), Policy: policy, Cost: 1})
				switch {
				case err == nil && result.Allowed:
					taken[i%keys].Add(1)
				case err != nil:
					failed.Add(1)
					t.Logf("take: %v", err)
				}
			}
		})
	}
	for k := range 4 { // as many slots move, each with its key
		i := holder(t, shards, name(k))
		from, to := shards[i].Primary, shards[(i+1)%len(shards)].Primary
		stored := from.Client().Keys(t.Context(), "*"+name(k)).Val()
		if len(stored) != 1 {
			t.Fatalf("stored as %q", stored)
		}
		slot := from.Client().ClusterKeySlot(t.Context(), stored[0]).Val()
		id := func(s *testserver.Server) string { return s.Client().Do(t.Context(), "CLUSTER", "MYID").Val().(string) }
		host, port, _ := strings.Cut(to.Addr, ":")
		for _, step := range []struct {
			at   *testserver.Server
			args []any
		}{
			{to, []any{"CLUSTER", "SETSLOT", slot, "IMPORTING", id(from)}},
			{from, []any{"CLUSTER", "SETSLOT", slot, "MIGRATING", id(to)}},
			{from, []any{"MIGRATE", host, port, stored[0], 0, 5000}},
			{to, []any{"CLUSTER", "SETSLOT", slot, "NODE", id(to)}},
			{from, []any{"CLUSTER", "SETSLOT", slot, "NODE", id(to)}},
		} {
			if err := step.at.Client().Do(t.Context(), step.args...).Err(); err != nil {
				t.Fatalf("%v: %v", step.args, err)
			}
		}
		// The next move must not take the same epoch: the owner of the slots would then depend on chance for a while.
		eventually(t, 30*time.Second, "all shards know of the move", func() bool {
			known := make(map[string]bool)
			for _, shard := range shards {
				for line := range strings.Lines(shard.Primary.Client().ClusterInfo(t.Context()).Val()) {
					if strings.HasPrefix(line, "cluster_current_epoch:") {
						known[line] = true
					}
				}
				ranges, _ := shard.Primary.Client().Do(t.Context(), "CLUSTER", "SLOTS").Slice()
				for _, r := range ranges { // first slot, last slot, nodes
					if r := r.([]any); r[0].(int64) <= slot && slot <= r[1].(int64) {
						known[fmt.Sprint(r[2])] = true
					}
				}
			}
			return len(known) == 2 // one epoch and one place
		})
	}
	time.Sleep(500 * time.Millisecond)
	close(stop)
	all.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d calls failed", failed.Load())
	}
	for k := range keys {
		result, err := r.Peek(t.Context(), backend.Request{Key: name(k), Policy: policy, Cost: 1})
		if used := quota - result.Binding().Remaining; err != nil || used != taken[k].Load()+1 {
			t.Errorf("key %d: %d used after %d takes, %v", k, used, taken[k].Load()+1, err)
		}
	}
}

// dialAny opens a router on servers of which none needs to be a replica.
func dialAny(t *testing.T, topology router.Topology) *router.Router {
	t.Helper()
	r, err := router.Open(topology, router.Config{Heartbeat: 200 * time.Millisecond, Backend: redisbackend.Config{Timeout: 5 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// TestClusterShardDies: the keys of a shard that is down have no verdict, and those of the others stay exact.
func TestClusterShardDies(t *testing.T) {
	t.Parallel()
	shards := testserver.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	var events log
	r, err := router.Open(router.Topology{Groups: []router.Group{clusterGroup("c", shards)}}, router.Config{
		Heartbeat: 100 * time.Millisecond, Backend: redisbackend.Config{Timeout: 5 * time.Second}, OnEvent: events.add,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const keys, quota = 60, 20
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(quota)}}
	var dead [keys]bool
	var admitted [keys]atomic.Int64
	for k := range keys {
		takeN(t, r, fmt.Sprintf("key-%d-", k), policy, 1)
		admitted[k].Add(1)
		dead[k] = holder(t, shards, fmt.Sprintf("key-%d-", k)) == 0
	}
	shards[0].Primary.Kill()
	var lost, failed, wrong atomic.Int64
	var all sync.WaitGroup
	for caller := range 4 {
		all.Go(func() {
			for i := range 40 * keys {
				k := (i + caller) % keys
				result, err := r.Take(context.Background(), backend.Request{Key: fmt.Sprintf("key-%d-", k), Policy: policy, Cost: 1})
				switch {
				case err == nil && result.Guarantee != backend.Exact:
					wrong.Add(1)
				case err == nil && result.Allowed:
					admitted[k].Add(1)
				case err != nil && dead[k]:
					lost.Add(1)
				case err != nil:
					failed.Add(1)
					t.Logf("a key of another shard: %v", err)
				}
			}
		})
	}
	all.Wait()
	if lost.Load() == 0 || failed.Load() > 0 || wrong.Load() > 0 {
		t.Errorf("%d calls failed that were for the dead shard, %d for others, %d are not exact", lost.Load(), failed.Load(), wrong.Load())
	}
	for k := range keys {
		if n := admitted[k].Load(); !dead[k] && n != quota || dead[k] && n != 1 {
			t.Errorf("%d admitted of %d, dead: %v", n, quota, dead[k])
		}
	}
	if got := r.Nodes()[0].Breaker; got != "closed" {
		t.Errorf("the breaker is %s", got)
	}
	for _, shard := range shards[1:] {
		shard.Primary.Kill()
	}
	await(t, "the breaker opens when all are away", func() bool {
		_, err := r.Take(t.Context(), request("k"))
		return errors.Is(err, router.ErrBreakerOpen)
	})
}

// TestClusterFailover: a replica takes over for its primary, and calls go on there.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	shards := testserver.Cluster(t, 3, 1, "--cluster-node-timeout", "1000")
	r := dial(t, router.Topology{Groups: []router.Group{clusterGroup("c", shards)}}, router.Config{})
	const keys = 30
	for k := range keys {
		takeN(t, r, fmt.Sprint("key", k), tenAnHour, 4)
	}
	shards[0].Replicas[0].AwaitSync(shards[0].Primary)
	shards[0].Primary.Kill()
	died := time.Now()
	var left [keys]int64
	eventually(t, 40*time.Second, "all keys have verdicts", func() bool {
		for k := range keys {
			result, err := r.Peek(t.Context(), backend.Request{Key: fmt.Sprint("key", k), Policy: tenAnHour, Cost: 1})
			if err != nil {
				return false
			}
			left[k] = result.Binding().Remaining
			if _, err := r.Take(t.Context(), backend.Request{Key: fmt.Sprint("key", k), Policy: tenAnHour, Cost: 1}); err != nil {
				return false
			}
		}
		return true
	})
	t.Logf("all keys had verdicts after %v", time.Since(died).Round(time.Millisecond))
	for k, n := range left {
		if n > 6 {
			t.Errorf("key %d: %d left of the 6 there were", k, n)
		}
	}
}

// TestServerBecomesCluster: a group that was one server, and is a Redis Cluster now that is found by the same address, is
// called as a cluster, and the other way round.
func TestServerBecomesCluster(t *testing.T) {
	const address = "127.0.0.1:1" // where nobody listens: only the server in memory can answer
	server := router.Topology{Epoch: 1, Groups: []router.Group{{Name: "eu", Primary: address}}}
	cluster := router.Topology{Epoch: 2, Groups: []router.Group{{Name: "eu", Cluster: []string{address}}}}
	for name, topologies := range map[string][]router.Topology{
		"to a cluster": {server, cluster}, "to a server": {cluster, server},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant()
			topologies[0].Epoch, topologies[1].Epoch = 1, 2
			r := p.open(t, topologies[0], router.Config{Heartbeat: -1, TripAfter: -1})
			var caller sync.WaitGroup
			caller.Go(func() { _ = take(t, r) }) // meanwhile, for the race detector
			update(t, r, topologies[1])
			caller.Wait()
			err := take(t, r)
			if clustered := len(topologies[1].Groups[0].Cluster) > 0; clustered != (err != nil) {
				t.Errorf("a take after the change: %v", err)
			}
			if n := len(r.Nodes()); n != 1+len(topologies[1].Groups[0].Cluster) {
				t.Errorf("%d nodes: %+v", n, r.Nodes())
			}
		})
	}
}
