package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/router"
)

// peeking is a node that can be peeked at, too.
type peeking struct{ beating }

func (p peeking) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := p.enter(ctx, "peek"); err != nil {
		return backend.Result{}, err
	}
	return p.store.Peek(ctx, req)
}

// TestDemotedPrimaryIsReadAsAReplica: what a primary says that calls itself a replica may lag.
func TestDemotedPrimaryIsReadAsAReplica(t *testing.T) {
	for name, make := range map[string]func(beating) backend.Backend{
		"loaded": func(b beating) backend.Backend { return b },
		"peeked": func(b beating) backend.Backend { return peeking{b} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				primary := newPrimary(newMemory(t))
				r := open(t, []router.NodeGroup{{Name: "a", Primary: make(primary)}}, router.Config{})
				expect := func(source backend.Source, allowed bool, guarantee backend.Guarantee, cause error) {
					t.Helper()
					time.Sleep(3 * time.Second) // a heartbeat, and more than a breaker stays open
					got, err := r.Peek(t.Context(), request("k"))
					if err != nil || got.Source != source || got.Allowed != allowed || got.Guarantee != guarantee || got.Cause != cause {
						t.Errorf("allowed %v by %v, %v because of %v, %v; want %v by %v, %v because of %v",
							got.Allowed, got.Source, got.Guarantee, got.Cause, err, allowed, source, guarantee, cause)
					}
					if loaded, err := r.Load(t.Context(), request("k")); err != nil || loaded.Source != source {
						t.Errorf("loaded from %v, %v; want %v", loaded.Source, err, source)
					}
				}
				demote := func(yes bool) { primary.set(func(c *counts) { c.beat.Primary = !yes }) }
				expect(backend.Primary, true, backend.Exact, nil)
				demote(true)
				expect(backend.Replica, true, backend.Bounded, backend.ErrReplicaMayLag)
				demote(false)
				expect(backend.Primary, true, backend.Exact, nil)
				for range 5 {
					if err := take(t, r); err != nil {
						t.Fatal(err)
					}
				}
				demote(true)
				expect(backend.Replica, false, backend.Exact, nil) // what it denies is true
			})
		})
	}
}

// full is a node that takes no writes for a while, as one out of memory, and answers all else. "denied" has used all it may,
// so that takes of it write nothing.
type full struct {
	beating
	writable *atomic.Bool
}

func newFull(t *testing.T) full {
	node := full{newPrimary(newMemory(t)), new(atomic.Bool)}
	req := request("denied")
	req.Cost = 5
	if _, err := node.store.Take(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	return node
}

func (f full) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := f.enter(ctx, "take"); err != nil {
		return backend.Result{}, err
	}
	if req.Key == "denied" || f.writable.Load() {
		return f.store.Take(ctx, req)
	}
	return backend.Result{}, &backend.Error{Op: "take", Node: "fake", Kind: backend.Unavailable, Err: errors.New("OOM")}
}

// TestBreakerOfANodeThatTakesNoWrites: it opens and stays so, whatever heartbeats, reads and denials find, and reads go on.
// Once a write gets through it closes.
func TestBreakerOfANodeThatTakesNoWrites(t *testing.T) {
	for _, demoted := range []bool{false, true} { // if not, heartbeats don't tell
		for _, every := range []time.Duration{10 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond, time.Second} {
			t.Run(fmt.Sprint("demoted ", demoted, ", takes every ", every), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					node := newFull(t)
					node.beat.Primary = !demoted
					var events log
					r := open(t, []router.NodeGroup{{Name: "a", Primary: node}}, router.Config{OnEvent: events.add})
					for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(every) {
						if time.Since(start) > 10*time.Second {
							_, _ = r.Take(t.Context(), request("denied"))
						}
						_, _ = r.Take(t.Context(), request("k"))
						if _, err := r.Peek(t.Context(), request("k")); err != nil {
							t.Fatalf("peek: %v", err)
						}
					}
					told := func() []router.EventKind {
						synctest.Wait()
						return slices.DeleteFunc(events.kinds("a", "primary"), func(k router.EventKind) bool { return k == router.RoleChanged })
					}
					if got, want := told(), []router.EventKind{router.BreakerOpened}; !slices.Equal(got, want) {
						t.Errorf("events %v, want %v", got, want)
					}
					if n := node.called("take"); n > 150 {
						t.Errorf("%d takes were sent", n)
					}

					node.writable.Store(true)
					time.Sleep(5 * time.Second)
					if got := r.Nodes()[0].Breaker; got == "closed" {
						t.Error("the breaker closed before a take was tried")
					}
					node.set(func(c *counts) { c.beat.Primary = true })
					time.Sleep(2 * time.Second)
					for range 2 {
						if err := take(t, r); err != nil {
							t.Errorf("after the fix: %v", err)
						}
					}
					if got, want := told(), []router.EventKind{router.BreakerOpened, router.BreakerClosed}; !slices.Equal(got, want) {
						t.Errorf("events %v, want %v", got, want)
					}
					node.set(func(c *counts) { c.err = unavailable() })
					for range 5 {
						_, _ = r.Peek(t.Context(), request("k"))
					}
					if got := r.Nodes()[0].Breaker; got != "open" {
						t.Errorf("after reads that failed the breaker is %s", got)
					}
				})
			})
		}
	}
}

// TestDemotedPrimaryByHeartbeats: its breaker opens and closes by what it says at heartbeats, however rare they are. While
// it is a replica they are no more frequent than else.
func TestDemotedPrimaryByHeartbeats(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			node := newFull(t)
			var events log
			r := open(t, []router.NodeGroup{{Name: "a", Primary: node}}, router.Config{Heartbeat: interval, OnEvent: events.add})
			synctest.Wait()
			soon := interval*6/5 + 3*time.Second // after the next heartbeat
			node.set(func(c *counts) { c.beat.Primary = false })
			time.Sleep(soon)
			if got := r.Nodes()[0].Breaker; got == "closed" {
				t.Error("the breaker stays closed")
			}
			node.set(func(c *counts) { c.calls["beat"] = 0 })
			time.Sleep(10 * interval)
			if n := node.called("beat"); n < 8 || n > 13 {
				t.Errorf("%d heartbeats in the time of 10", n)
			}
			for range 10 {
				_ = take(t, r)
				time.Sleep(time.Second / 5)
			}
			node.set(func(c *counts) { c.beat.Primary = true })
			time.Sleep(soon)
			want := []router.EventKind{router.RoleChanged, router.BreakerOpened, router.RoleChanged, router.BreakerClosed}
			if got := events.kinds("a", "primary"); !slices.Equal(got, want) {
				t.Errorf("heartbeats every %v: events %v, want %v", interval, got, want)
			}
		})
	}
}

// TestPromotedNodeIsAskedSoon: what a node said of its role before it was given another one is not believed for long.
func TestPromotedNodeIsAskedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory(t)
		nodes := map[string]beating{"h:1": newPrimary(store), "h:2": newReplica(store)}
		r, err := router.Open(router.Topology{Epoch: 1, Groups: []router.Group{{Name: "a", Primary: "h:1", Replicas: []string{"h:2"}}}},
			router.Config{Heartbeat: time.Hour, Node: func(address string) (backend.Backend, error) { return nodes[address], nil }})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		time.Sleep(time.Second)
		nodes["h:1"].set(func(c *counts) { c.beat = control.Heartbeat{RunID: "a", LinkUp: true} })
		nodes["h:2"].set(func(c *counts) { c.beat.Primary = true })
		update(t, r, router.Topology{Epoch: 2, Groups: []router.Group{{Name: "a", Primary: "h:2", Replicas: []string{"h:1"}}}})
		time.Sleep(time.Second)
		if got := r.Nodes(); !got[0].Heartbeat.Primary || !got[1].Readable {
			t.Errorf("nodes %+v", got)
		}
	})
}

// TestNodeThatDiesWhileItTakesNoWrites: reads don't wait for it any longer, and its breaker closes by heartbeats again.
func TestNodeThatDiesWhileItTakesNoWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFull(t)
		r := open(t, []router.NodeGroup{{Name: "a", Primary: node}}, router.Config{})
		for range 10 {
			_ = take(t, r)
		}
		node.set(func(c *counts) { c.delay = time.Hour })
		time.Sleep(5 * time.Second)
		start := time.Now()
		if _, err := r.Peek(t.Context(), request("k")); !errors.Is(err, router.ErrBreakerOpen) || time.Since(start) > 0 {
			t.Errorf("a read after %v: %v", time.Since(start), err)
		}
		node.set(func(c *counts) { c.delay = 0 })
		time.Sleep(3 * time.Second)
		if got := r.Nodes()[0].Breaker; got != "closed" {
			t.Errorf("the breaker is %s", got)
		}
	})
}
