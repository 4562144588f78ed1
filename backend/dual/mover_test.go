//go:build unix

package dual_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit/state"
)

// TestDualFloorHasNoFence: what comes from the other side are its counts. Its fence says that the key has left it, and a
// router would store that at the group that it brings the key to.
func TestDualFloorHasNoFence(t *testing.T) {
	s, l := newStage(t), &lever{}
	d := s.process(t, l, dual.Config{})
	backendtesting.MustTake(t, d, takeTen("k"))
	backendtesting.MustTake(t, d, takeTen("another"))
	l.set(1, true)
	adopted := 0
	s.new.set(func(_ context.Context, op string, req *backend.Request) error {
		if req.Move.Step == state.Adopt {
			adopted++
			if a, b := req.Floor.Fence(state.Migration, state.At{Micros: s.clock.Now().UnixMicro()}); a+b > 0 || req.Floor.Empty() {
				t.Errorf("%s with the floor %s", op, req.Floor.String())
			}
		}
		return nil
	})
	if r := backendtesting.MustTake(t, d, takeTen("k")); r.Binding().Remaining != 8 || adopted != 1 {
		t.Errorf("%d left, %d adoptions", r.Binding().Remaining, adopted)
	}
	if err := d.Reset(context.Background(), takeTen("another")); err != nil || adopted != 2 {
		t.Errorf("%v, %d adoptions", err, adopted)
	}
}

// TestDualSideOfARouter: a side that a router has moved the key away from, and that is used without that router, is a
// mistake to be told of. The epoch of a topology is not taken for a version of the flag.
func TestDualSideOfARouter(t *testing.T) {
	for _, carryOver := range []bool{true, false} {
		s, l := newStage(t), &lever{}
		d := backendtesting.NewDual(t, dual.Config{
			Old: s.old, New: s.new, Decide: l.Decide, CarryOver: carryOver,
		})
		req, ctx := takeTen("k"), context.Background()
		req.Move = state.Move{Mover: state.Topology, Version: 1001, TTL: time.Hour}
		if _, err := s.old.Memory.Seal(ctx, req); err != nil {
			t.Fatal(err)
		}
		check := func(what string, err error) {
			t.Helper()
			var failed *backend.Error
			if !errors.As(err, &failed) || failed.Op != "move" || failed.Kind != backend.Misconfigured || failed.MayHaveCharged {
				t.Errorf("%s, carry over %t: %v", what, carryOver, err)
			}
		}
		_, err := d.Take(ctx, takeTen("k"))
		check("a take there", err)
		check("a reset there", d.Reset(ctx, takeTen("k")))
		if !carryOver {
			continue
		}
		l.set(1, true)
		r, err := d.Take(ctx, takeTen("k"))
		if err != nil || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrNotHandedOver) {
			t.Fatalf("a take that looks there: %s, %v, %v", r.Guarantee, r.Cause, err)
		}
		check("its cause", r.Cause)
	}
}

// TestDualCancelledCaller: a caller that gives up shows nothing about the side that it waits for. With and without a side that
// hung before, the next caller waits as long as it may, and an exhausted key stays denied.
func TestDualCancelledCaller(t *testing.T) {
	for _, hung := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, l := newStage(t), &lever{}
			d := s.process(t, l, dual.Config{})
			for range 10 {
				backendtesting.MustTake(t, d, takeTen("exhausted"))
			}
			l.set(1, true)
			latency := time.Hour
			s.old.set(func(ctx context.Context, op string, _ *backend.Request) error {
				select {
				case <-time.After(latency):
					return nil
				case <-ctx.Done():
					return &backend.Error{Op: op, Node: "fake", Kind: backend.Interrupted, Err: ctx.Err()}
				}
			})
			if hung {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if r, err := d.Take(ctx, takeTen("first")); err != nil || r.Guarantee != backend.Bounded {
					t.Errorf("the side hangs: %s, %v", r.Guarantee, err)
				}
				cancel()
				time.Sleep(time.Second) // the next caller finds out whether it still does
			}
			latency = 80 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(60*time.Millisecond, cancel)
			if _, err := d.Take(ctx, takeTen("second")); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
			if r := backendtesting.MustTake(t, d, takeTen("exhausted")); r.Allowed || r.Guarantee != backend.Exact {
				t.Errorf("hung %t: allowed %t, %s because of %v", hung, r.Allowed, r.Guarantee, r.Cause)
			}
		})
	}
}

// TestDualDistantSide: a side that always takes long is not thought to hang because of a caller whose deadline is too short for
// it, and while one of its servers does hang, keys of the others are handed over.
func TestDualDistantSide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newStage(t), &lever{}
		d := s.process(t, l, dual.Config{})
		for range 10 {
			backendtesting.MustTake(t, d, takeTen("one"))
			backendtesting.MustTake(t, d, takeTen("another"))
		}
		l.set(1, true)
		s.old.set(func(ctx context.Context, op string, req *backend.Request) error {
			latency := 80 * time.Millisecond
			if req.Key == "frozen" {
				latency = time.Hour
			}
			select {
			case <-time.After(latency):
				return nil
			case <-ctx.Done():
				return &backend.Error{Op: op, Node: "fake", Kind: backend.Interrupted, Err: ctx.Err()}
			}
		})
		for _, step := range []struct {
			key      string
			deadline time.Duration
			want     backend.Guarantee
		}{
			{"fresh", time.Second, backend.Exact},
			{"hasty", 150 * time.Millisecond, backend.Bounded},
			{"one", time.Second, backend.Exact},
			{"frozen", time.Second, backend.Bounded},
			{"another", time.Second, backend.Exact},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), step.deadline)
			r, err := d.Take(ctx, takeTen(step.key))
			if exhausted := step.key == "one" || step.key == "another"; err != nil || r.Guarantee != step.want || r.Allowed == exhausted {
				t.Errorf("%s: allowed %t, %s because of %v, %v; want %s", step.key, r.Allowed, r.Guarantee, r.Cause, err, step.want)
			}
			cancel()
		}
	})
}
