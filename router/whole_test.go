package router_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// nodeTimeout is how long a call to a Redis takes at most, by default.
const nodeTimeout = 250 * time.Millisecond

// frozen is a server that may take calls and answer none.
type frozen struct {
	*backend.Memory
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

func (f *frozen) Post(ctx context.Context, n backend.Notice) (backend.Notice, error) {
	if err := f.wait(ctx, "post"); err != nil {
		return backend.Notice{}, err
	}
	return f.Memory.Post(ctx, n)
}

// TestMovingTakesItsTime: a call about a key that may come from four groups which hang takes no longer than one call, and a
// take still reaches the owner.
func TestMovingTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := make(map[string]*frozen)
		r, err := router.Open(after(topo(5, 5), topo(4, 4), topo(3, 3), topo(2, 2), topo(1, 1)), router.Config{
			Heartbeat: -1, TripAfter: -1,
			Node: func(address string) (backend.Backend, error) {
				servers[address] = &frozen{Memory: memory(t)}
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
			"refund": func(ctx context.Context) error { return r.Refund(ctx, req, limit.Receipt{Cost: 1}, 1) },
			"reset":  func(ctx context.Context) error { return r.Reset(ctx, req) },
			"seed":   func(ctx context.Context) error { return r.Seed(ctx, req, limit.State{}) },
			"seal": func(ctx context.Context) error {
				req := req
				req.Move = limit.Move{Mover: limit.Migration, Version: 1, Hold: time.Hour}
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
