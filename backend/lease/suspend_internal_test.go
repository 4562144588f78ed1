package lease

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/testclock"
	"github.com/sluice-go/sluice/limit"
)

// TestLeaseOfASuspendedHost: a host is suspended while it holds a lease, past the end of the window. What is left of the lease
// is not spent then, and goes nowhere.
func TestLeaseOfASuspendedHost(t *testing.T) {
	for _, slept := range []time.Duration{0, 61 * time.Second, 8 * time.Hour} {
		t.Run(slept.String(), func(t *testing.T) {
			inner, err := memory.New(memory.Config{})
			if err != nil {
				t.Fatal(err)
			}
			lease, err := New(inner, Config{Batch: 100, Steady: true, Life: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Close()
			clock := newSpanClock()
			var asleep time.Duration // of which the monotonic clock knows nothing
			lease.clock = func() int64 {
				clock.compare(testclock.MonotonicAhead(time.Now().Add(asleep), -asleep))
				return int64(time.Since(clock.start)) + clock.extra.Load()
			}
			req := backend.Request{Key: "key", Policy: &limit.Policy{Limits: []limit.Limit{limit.Fixed(100_000, time.Minute)}}, Cost: 1}
			take := func() backend.Source {
				r, err := lease.Take(context.Background(), req)
				if err != nil || !r.Allowed {
					t.Fatalf("allowed %t, %v", r.Allowed, err)
				}
				return r.Source
			}
			for range 3 {
				take()
			}
			if source := take(); source != backend.Leased {
				t.Fatalf("decided by %s before", source)
			}
			asleep = slept
			if source := take(); (source == backend.Leased) != (slept == 0) {
				t.Errorf("decided by %s", source)
			}
		})
	}
}
