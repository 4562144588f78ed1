//go:build unix

package router_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
)

// cluster is real servers: groups "a", "b" and so on, each of a primary and replicas.
type cluster struct {
	topology  router.Topology
	names     []string
	primaries map[string]*testserver.Server
	replicas  map[string][]*testserver.Server
}

func startCluster(t *testing.T, groups, replicas int) *cluster {
	t.Helper()
	c := &cluster{primaries: make(map[string]*testserver.Server), replicas: make(map[string][]*testserver.Server)}
	for i := range groups {
		name := string(rune('a' + i))
		primary := testserver.Redis(t)
		group := router.Group{Name: name, Primary: primary.Addr}
		for range replicas {
			replica := testserver.Replica(t, primary)
			group.Replicas = append(group.Replicas, replica.Addr)
			c.replicas[name] = append(c.replicas[name], replica)
		}
		c.names = append(c.names, name)
		c.primaries[name] = primary
		c.topology.Groups = append(c.topology.Groups, group)
	}
	return c
}

// dial opens a router on servers and waits until every replica is fit to be read.
func dial(t *testing.T, topology router.Topology, cfg router.Config) *router.Router {
	t.Helper()
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 200 * time.Millisecond
	}
	if cfg.Backend.Timeout == 0 {
		cfg.Backend.Timeout = 5 * time.Second // the machine may be busy
	}
	if cfg.AllowedAddresses == nil && cfg.TopologyKeys == nil {
		cfg.AllowedAddresses = []string{"127.0.0.1"}
	}
	r, err := router.Open(topology, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	await(t, "all replicas fit to be read", func() bool {
		for _, n := range r.Nodes() {
			if n.Role == router.RoleReplica && !n.Readable {
				return false
			}
		}
		return true
	})
	return r
}

// status returns what the router knows of a server.
func status(r *router.Router, s *testserver.Server) router.NodeStatus {
	for _, n := range r.Nodes() {
		if n.Node == s.Addr {
			return n
		}
	}
	return router.NodeStatus{}
}

// markerReads is how often a server may have been asked for its marker: by each question that has three or four INFO, and once
// more by who wrote it.
func markerReads(stats map[string]int64) int64 { return stats["info"]/3 + 1 }

// takeUntilDenied calls from several goroutines until all are denied and returns what was admitted.
func takeUntilDenied(t *testing.T, r *router.Router, key string) int64 {
	t.Helper()
	var admitted atomic.Int64
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for {
				result, err := r.Take(t.Context(), request(key))
				if err != nil {
					t.Error(err)
					return
				}
				if !result.Allowed {
					return
				}
				admitted.Add(1)
			}
		})
	}
	callers.Wait()
	return admitted.Load()
}

// The life of a cluster of three groups of 1+2 servers, in order.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, 2)
	var events log
	r := dial(t, c.topology, router.Config{OnEvent: events.add})
	owners := make(map[string]string)
	for i := range 60 {
		key := fmt.Sprint("user:", i)
		owners[key] = r.Owner(key)
	}
	peekAll := func(t *testing.T, group string, want backend.Source) {
		t.Helper()
		for key, owner := range owners {
			if owner != group {
				continue
			}
			if got, err := r.Peek(t.Context(), request(key)); err != nil || got.Source != want {
				t.Fatalf("peek: %v, %v; want it from the %v", got.Source, err, want)
			}
		}
	}

	t.Run("peeks land on replicas only, takes on primaries only", func(t *testing.T) {
		for _, name := range c.names {
			for _, s := range append(c.replicas[name], c.primaries[name]) {
				s.ResetStats(t)
			}
		}
		takes, peeks := make(map[string]int64), make(map[string]int64)
		for key, owner := range owners {
			for range 3 {
				if got, err := r.Take(t.Context(), request(key)); err != nil || !got.Allowed || got.Source != backend.Primary {
					t.Fatalf("take: %v by %v, %v", got.Allowed, got.Source, err)
				}
				takes[owner]++
			}
		}
		for _, name := range c.names {
			peekAll(t, name, backend.Replica)
		}
		for _, owner := range owners {
			peeks[owner]++
		}
		for _, name := range c.names {
			// The script of a take has one GET, and one take follows the other; another GET than for the marker would be a peek.
			if got := c.primaries[name].Stats(t); got["get"] > markerReads(got)+takes[name] || got["evalsha"] < takes[name] {
				t.Errorf("primary %s after %d takes: %v", name, takes[name], got)
			}
			var gets, marker int64
			for _, s := range c.replicas[name] {
				got := s.Stats(t)
				if got["evalsha"]+got["eval"] > 0 {
					t.Errorf("a replica of %s runs scripts: %v", name, got)
				}
				gets, marker = gets+got["get"], marker+markerReads(got)
			}
			if gets < peeks[name] || gets > peeks[name]+marker {
				t.Errorf("replicas of %s: %d gets after %d peeks", name, gets, peeks[name])
			}
		}
	})

	t.Run("one replica stopped", func(t *testing.T) {
		c.replicas["a"][0].Stop()
		peekAll(t, "a", backend.Replica)
	})
	t.Run("all replicas of a group stopped", func(t *testing.T) {
		c.replicas["a"][1].Kill()
		peekAll(t, "a", backend.Primary)
		peekAll(t, "b", backend.Replica)
		for _, s := range c.replicas["a"] {
			await(t, "its breaker opens", func() bool { return events.has("a", s.Addr, router.BreakerOpened) })
		}
		peekAll(t, "a", backend.Primary)
	})

	t.Run("one primary killed", func(t *testing.T) {
		key := keyOf(r, "b", 0)
		c.primaries["b"].Kill()
		await(t, "the breaker opens", func() bool {
			_, err := r.Take(t.Context(), request(key))
			if kind(err) != backend.Unavailable {
				t.Fatalf("take of a dead primary's key: %v", err)
			}
			return errors.Is(err, router.ErrBreakerOpen)
		})
		for i := range 3 {
			for _, name := range []string{"a", "c"} {
				if got := takeUntilDenied(t, r, keyOf(r, name, 100+i)); got != 5 {
					t.Errorf("a key of %s: %d admitted, want 5", name, got)
				}
			}
		}
		for key, owner := range owners {
			if got := r.Owner(key); got != owner {
				t.Fatalf("%s moved from %s to %s", key, owner, got)
			}
		}
		for _, s := range c.replicas["b"] {
			await(t, "its link is down", func() bool { return events.has("b", s.Addr, router.LinkDown) })
		}
		if _, err := r.Peek(t.Context(), request(key)); kind(err) != backend.Unavailable {
			t.Errorf("peek without a primary: %v", err)
		}
		for name, want := range map[string]string{"a": "closed", "b": "open", "c": "closed"} {
			if got := status(r, c.primaries[name]).Breaker; got != want && (got == "closed") != (want == "closed") {
				t.Errorf("breaker of primary %s: %s", name, got)
			}
		}
	})

	t.Run("it comes back empty", func(t *testing.T) {
		before := status(r, c.primaries["b"]).Heartbeat.RunID
		c.primaries["b"].Restart()
		key := keyOf(r, "b", 1)
		var result backend.Result
		await(t, "a verdict", func() (ok bool) {
			var err error
			result, err = r.Take(t.Context(), request(key))
			return err == nil
		})
		if left := result.Binding().Remaining; !result.Allowed || left != 4 || result.Source != backend.Primary {
			t.Errorf("first take: %v, %d left, by %v", result.Allowed, left, result.Source)
		}
		if n := c.primaries["b"].Client().Exists(t.Context(), "sl:t:"+key).Val(); n != 1 {
			t.Errorf("it doesn't hold the key that was taken")
		}
		await(t, "the restart is told", func() bool { return events.has("b", c.primaries["b"].Addr, router.Restarted) })
		for _, e := range events.all() {
			if e.Kind == router.Restarted && (e.Node != c.primaries["b"].Addr || e.From != before || e.To == before || e.To == "") {
				t.Errorf("event %v, run id was %s", e, before)
			}
		}
		for _, s := range c.replicas["b"] {
			await(t, "its link is up", func() bool { return events.has("b", s.Addr, router.LinkUp) })
			await(t, "it is read again", func() bool { return status(r, s).Readable })
		}
		peekAll(t, "b", backend.Replica)
		if !events.has("b", c.primaries["b"].Addr, router.BreakerClosed) {
			t.Error("no event about the breaker")
		}
	})
}
