package throttler_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

// A page of results may be shorter than the client asked for.
func ExampleThrottler_AllowUpTo() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "rows", Limits: []limit.Limit{limit.PerMinute(250)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()

	for range 4 {
		rows, decision, err := t.AllowUpTo(context.Background(), "user:42", 100)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(rows, decision.Allowed)
	}
	// Output:
	// 100 true
	// 100 true
	// 50 true
	// 0 false
}

// Without others, AllowUpTo takes what every limit has left, and no less; a denial waits for 1.
func TestAllowUpToTakesWhatIsLeft(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		now := throttlertest.NewClock()
		quota := rapid.Int64Range(1, 40)
		var limits []limit.Limit
		for i, l := range []limit.Limit{
			limit.Fixed(quota.Draw(rt, "fixed"), time.Minute),
			limit.Sliding(quota.Draw(rt, "sliding"), time.Minute, 10*time.Second),
			limit.TokenBucket(quota.Draw(rt, "rate"), time.Second, quota.Draw(rt, "burst")),
		} {
			if rapid.IntRange(0, 2).Draw(rt, fmt.Sprint("without ", i)) > 0 {
				limits = append(limits, l)
			}
		}
		if len(limits) == 0 {
			return
		}
		th := throttlertesting.New(t, throttler.Config{
			Backend: throttlertesting.NewMemory(t, now.Now), Policy: limit.Policy{Limits: limits},
		})
		for range rapid.IntRange(1, 12).Draw(rt, "calls") {
			now.Advance(time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "ms")) * time.Millisecond)
			cost := rapid.Int64Range(1, 50).Draw(rt, "cost")
			before, err := th.Peek(t.Context(), "k")
			if err != nil {
				rt.Fatal(err)
			}
			want := cost
			for s := range before.All() {
				want = min(want, s.Remaining)
			}
			taken, d, err := th.AllowUpTo(t.Context(), "k", cost)
			if err != nil || taken != want || d.Allowed != (want > 0) {
				rt.Fatalf("%v: took %d of %d, allowed = %v, %v, want %d", limits, taken, cost, d.Allowed, err, want)
			}
			if d.RetryAfter != before.RetryAfter && want == 0 {
				rt.Fatalf("%v: wait %v for %d, and %v for 1", limits, d.RetryAfter, cost, before.RetryAfter)
			}
			after, err := th.Peek(t.Context(), "k")
			if err != nil {
				rt.Fatal(err)
			}
			if before.Remaining-after.Remaining > taken { // of one limit or the other
				rt.Fatalf("%d left of %d after %d", after.Remaining, before.Remaining, taken)
			}
		}
	})
}

// Callers who take parts at the same time take all together what there is, and no more: promise P1.
func TestAllowUpToIsExact(t *testing.T) {
	t.Parallel()
	const quota, callers = 1003, 16
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerDay(quota))})
	var sum atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for range 200 {
				taken, d, err := th.AllowUpTo(t.Context(), "k", int64(7+i))
				if err != nil || d.Allowed != (taken > 0) {
					t.Errorf("%d, %+v, %v", taken, d, err)
				}
				sum.Add(taken)
			}
		})
	}
	all.Wait()
	if got := sum.Load(); got != quota {
		t.Errorf("took %d in all, want %d", got, quota)
	}
}

// One call if the cost fits, two if a part does.
func TestAllowUpToCalls(t *testing.T) {
	t.Parallel()
	b, book := newSpy(t, nil), &notes{}
	th := throttlertesting.New(t, throttler.Config{
		Backend: b, Policy: throttlertesting.One(limit.PerDay(10)), Observer: book, Allow: []string{"friend"}, Deny: []string{"foe"},
	})
	for _, want := range []struct {
		key                string
		cost, taken, calls int64
	}{{"k", 7, 7, 1}, {"k", 7, 3, 2}, {"k", 7, 0, 2}, {"k", 1, 0, 1}, {"other", 1000, 10, 1}, {"friend", 1000, 1000, 0}, {"foe", 7, 0, 0}} {
		before := b.calls.Load()
		taken, d, err := th.AllowUpTo(t.Context(), want.key, want.cost)
		if calls := b.calls.Load() - before; err != nil || taken != want.taken || d.Allowed != (taken > 0) || calls != want.calls {
			t.Errorf("%+v: %d in %d calls, %+v, %v", want, taken, calls, d, err)
		}
	}
	for i, want := range []int64{7, 3, 1, 1, 10} {
		if e := book.ended[i]; e.Cost != want || e.Op != throttler.OpTake {
			t.Errorf("event %d: %v of cost %d, want %d", i, e.Op, e.Cost, want)
		}
	}
}

// In an outage this process gives a part of its own share.
func TestAllowUpToInAnOutage(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	b.failWith(func(string) error { return throttlertesting.Outage(false) })
	for failure, want := range map[throttler.FailurePolicy][]int64{
		throttler.FailLocal: {7, 3, 0}, throttler.FailClosed: {0, 0}, throttler.FailOpen: {5, 0},
	} {
		cfg := throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerDay(100)), Processes: 10, Failure: failure}
		if failure == throttler.FailOpen {
			cfg.OpenCap = limit.PerDay(5)
		}
		th := throttlertesting.New(t, cfg)
		for _, want := range want {
			taken, d, err := th.AllowUpTo(t.Context(), "k", 7)
			if err != nil || taken != want || d.Allowed != (want > 0) || d.Source != throttler.Fallback {
				t.Errorf("%v: %d, %+v, %v, want %d", failure, taken, d, err, want)
			}
		}
		if taken, _, err := th.AllowUpTo(t.Context(), "new", 1000); failure == throttler.FailLocal && (taken != 10 || err != nil) {
			t.Errorf("%d of 1000, %v, want the share of 10", taken, err)
		}
	}
}

// PeekN tells whether a cost would pass, and charges nothing.
func TestPeekN(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerDay(10)), Allow: []string{"friend"}})
	if _, err := th.AllowN(t.Context(), "k", 6); err != nil {
		t.Fatal(err)
	}
	for cost, want := range map[int64]bool{1: true, 4: true, 5: false, 10: false} {
		d, err := th.PeekN(t.Context(), "k", cost)
		if err != nil || d.Allowed != want || d.Remaining != 4 || (d.RetryAfter == 0) != want {
			t.Errorf("PeekN of %d = %+v, %v", cost, d, err)
		}
	}
	if d, err := th.PeekN(t.Context(), "friend", 11); err != nil || !d.Allowed || d.Source != throttler.Listed {
		t.Errorf("PeekN of a key on the allow list = %+v, %v", d, err)
	}
}
