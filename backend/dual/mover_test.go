//go:build unix

package dual_test

import (
	"context"
	"errors"
	"testing"
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
