//go:build unix

package router_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
)

// A migration to a router whose topology changes at the same time: promises P9 and P10 together.

// percentage is what one process believes of a flag.
type percentage struct{ now atomic.Pointer[[2]uint64] } // version and percent; nil for 0 and 0

func (p *percentage) set(version, percent uint64) { p.now.Store(&[2]uint64{version, percent}) }

func (p *percentage) Decide(key string) (useNew bool, version uint64) {
	if now := p.now.Load(); now != nil {
		return keyhash.Sum(key)%100 < now[1], now[0]
	}
	return false, 0
}

// process moves keys between a machine and a router.
type process struct {
	*dual.Dual
	flag   percentage
	router *router.Router
	epoch  uint64
}

func (p *plant) process(t testing.TB, topology router.Topology) *process {
	t.Helper()
	proc := &process{router: p.open(t, topology, router.Config{TripAfter: -1, Backend: redisbackend.Config{Timeout: 10 * time.Second}}), epoch: topology.Epoch}
	proc.Dual = newDual(t, dual.Config{
		Old: p.machine("old"), New: proc.router, Decide: proc.flag.Decide, CarryOver: true,
	})
	return proc
}

// TestBothMoversInAnyOrder: processes learn of each change of the flag and of the topology in an order of their own; of each key
// exactly its Max is admitted.
func TestBothMoversInAnyOrder(t *testing.T) {
	for name, l := range map[string]limit.Limit{
		"fixed": limit.PerHour(10), "sliding": limit.Sliding(10, time.Hour, time.Minute), "bucket": limit.TokenBucket(1, 24*time.Hour, 10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
			for seed := range uint64(4) {
				r, p := rand.New(rand.NewPCG(seed, 3)), newPlant()
				processes := []*process{p.process(t, topo(1, 1, 2, 3)), p.process(t, topo(1, 1, 2, 3)), p.process(t, topo(1, 1, 2, 3))}
				epoch, version, percents := uint64(1), uint64(0), []uint64{0}
				const keys = 120
				var admitted [keys]int
				take := func(c *process, k int) {
					result, err := c.Take(context.Background(), backend.Request{Key: fmt.Sprint("k", k), Policy: policy, Cost: 1})
					if err != nil || result.Guarantee != backend.Exact {
						t.Fatalf("seed %d: %s, %v, %v", seed, result.Guarantee, result.Cause, err)
					}
					if result.Allowed {
						admitted[k]++
					}
				}
				for range 700 {
					c := processes[r.IntN(len(processes))]
					switch r.IntN(12) {
					case 0:
						if r.IntN(2) == 0 {
							version++
							percents = append(percents, []uint64{0, 50, 100}[r.IntN(3)])
						}
						c.flag.set(version, percents[version])
					case 1:
						if r.IntN(2) == 0 {
							epoch++
						}
						for ; c.epoch < epoch; c.epoch++ { // it skips none
							next := topo(c.epoch+1, 1, 2, 3)
							if next.Epoch%2 == 0 {
								next = topo(next.Epoch, 1, 2, 3, 4)
							}
							if err := c.router.Update(next); err != nil && !errors.Is(err, router.ErrTopologyOld) {
								t.Fatal(err)
							}
						}
					default:
						take(c, r.IntN(keys))
					}
				}
				for k := range keys {
					for i := range 12 {
						take(processes[i%len(processes)], k)
					}
					if admitted[k] != 10 {
						t.Errorf("seed %d: key %d: %d admitted, want 10", seed, k, admitted[k])
					}
				}
				for _, c := range processes {
					_ = c.Close()
				}
			}
		})
	}
}

// TestBothMoversAreExact is the same on real servers under load: the flag goes 0, 50, 100, 0 % while the topology goes from 3
// groups to 4 and back; the second process hears of each change later.
func TestBothMoversAreExact(t *testing.T) {
	t.Parallel()
	const keys, quota, callers = 300, 20, 8
	c, mc := startCluster(t, 4, 0), testserver.Memcached(t)
	three, four := c.topology, c.topology
	three.Epoch, three.Groups = 1, three.Groups[:3]
	for name, l := range map[string]limit.Limit{
		"fixed": limit.PerHour(quota), "sliding": limit.Sliding(quota, time.Hour, time.Minute),
		"bucket": limit.TokenBucket(1, 24*time.Hour, quota),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var processes [2]*process
			for i := range processes {
				p := &process{router: dial(t, three, router.Config{Backend: redisbackend.Config{Timeout: 5 * time.Second, Prefix: name + ":"}})}
				p.Dual = newDual(t, dual.Config{
					Old: newMemcached(t, memcached.Config{Prefix: name + ":", Timeout: 5 * time.Second}, mc.Addr),
					New: p.router, Decide: p.flag.Decide, CarryOver: true,
				})
				processes[i] = p
			}
			policy := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
			var admitted [keys]atomic.Int64
			var inexact, contended, failed, total, sum atomic.Int64
			stop := make(chan struct{})
			var all sync.WaitGroup
			end := sync.OnceFunc(func() { close(stop); all.Wait() })
			defer end()
			for caller := range callers {
				all.Go(func() {
					random := rand.New(rand.NewPCG(9, uint64(caller)))
					for {
						select {
						case <-stop:
							return
						default:
						}
						k := random.IntN(keys)
						r, err := processes[caller%2].Take(context.Background(), backend.Request{Key: fmt.Sprint("k", k), Policy: policy, Cost: 1})
						total.Add(1)
						switch {
						case kind(err) == backend.Contended: // nothing was charged
							contended.Add(1)
						case err != nil:
							if failed.Add(1) < 5 {
								t.Error(err)
							}
						case r.Guarantee != backend.Exact:
							if inexact.Add(1) < 5 {
								t.Error(r.Cause)
							}
						case r.Allowed:
							admitted[k].Add(1)
							sum.Add(1)
						}
						time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
					}
				})
			}
			version := uint64(0)
			flag := func(who int, percent uint64) { processes[who].flag.set(version, percent) }
			tell := func(who int, topology router.Topology, epoch uint64) {
				topology.Epoch = epoch
				if err := processes[who].router.Update(topology); err != nil {
					t.Error(err)
				}
			}
			pause := func() {
				before := total.Load()
				time.Sleep(200 * time.Millisecond)
				eventually(t, time.Minute, "the keys are in use", func() bool { return total.Load() > before+keys })
			}
			pause()
			for i, step := range []struct {
				percent  uint64
				topology router.Topology
			}{{50, four}, {100, three}, {0, four}, {50, three}} {
				version++
				ahead := i % 2
				flag(ahead, step.percent)
				pause()
				tell(1-ahead, step.topology, uint64(i+2)) // who is ahead with the one is behind with the other
				pause()
				flag(1-ahead, step.percent)
				pause()
				tell(ahead, step.topology, uint64(i+2))
				pause()
			}
			eventually(t, time.Minute, "most of the quota is used", func() bool { return sum.Load() > keys*quota/2 })
			end()
			over := 0
			for k := range admitted {
				if admitted[k].Load() > quota {
					over++
				}
			}
			handovers := processes[0].Stats().Handovers + processes[1].Stats().Handovers
			t.Logf("%d calls, %d admitted, %d keys above their Max, %d inexact, %d contended, %d failed; %d handovers between the sides",
				total.Load(), sum.Load(), over, inexact.Load(), contended.Load(), failed.Load(), handovers)
			if over > 0 || failed.Load() > 0 || inexact.Load() > 0 || contended.Load() > total.Load()/4 || handovers < keys {
				t.Error("want none above Max, none failed, none inexact, and few contended")
			}
		})
	}
}

// TestBothWithAGroupDown: while both move a key, a group that is down is no conflict, and counts that could not be brought
// along are said to be missing.
func TestBothWithAGroupDown(t *testing.T) {
	ctx := context.Background()
	p := newPlant()
	c := p.process(t, topo(1, 1, 2, 3))
	key, _, g4 := moved(t, p, topo(1, 1, 2, 3), topo(2, 1, 2, 3, 4))
	c.flag.set(1, 100)
	takeN(t, c, key, tenAnHour, 2)
	update(t, c.router, topo(2, 1, 2, 3, 4))
	takeN(t, c, key, tenAnHour, 2)
	update(t, c.router, topo(3, 1, 2, 3))
	g4.down.Store(true)
	req := backend.Request{Key: key, Policy: tenAnHour, Cost: 1}
	if r, err := c.Take(ctx, req); errors.Is(err, router.ErrTopologyConflict) || err == nil && r.Guarantee == backend.Exact {
		t.Errorf("back, with the group down that has the counts: %s, %v", r.Guarantee, err)
	}

	p = newPlant()
	c = p.process(t, topo(1, 1, 2, 3))
	key, old, _ := moved(t, p, topo(1, 1, 2, 3), topo(2, 1, 2, 3, 4))
	c.flag.set(1, 100)
	takeN(t, c, key, tenAnHour, 10)
	old.down.Store(true)
	update(t, c.router, topo(2, 1, 2, 3, 4))
	c.flag.set(2, 0)
	req.Key = key
	if r, err := c.Take(ctx, req); err == nil && r.Allowed && r.Guarantee == backend.Exact {
		t.Error("admitted an 11th of 10, and called it exact")
	}
}

// TestBothMoversAndBackAtOnce: every key changes its group with every topology, and goes back; the flag is turned there and back
// at the same time, and groups are out of reach now and then. A key that no decision called less than exact, and no call
// failed for, has at most its Max; no process reports a conflict.
func TestBothMoversAndBackAtOnce(t *testing.T) {
	const processes, keys, rounds = 3, 60, 30
	for seed := range uint64(4) {
		p, ctx := newPlant(), context.Background()
		var all [processes]*process
		topologies := []router.Topology{topo(1, 1)}
		for i := range all {
			all[i] = p.process(t, topologies[0])
		}
		var admitted [keys]atomic.Int64
		var inexact [keys]atomic.Bool
		call := func(c *process, r *rand.Rand) {
			k := r.IntN(keys)
			req := backend.Request{Key: fmt.Sprint("k", k), Policy: tenAnHour, Cost: 1}
			var err error
			switch r.IntN(10) {
			case 0:
				_, err = c.Peek(ctx, req)
				if kind(err) != 0 {
					err = nil // changes nothing
				}
			case 1:
				err = c.Seed(ctx, req, state.State{})
			default:
				var result backend.Result
				result, err = c.Take(ctx, req)
				if err == nil && result.Allowed {
					admitted[k].Add(1)
				}
				if result.Guarantee != backend.Exact {
					inexact[k].Store(true)
				}
			}
			if err != nil {
				inexact[k].Store(true)
				if errors.Is(err, router.ErrTopologyConflict) || kind(err) == 0 {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		}
		r := rand.New(rand.NewPCG(seed, 5))
		for round := range rounds {
			epoch := uint64(len(topologies) + 1)
			previous := slices.Clone(topologies[max(0, len(topologies)-5):])
			slices.Reverse(previous)
			next := after(topo(epoch, 1+r.IntN(3)), previous...)
			topologies = append(topologies, topo(epoch, 0))
			topologies[epoch-1].Groups = next.Groups
			blinks := p.machine(fmt.Sprintf("10.0.0.%d:6379", 1+r.IntN(3)))
			blinks.down.Store(seed%2 == 1 && round%8 == 0)
			var calls sync.WaitGroup
			for i, c := range all {
				r := rand.New(rand.NewPCG(seed, uint64(round*processes+i)))
				calls.Go(func() {
					for range 5 {
						call(c, r)
					}
					c.flag.set(uint64(round), []uint64{0, 50, 100}[(uint64(round)+seed)%3])
					for range r.IntN(10) {
						call(c, r)
					}
					if err := c.router.Update(next); err != nil && !errors.Is(err, router.ErrTopologyOld) {
						t.Error(err)
					}
					for range 5 {
						call(c, r)
					}
				})
			}
			calls.Wait()
			blinks.down.Store(false)
		}
		exact := 0
		for k := range keys {
			if !inexact[k].Load() {
				exact++
				if n := admitted[k].Load(); n > 10 {
					t.Errorf("seed %d: key %d: %d of 10 admitted, and all was said to be exact", seed, k, n)
				}
			}
		}
		t.Logf("seed %d: %d of %d keys were exact", seed, exact, keys)
		if seed%2 == 0 && exact < keys/2 {
			t.Errorf("seed %d: want most of them, for nothing was out of reach", seed)
		}
		for _, c := range all {
			_ = c.Close()
		}
	}
}
