package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
)

// nodeTimeout is how long a call to a Redis takes at most, by default.
const nodeTimeout = 250 * time.Millisecond

// frozen is a server that may take calls and answer none.
type frozen struct {
	*memory.Memory
	hangs atomic.Bool
}

func (f *frozen) wait(ctx context.Context, op string) error {
	if !f.hangs.Load() {
		return nil
	}
	kind := backend.Unavailable
	select {
	case <-ctx.Done():
		kind = backend.Interrupted
	case <-time.After(nodeTimeout):
	}
	return &backend.Error{Op: op, Kind: kind, MayHaveCharged: op == "take", Err: context.DeadlineExceeded}
}

func (f *frozen) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := f.wait(ctx, "take"); err != nil {
		return backend.Result{}, err
	}
	return f.Memory.Take(ctx, req)
}

func (f *frozen) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := f.wait(ctx, "seal"); err != nil {
		return backend.Snapshot{}, err
	}
	return f.Memory.Seal(ctx, req)
}

func (f *frozen) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := f.wait(ctx, "load"); err != nil {
		return backend.Snapshot{}, err
	}
	return f.Memory.Load(ctx, req)
}

func (f *frozen) Publish(ctx context.Context, n control.Announcement) (control.Announcement, error) {
	if err := f.wait(ctx, "publish"); err != nil {
		return control.Announcement{}, err
	}
	return f.Memory.Publish(ctx, n)
}

// TestMovingTakesItsTime: a call about a key that may have counts at four groups that don't answer takes no longer than one
// call, and a take still reaches the owner.
func TestMovingTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := make(map[string]*frozen)
		r, err := router.Open(after(topo(5, 5), topo(4, 4), topo(3, 3), topo(2, 2), topo(1, 1)), router.Config{
			Heartbeat: -1, TripAfter: -1,
			Node: func(address string) (backend.Backend, error) {
				servers[address] = &frozen{Memory: newMemory(t)}
				return servers[address], nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		synctest.Wait()
		owner := servers["10.0.0.5:6379"]
		for _, s := range servers {
			s.hangs.Store(s != owner)
		}
		req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1}
		calls := map[string]func(context.Context) error{
			"take": func(ctx context.Context) error {
				req := req
				req.Key = "taken" + time.Now().String()
				result, err := r.Take(ctx, req)
				if err == nil && (!result.Allowed || result.Guarantee != backend.Bounded || !errors.Is(result.Cause, backend.ErrNotHandedOver)) {
					t.Errorf("allowed %t, %s, %v", result.Allowed, result.Guarantee, result.Cause)
				}
				return err
			},
			"refund": func(ctx context.Context) error { return r.Refund(ctx, req, state.Receipt{Cost: 1}, 1) },
			"reset":  func(ctx context.Context) error { return r.Reset(ctx, req) },
			"seed":   func(ctx context.Context) error { return r.Seed(ctx, req, state.State{}) },
			"seal": func(ctx context.Context) error {
				req := req
				req.Move = state.Move{Mover: state.Migration, Version: 1, TTL: time.Hour}
				_, err := r.Seal(ctx, req)
				return err
			},
		}
		for name, call := range calls {
			for _, patience := range []time.Duration{0, 100 * time.Millisecond} {
				ctx, most := t.Context(), nodeTimeout
				if patience > 0 {
					limited, cancel := context.WithTimeout(ctx, patience)
					defer cancel()
					ctx, most = limited, patience
				}
				began := time.Now()
				err := call(ctx)
				if took := time.Since(began); took > most {
					t.Errorf("%s within %s: took %s", name, most, took)
				}
				if (name == "take") != (err == nil) {
					t.Errorf("%s within %s: %v", name, most, err)
				}
			}
		}
		owner.hangs.Store(true)
		began := time.Now()
		_, err = r.Take(t.Context(), req)
		if took := time.Since(began); took > nodeTimeout || kind(err) != backend.Unavailable {
			t.Errorf("with no server left: %v after %s", err, took)
		}
	})
}

// TestMovingOpensBreakers: without heartbeats, handovers alone open the breaker of a server that doesn't answer, and then no
// call waits for it. What callers cut short opens none.
func TestMovingOpensBreakers(t *testing.T) {
	for name, hangs := range map[string]string{"the owner": "10.0.0.2:6379", "the origin": "10.0.0.1:6379"} {
		for _, patience := range []time.Duration{time.Minute, 20 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				servers := make(map[string]*frozen)
				var events log
				r, err := router.Open(after(topo(2, 2), topo(1, 1)), router.Config{
					Heartbeat: -1, OnEvent: events.add,
					Node: func(address string) (backend.Backend, error) {
						servers[address] = &frozen{Memory: newMemory(t)}
						return servers[address], nil
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				synctest.Wait()
				servers[hangs].hangs.Store(true)
				for i := range 10 {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					_, _ = r.Take(ctx, backend.Request{Key: fmt.Sprint("k", i), Policy: tenAnHour, Cost: 1})
					cancel()
				}
				synctest.Wait()
				opened := ""
				for _, e := range events.all() {
					if e.Kind == router.BreakerOpened {
						opened += e.Node
					}
				}
				if want := map[bool]string{true: hangs}[patience > nodeTimeout]; opened != want {
					t.Errorf("%s hangs, callers wait %s: breakers opened: %q, want %q", name, patience, opened, want)
				}
			})
		}
	}
}

// slow is a server whose seal takes longer than a Redis node waits by default.
type slow struct{ *memory.Memory }

func (s slow) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	select {
	case <-time.After(2 * nodeTimeout):
		return s.Memory.Seal(ctx, req)
	case <-ctx.Done():
		return backend.Snapshot{}, &backend.Error{Op: "seal", Kind: backend.Interrupted, Err: ctx.Err()}
	}
}

// TestGivenNodesKeepTheirTime: nodes that are given to New have timeouts of their own, and no other bounds them.
func TestGivenNodesKeepTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, []router.NodeGroup{{Name: "a", Primary: slow{newMemory(t)}}}, router.Config{Heartbeat: -1})
		req := backend.Request{Key: "k", Policy: tenAnHour, Cost: 1, Move: state.Move{Mover: state.Migration, Version: 1, TTL: time.Hour}}
		if _, err := r.Seal(t.Context(), req); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), nodeTimeout)
		defer cancel()
		if _, err := r.Seal(ctx, req); kind(err) != backend.Interrupted {
			t.Errorf("the caller's own deadline: %v", err)
		}
	})
}
