package router_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
)

// after is a topology with those before it, the latest first.
func after(t router.Topology, previous ...router.Topology) router.Topology {
	if len(previous) > 0 {
		p := after(previous[0], previous[1:]...)
		t.Previous, t.Baseline = &p, false
	}
	return t
}

// published is the epoch of the topology that the node of a group holds.
func (p *plant) published(g int) int64 {
	n, err := p.machine(fmt.Sprintf("10.0.0.%d:6379", g)).Memory.Published(context.Background())
	if err != nil {
		return 0
	}
	return n.Version
}

// TestNewerTopologyUnderACallersMove: a request that acts under a move of its caller meets, where the key comes from, the
// seal of a topology that is unknown here, because its process could not reach the key's owner.
func TestNewerTopologyUnderACallersMove(t *testing.T) {
	ctx := context.Background()
	for _, settled := range []bool{false, true} { // whether the newer topology has the key's counts by then
		one, two := topo(1, 1), after(topo(2, 2), topo(1, 1))
		for name, call := range map[string]func(*router.Router, backend.Request) error{
			"take": func(r *router.Router, req backend.Request) error {
				result, err := r.Take(ctx, req)
				if left := result.Binding().Remaining; err == nil && left > 8 {
					t.Errorf("%d left of 10 after two takes or more", left)
				}
				return err
			},
			"charge": func(r *router.Router, req backend.Request) error {
				_, err := r.Charge(ctx, req, state.Mark{})
				return err
			},
			"refund": func(r *router.Router, req backend.Request) error {
				req.Move.Step = state.WithoutFloor
				return r.Refund(ctx, req, state.Receipt{}, 1)
			},
			"reset": func(r *router.Router, req backend.Request) error {
				req.Move.Step = state.WithoutFloor
				return r.Reset(ctx, req)
			},
			"seed": func(r *router.Router, req backend.Request) error { return r.Seed(ctx, req, state.State{}) },
			"seal": func(r *router.Router, req backend.Request) error {
				req.Move.Step, req.Floor = state.Ask, nil
				_, err := r.Seal(ctx, req)
				return err
			},
		} {
			t.Run(name, func(t *testing.T) {
				p := newPlant()
				behind := p.open(t, two, router.Config{})
				await(t, "it has synced", func() bool { return p.published(1) == 2 && p.published(2) == 2 })
				p.machine("10.0.0.2:6379").down.Store(true)
				ahead := p.open(t, after(topo(3, 3), topo(2, 2), one), router.Config{TripAfter: -1})
				req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}
				if r, err := ahead.Take(ctx, req); err != nil || r.Guarantee != backend.Bounded {
					t.Fatalf("%s, %v", r.Guarantee, err)
				}
				p.machine("10.0.0.2:6379").down.Store(false)
				if settled {
					takeN(t, ahead, "k", tenAnHour, 1)
				}
				req.Floor = &state.State{}
				req.Move = state.Move{Mover: state.Migration, Version: 1, Step: state.Adopt, TTL: time.Hour}
				if err := call(behind, req); err != nil {
					t.Error(err)
				}
				if owner := behind.Owner("k"); owner != "g3" {
					t.Errorf("the owner is %s, and the key has moved on to g3", owner)
				}
			})
		}
	}
}

// TestPreviousOwnerInConflict: a process whose topology differs from what others have published under its epoch may find that
// out where it brings a key's counts from. It charges nothing then, at an owner that the others don't know.
func TestPreviousOwnerInConflict(t *testing.T) {
	p, ctx := newPlant(), context.Background()
	odd := p.open(t, topo(1, 1), router.Config{})
	await(t, "it has synced", func() bool { return p.published(1) == 1 })
	p.machine("10.0.0.3:6379").mute.Store(true)
	p.open(t, after(topo(2, 1, 2), topo(1, 1)), router.Config{})
	await(t, "the others' topology is published", func() bool { return p.published(1) == 2 })
	update(t, odd, topo(2, 3))
	r, err := odd.Take(ctx, backend.Request{Key: "k", Policy: tenAnHour, Cost: 1})
	if !errors.Is(err, router.ErrTopologyConflict) {
		t.Errorf("%s, %v, %v", r.Guarantee, r.Cause, err)
	}
	st, err := p.machine("10.0.0.3:6379").Load(ctx, backend.Request{Key: "k", Policy: tenAnHour, Cost: 1})
	if left := st.State.Peek(tenAnHour, state.At{Micros: st.Now}, 1); err != nil || left.Binding().Remaining != 10 {
		t.Errorf("%d left at the wrong owner, %v", left.Binding().Remaining, err)
	}
}

// TestConflictSettled: a process that was stopped for its topology brings keys from where the others had them, once it is
// updated, and from where it had them itself. The previous topologies that it publishes are those that all agree on.
func TestConflictSettled(t *testing.T) {
	for name, stopped := range map[string]bool{"it was stopped": true, "it met no other": false} {
		t.Run(name, func(t *testing.T) {
			p, ctx := newPlant(), context.Background()
			right, wrong := topo(2, 1, 2), topo(2, 2, 3)
			fleet := p.open(t, right, router.Config{})
			await(t, "the fleet's topology is published", func() bool { return p.published(1) == 2 && p.published(2) == 2 })
			p.machine("10.0.0.2:6379").mute.Store(!stopped)
			odd := p.open(t, wrong, router.Config{})
			await(t, "the other topology is tried", func() bool {
				_, err := odd.Take(ctx, backend.Request{Key: "k", Policy: tenAnHour, Cost: 1})
				return !stopped && p.published(3) == 2 || errors.Is(err, router.ErrTopologyConflict)
			})
			key := keyOf(fleet, "g1", 0)
			if n := takeN(t, fleet, key, tenAnHour, 6); n != 6 {
				t.Fatal(n)
			}
			if !stopped {
				takeN(t, odd, key, tenAnHour, 1)
			}
			update(t, odd, after(topo(3, 4), right))
			want := 4
			if !stopped {
				want = 3
			}
			if n := takeN(t, odd, key, tenAnHour, 10); n > 4 || n < want {
				t.Errorf("%d are admitted, and %d were left", n, want)
			}
			await(t, "the new topology is published", func() bool { return p.published(4) == 3 })
			fresh := p.open(t, topo(1, 1), router.Config{})
			await(t, "a process that starts behind learns of it, and of what was before", func() bool { return fresh.PreviousTopologies() == 2 })
			second := keyOf(fleet, "g1", 1)
			takeN(t, fleet, second, tenAnHour, 6)
			if n := takeN(t, fresh, second, tenAnHour, 10); n != 4 {
				t.Errorf("%d are admitted by a process that starts, and 4 were left", n)
			}
		})
	}
}

// TestPeekWithoutPreviousOwner: a peek at a key that has not been handed over says that it lacks a previous owner's counts, as
// a take does.
func TestPeekWithoutPreviousOwner(t *testing.T) {
	p, ctx := newPlant(), context.Background()
	r := p.open(t, topo(1, 1), router.Config{TripAfter: -1})
	takeN(t, r, "k", tenAnHour, 10)
	update(t, r, topo(2, 2))
	dual := newDual(t, dual.Config{
		Old: p.open(t, after(topo(2, 2), topo(1, 1)), router.Config{}), New: newMemory(t), CarryOver: true,
		Decide: func(string) (bool, uint64) { return false, 1 },
	})
	req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}
	for _, down := range []bool{false, true} {
		p.machine("10.0.0.1:6379").down.Store(down)
		for name, b := range map[string]backend.Peeker{"router": r, "dual": dual} {
			result, err := b.Peek(ctx, req)
			if err != nil || result.Allowed != down || (result.Guarantee == backend.Bounded) != down ||
				errors.Is(result.Cause, backend.ErrNotHandedOver) != down || errors.Is(result.Cause, errDown) != down {
				t.Errorf("down: %t, %s: allowed %t, %s, %v, %v", down, name, result.Allowed, result.Guarantee, result.Cause, err)
			}
		}
	}
}

// TestPeekAtLostCounts: a peek at a key that has not been handed over says that a previous owner has lost counts.
func TestPeekAtLostCounts(t *testing.T) {
	p := newPlant()
	r := p.open(t, topo(1, 1), router.Config{})
	update(t, r, topo(2, 2))
	req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}
	for _, lost := range []bool{false, true} {
		p.machine("10.0.0.1:6379").lacks.Store(lost)
		result, err := r.Peek(t.Context(), req)
		if err != nil || errors.Is(result.Cause, backend.ErrCountsLost) != lost || (result.Guarantee == backend.Bounded) != lost {
			t.Errorf("lost: %t, %s, %v, %v", lost, result.Guarantee, result.Cause, err)
		}
	}
}

// unseeded is a node that moves keys but takes no seeds.
type unseeded struct{ m *machine }

func (u unseeded) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	return u.m.Take(ctx, req)
}

func (u unseeded) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	return u.m.Seal(ctx, req)
}

func (u unseeded) Close() error { return nil }

// TestFloorWithoutSeeder: a take with a floor hands a key over between nodes that take no seeds, and the floor counts.
func TestFloorWithoutSeeder(t *testing.T) {
	p := newPlant()
	r, err := router.Open(topo(1, 1), router.Config{
		Heartbeat: -1, Node: func(address string) (backend.Backend, error) { return unseeded{p.machine(address)}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 6}
	lost := p.machine("10.0.0.9:6379") // has what the caller knows and g1 doesn't
	if _, err := lost.Take(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	known, err := lost.Load(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	takeN(t, r, "k", tenAnHour, 2)
	update(t, r, topo(2, 2))
	req.Cost, req.Floor = 1, &known.State
	result, err := r.Take(t.Context(), req)
	if err != nil || result.Guarantee != backend.Exact || result.Binding().Remaining != 3 {
		t.Errorf("%d left, %s, %v, %v; want 3", result.Binding().Remaining, result.Guarantee, result.Cause, err)
	}
	if s := r.Stats(); s.Handovers != 1 {
		t.Errorf("%d handovers", s.Handovers)
	}
}

// TestPeekAfterHandover: what a previous place had lost stays missing after the handover, for looks as for takes.
func TestPeekAfterHandover(t *testing.T) {
	p := newPlant()
	r := p.open(t, topo(1, 1), router.Config{})
	update(t, r, topo(2, 2))
	side := p.machine("10.0.0.9:6379")
	d := newDual(t, dual.Config{
		Old: side, New: newMemory(t), CarryOver: true, Decide: func(string) (bool, uint64) { return true, 1 },
	})
	req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}
	for name, b := range map[string]backend.Backend{"router": r, "dual": d} {
		takeN(t, b, "k", tenAnHour, 1) // hands the key over
		for _, lost := range []bool{false, true} {
			p.machine("10.0.0.1:6379").lacks.Store(lost)
			side.lacks.Store(lost)
			taken, err := b.Take(t.Context(), req)
			if err != nil || errors.Is(taken.Cause, backend.ErrCountsLost) != lost {
				t.Errorf("%s, lost: %t: take: %s, %v, %v", name, lost, taken.Guarantee, taken.Cause, err)
			}
			peeked, err := backend.Peek(t.Context(), b, req)
			if err != nil || peeked.Guarantee != taken.Guarantee || errors.Is(peeked.Cause, backend.ErrCountsLost) != lost {
				t.Errorf("%s, lost: %t: peek: %s, %v, %v", name, lost, peeked.Guarantee, peeked.Cause, err)
			}
			loaded, err := backend.Load(t.Context(), b, req)
			if err != nil || errors.Is(loaded.Lacks, backend.ErrCountsLost) != lost {
				t.Errorf("%s, lost: %t: load: %v, %v", name, lost, loaded.Lacks, err)
			}
		}
		p.machine("10.0.0.1:6379").lacks.Store(false)
		side.lacks.Store(false)
	}
}

// TestPeekTakesItsTime: all calls of a peek end within ReadTimeout, and each previous owner has a part of it.
func TestPeekTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant()
		cfg := router.Config{Heartbeat: -1, TripAfter: -1, ReadTimeout: time.Second}
		r := p.open(t, after(topo(4, 4), topo(3, 3), topo(2, 2), topo(1, 1)), cfg)
		synctest.Wait()
		takeN(t, p.machine("10.0.0.1:6379"), "k", tenAnHour, 4)
		p.machine("10.0.0.3:6379").hangs.Store(true)
		p.machine("10.0.0.2:6379").hangs.Store(true)
		req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}
		began := time.Now()
		result, err := r.Peek(t.Context(), req)
		if took := time.Since(began); took >= time.Second || err != nil || result.Guarantee != backend.Bounded || result.Binding().Remaining != 6 {
			t.Errorf("%v, %s, %d left, %v", took, result.Guarantee, result.Binding().Remaining, err)
		}
		p.machine("10.0.0.4:6379").hangs.Store(true)
		began = time.Now()
		_, err = r.Peek(t.Context(), req)
		if took := time.Since(began); took != time.Second || kind(err) != backend.Unavailable {
			t.Errorf("without the owner: %v, %v", took, err)
		}
		began = time.Now()
		limited, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err = r.Peek(limited, req); time.Since(began) != time.Second/2 || kind(err) != backend.Interrupted {
			t.Errorf("within the caller's time: %v, %v", time.Since(began), err)
		}
	})
}

// TestLongestSettle: times so long that no sum of them may overflow.
func TestLongestSettle(t *testing.T) {
	const longest = 2 * limit.MaxWindow
	_, err := router.Open(topo(1, 1), router.Config{Settle: longest + 1, Drain: longest + 1})
	for _, field := range []string{"Settle", "Drain"} {
		if want := fmt.Sprintf("%s = %s: must be at most %s", field, longest+1, longest); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	p := newPlant()
	r := p.open(t, topo(1, 1), router.Config{Settle: longest, Drain: longest})
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(5, limit.MaxWindow)}}
	takeN(t, r, "k", policy, 3)
	update(t, r, topo(2, 2))
	if n := takeN(t, r, "k", policy, 5); n != 2 {
		t.Errorf("%d are admitted after the key has moved, and 2 were left", n)
	}
}

// TestDrainWaitsForWindows: where Drain is shorter than the window of a policy that the router has met, keys come from their
// previous owners until that window is over.
func TestDrainWaitsForWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant()
		r := p.open(t, topo(1, 1), router.Config{Settle: time.Second, Drain: time.Minute, Heartbeat: -1})
		brief := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(10, 10*time.Second)}}
		takeN(t, r, "brief", brief, 1)
		update(t, r, topo(2, 2))
		time.Sleep(time.Minute + time.Second) // rounds of syncs are at most 12 s apart
		time.Sleep(12 * time.Second)
		if n := r.PreviousTopologies(); n != 0 {
			t.Errorf("%d previous topologies are kept after Drain, which is longer than the windows", n)
		}
		late, err := r.Take(t.Context(), backend.Request{Key: "late", Policy: tenAnHour, Cost: 1}) // other processes may have used it before
		if err != nil || late.Guarantee != backend.Bounded || !errors.Is(late.Cause, backend.ErrNotHandedOver) {
			t.Errorf("a window longer than Drain that was not used before: %s, %v, %v", late.Guarantee, late.Cause, err)
		}
		if look, err := r.Peek(t.Context(), backend.Request{Key: "late", Policy: tenAnHour, Cost: 1}); err != nil || look.Guarantee != backend.Bounded {
			t.Errorf("a look: %s, %v", look.Guarantee, err)
		}
		time.Sleep(time.Hour)
		takeN(t, r, "k", tenAnHour, 8)
		update(t, r, topo(3, 3))
		time.Sleep(30 * time.Minute)
		if n := takeN(t, r, "k", tenAnHour, 10); n != 2 {
			t.Errorf("%d are admitted in the hour in which the key has moved, and 2 were left", n)
		}
		update(t, r, topo(4, 4))
		if n := takeN(t, r, "k", tenAnHour, 10); n != 0 {
			t.Errorf("%d are admitted after another move", n)
		}
		time.Sleep(time.Hour + 15*time.Second)
		if n := r.PreviousTopologies(); n != 0 {
			t.Errorf("%d previous topologies are kept after the hour", n)
		}
	})
}
