package throttler_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// looked counts the peeks and takes that a spy sees.
func looked(s *spy) (peeks, takes *atomic.Int64) {
	peeks, takes = new(atomic.Int64), new(atomic.Int64)
	s.failWith(func(call string) error {
		if call == "peek" {
			peeks.Add(1)
		} else {
			takes.Add(1)
		}
		return nil
	})
	return peeks, takes
}

func TestPrecheck(t *testing.T) {
	for _, test := range []struct {
		mode         throttler.Precheck
		peeks, takes int64 // for 3 requests that pass and 100 that don't
	}{
		{throttler.PrecheckNever, 0, 103},
		{throttler.PrecheckAlways, 103, 3},
		{throttler.PrecheckAuto, 55, 48}, // 45 denials in a row are half of the mean
	} {
		t.Run(test.mode.String(), func(t *testing.T) {
			s := newSpy(t, newClock().now)
			peeks, takes := looked(s)
			th := newThrottler(t, throttler.Config{Backend: s, Policy: one(limit.PerHour(3)), Precheck: test.mode})
			for i := range 103 {
				if d := allow(t, th, "alice"); d.Allowed != (i < 3) {
					t.Fatalf("request %d: allowed %t", i, d.Allowed)
				}
			}
			if peeks.Load() != test.peeks || takes.Load() != test.takes {
				t.Errorf("%d peeks and %d takes, want %d and %d", peeks.Load(), takes.Load(), test.peeks, test.takes)
			}
		})
	}
}

// TestPrecheckAuto begins where many are denied and ends where few are, policy by policy.
func TestPrecheckAuto(t *testing.T) {
	s := newSpy(t, newClock().now)
	peeks, takes := looked(s)
	tight, wide := one(limit.PerHour(1)), one(limit.PerHour(1_000_000))
	wide.Name = "wide"
	th := newThrottler(t, throttler.Config{
		Backend: s, Policy: tight, Precheck: throttler.PrecheckAuto,
		PolicyFor: func(_ context.Context, key string) *limit.Policy {
			if key == "wide" {
				return &wide
			}
			return nil
		},
	})
	for range 200 {
		allow(t, th, "tight")
	}
	if peeks.Load() == 0 {
		t.Fatal("never looked where all but one were denied")
	}
	peeks.Store(0)
	for range 200 {
		allow(t, th, "wide")
	}
	if n := peeks.Load(); n != 0 {
		t.Errorf("looked %d times under a policy that denied nobody", n)
	}
	for i := range 200 {
		allow(t, th, "tight"+string(rune('a'+i))) // other keys of the same policy, all admitted
	}
	last, before := peeks.Load(), takes.Load()
	for i := range 50 {
		allow(t, th, "tight"+string(rune(1000+i)))
	}
	if peeks.Load() != last || takes.Load() != before+50 || last == 0 || last > 100 {
		t.Errorf("%d looks until enough were admitted, and %d after that", last, peeks.Load()-last)
	}
}

// TestPrecheckFails: a look that fails or takes long costs 25 ms at most, and the take decides.
func TestPrecheckFails(t *testing.T) {
	s := newSpy(t, newClock().now)
	s.failWith(func(call string) error {
		if call == "peek" {
			return outage(false)
		}
		return nil
	})
	th := newThrottler(t, throttler.Config{Backend: s, Policy: one(limit.PerHour(1)), Precheck: throttler.PrecheckAlways})
	if d := allow(t, th, "alice"); !d.Allowed || d.Guarantee != throttler.Exact {
		t.Errorf("allowed %t, %s", d.Allowed, d.Guarantee)
	}

	hangs := newThrottler(t, throttler.Config{Backend: hanging{newMemory(t, nil)}, Policy: one(limit.PerHour(1)), Precheck: throttler.PrecheckAlways})
	start := time.Now()
	if d := allow(t, hangs, "alice"); !d.Allowed {
		t.Error("denied")
	}
	if took := time.Since(start); took < 25*time.Millisecond || took > 10*time.Second {
		t.Errorf("waited %s for a look that hangs", took)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if _, err := hangs.Allow(ctx, "alice"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("past the caller's deadline: %v", err)
	}
}

// hanging is a backend whose peeks never answer.
type hanging struct{ *memory.Memory }

func (hanging) Peek(ctx context.Context, _ backend.Request) (backend.Result, error) {
	<-ctx.Done()
	return backend.Result{}, ctx.Err()
}

func TestPrecheckConfig(t *testing.T) {
	for _, cfg := range []throttler.Config{
		{Policy: one(limit.PerHour(1)), Precheck: 3},
		{Policy: one(limit.PerHour(1)), Precheck: throttler.PrecheckAuto, Backend: struct{ backend.Backend }{newMemory(t, nil)}},
	} {
		var e *limit.Error
		if _, err := throttler.New(cfg); !errors.As(err, &e) || e.Field != "Precheck" {
			t.Errorf("%v", err)
		}
	}
}
