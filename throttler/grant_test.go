package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

// A customer who is blocked gets two more until the window ends.
func ExampleThrottler_Grant() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "exports", Limits: []limit.Limit{limit.PerDay(5)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	ctx := context.Background()

	if _, err := t.AllowN(ctx, "customer:7", 5); err != nil {
		log.Fatal(err)
	}
	if err := t.Grant(ctx, "customer:7", 2); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		decision, err := t.Allow(ctx, "customer:7")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(decision.Allowed, decision.Remaining)
	}
	// Output:
	// true 1
	// true 0
	// false 0
}

func TestGrant(t *testing.T) {
	t.Parallel()
	now := throttlertest.NewClock()
	b := newSpy(t, now.Now)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: limit.Policy{Limits: []limit.Limit{
		limit.Fixed(10, time.Hour), limit.Sliding(8, time.Minute, time.Second), limit.TokenBucket(1, time.Hour, 9),
	}}})
	if _, err := th.AllowN(t.Context(), "k", 7); err != nil {
		t.Fatal(err)
	}
	for _, grant := range []struct {
		extra int64
		want  []int64 // of each limit
	}{{2, []int64{5, 3, 4}}, {6, []int64{10, 8, 9}}, {1000, []int64{10, 8, 9}}} {
		if err := th.Grant(t.Context(), "k", grant.extra); err != nil {
			t.Fatal(err)
		}
		d, err := th.Peek(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		for s := range d.All() {
			if s.Remaining != grant.want[i] {
				t.Errorf("after a grant of %d: %d left of %v, want %d", grant.extra, s.Remaining, s.Limit, grant.want[i])
			}
			i++
		}
	}
	b.failWith(func(string) error { return throttlertesting.Outage(false) })
	if err := th.Grant(t.Context(), "k", 1); err == nil {
		t.Error("Grant worked without its backend")
	}
}

// What this process counted in an outage is given back in its share, and at the pace of its share.
func TestGrantReachesTheFallback(t *testing.T) {
	t.Parallel()
	for _, l := range []limit.Limit{limit.PerHour(100), limit.Sliding(100, time.Hour, time.Minute), limit.TokenBucket(10, time.Hour, 100)} {
		b := newSpy(t, nil)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(l), Processes: 10})
		away := func(string) error { return throttlertesting.Outage(false) }
		b.failWith(away)
		for range 11 {
			throttlertesting.Allow(t, th, "k")
		}
		b.failWith(nil)
		if err := th.Grant(t.Context(), "k", 31); err != nil {
			t.Fatal(err)
		}
		b.failWith(away)
		for i := range 5 {
			if d := throttlertesting.Allow(t, th, "k"); d.Allowed != (i < 4) || d.Source != throttler.Fallback {
				t.Errorf("%v: request %d: %v by %v", l, i+1, d.Allowed, d.Source)
			}
		}
	}
}

// A Lease that denies by what it knows asks again after a grant, and the leases that it holds stay.
func TestGrantThroughALease(t *testing.T) {
	t.Parallel()
	l, err := lease.New(throttlertesting.NewMemory(t, nil), lease.Config{Recheck: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	th := throttlertesting.New(t, throttler.Config{Backend: l, Policy: throttlertesting.One(limit.PerDay(50))})
	admitted := 0
	for range 100 {
		if throttlertesting.Allow(t, th, "k").Allowed {
			admitted++
		}
	}
	if err := th.Grant(t.Context(), "k", 7); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if throttlertesting.Allow(t, th, "k").Allowed {
			admitted++
		}
	}
	if admitted != 57 {
		t.Errorf("%d of 50 and 7 granted were admitted", admitted)
	}
	bad := throttlertesting.New(t, throttler.Config{Backend: bare{l}, Policy: throttlertesting.One(limit.PerDay(50))})
	if err := bad.Grant(t.Context(), "k", 1); !errors.Is(err, throttler.ErrUnsupported) {
		t.Errorf("Grant without a backend.Granter: %v", err)
	}
}
