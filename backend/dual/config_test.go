//go:build unix

package dual_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func TestNewDualRefuses(t *testing.T) {
	old, new := backendtesting.NewMemory(t, memory.Config{}), backendtesting.NewMemory(t, memory.Config{})
	inner := backendtesting.NewDual(t, dual.Config{Old: backendtesting.NewMemory(t, memory.Config{}), New: backendtesting.NewMemory(t, memory.Config{}), Decide: backendtesting.Constant(false)})
	for name, c := range map[string]struct {
		cfg  dual.Config
		want []string
	}{
		"nothing":          {dual.Config{}, []string{"Decide", "New", "Old"}},
		"nothing to carry": {dual.Config{CarryOver: true}, []string{"Decide", "New", "Old"}},
		"a Dual":           {dual.Config{Old: old, New: inner, Decide: backendtesting.Constant(true), CarryOver: true}, []string{"New"}},
		"no Sealer":        {dual.Config{Old: backendtesting.OnlyTakes{Backend: old}, New: new, Decide: backendtesting.Constant(true), CarryOver: true}, []string{"Old"}},
		"too long":         {dual.Config{Old: old, New: new, Decide: backendtesting.Constant(true), Settle: limit.MaxWindow + 1}, []string{"Settle"}},
		"everything": {dual.Config{Old: backendtesting.OnlyTakes{Backend: old}, CarryOver: true, Settle: -1, ShadowQueue: -1, ShadowWorkers: -1},
			[]string{"Decide", "New", "Old", "Settle", "ShadowQueue", "ShadowWorkers"}},
	} {
		d, err := dual.New(c.cfg)
		if d != nil || err == nil {
			t.Errorf("%s: got %v, %v", name, d, err)
			continue
		}
		var got []string
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			var refused *limit.Error
			if !errors.As(e, &refused) || refused.Bound == "" || refused.Value == "" {
				t.Errorf("%s: %v is not a complete *limit.Error", name, e)
				continue
			}
			got = append(got, strings.TrimPrefix(refused.Field, "dual: "))
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s: refuses %q, want %q", name, got, c.want)
		}
	}
	for _, b := range []backend.Backend{old, new, inner} {
		if _, err := b.Take(context.Background(), takeTen("k")); err != nil {
			t.Errorf("a side of a Dual that wasn't made: %v", err)
		}
	}
	for name, cfg := range map[string]dual.Config{ // nothing but takes is asked for without CarryOver
		"bare sides": {Old: backendtesting.OnlyTakes{Backend: old}, New: inner, Decide: backendtesting.Constant(true)},
		"longest":    {Old: old, New: new, Decide: backendtesting.Constant(true), CarryOver: true, Settle: limit.MaxWindow},
	} {
		if _, err := dual.New(cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewDualRefusesOneBackendTwice(t *testing.T) {
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var bad *limit.Error
	if _, err := dual.New(dual.Config{Old: m, New: m, Decide: backendtesting.Constant(true)}); !errors.As(err, &bad) {
		t.Errorf("got %v, want a *limit.Error", err)
	}
}

// TestDualVersionTooLarge: a version that leaves no room for the side is refused before any call.
func TestDualVersionTooLarge(t *testing.T) {
	const largest = 1<<52 - 2
	s, l := newStage(t), &lever{}
	d := s.process(t, l, dual.Config{})
	ctx := context.Background()
	for _, version := range []uint64{largest + 1, math.MaxInt64, math.MaxUint64} {
		l.set(version, true)
		_, takeErr := d.Take(ctx, takeTen("k"))
		_, peekErr := d.Peek(ctx, takeTen("k"))
		_, loadErr := d.Load(ctx, takeTen("k"))
		for op, err := range map[string]error{
			"take": takeErr, "peek": peekErr, "load": loadErr, "reset": d.Reset(ctx, takeTen("k")),
			"seed": d.Seed(ctx, takeTen("k"), state.State{}), "refund": d.Refund(ctx, takeTen("k"), backendtesting.Receipt(t), 1),
		} {
			var refused *limit.Error
			if !errors.As(err, &refused) {
				t.Errorf("%s under version %d: %v, want a *limit.Error", op, version, err)
			}
		}
	}
	if calls := s.read(); calls != "" {
		t.Errorf("what was refused made calls: %s", calls)
	}
	for _, useNew := range []bool{false, true} { // the later one is the larger
		l.set(largest, useNew)
		if r := backendtesting.MustTake(t, d, takeTen("k")); !r.Allowed {
			t.Error("the largest version is denied")
		}
	}
}
