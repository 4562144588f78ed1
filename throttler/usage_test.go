package throttler_test

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

// recentPolicy is the case of Chris O'Hara's "Rate limiting with Redis": one count that answers for the last 20 s,
// 30 s and 5 min alike.
var recentPolicy = limit.Policy{Name: "recent", Limits: []limit.Limit{
	limit.PerDay(100_000), limit.Sliding(1000, 5*time.Minute, 10*time.Second),
}}

// spendRecent charges 3 in each of 30 sub-buckets, gives 1 of the last back, and returns what Usage must say then.
func spendRecent(t *testing.T, th *throttler.Throttler, now *throttlertest.Clock) map[time.Duration]int64 {
	t.Helper()
	for i := range 30 {
		if i > 0 {
			now.Advance(10 * time.Second)
		}
		r, err := th.Reserve(t.Context(), "k", 3)
		if err != nil {
			t.Fatal(err)
		}
		if i == 29 {
			if err := r.Settle(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
		}
	}
	return map[time.Duration]int64{
		time.Nanosecond: 2, 10 * time.Second: 2, 20 * time.Second: 5, 25 * time.Second: 8, 30 * time.Second: 8,
		5 * time.Minute: 89,
	}
}

func checkUsage(t *testing.T, th *throttler.Throttler, want map[time.Duration]int64) {
	t.Helper()
	for interval, want := range want {
		if got, err := th.Usage(t.Context(), "k", interval); err != nil || got != want {
			t.Errorf("usage of the last %v = %d, %v, want %d", interval, got, err, want)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	now := throttlertest.NewClock()
	th := throttlertesting.New(t, throttler.Config{Backend: throttlertesting.NewMemory(t, now.Now), Policy: recentPolicy})
	checkUsage(t, th, map[time.Duration]int64{20 * time.Second: 0, 5 * time.Minute: 0})
	checkUsage(t, th, spendRecent(t, th, now))
	before := remaining(t, th, "k")
	checkUsage(t, th, map[time.Duration]int64{5 * time.Minute: 89})
	if got := remaining(t, th, "k"); got != before {
		t.Errorf("%d left after looking, %d before", got, before)
	}

	now.Advance(20 * time.Second)
	checkUsage(t, th, map[time.Duration]int64{20 * time.Second: 0, 30 * time.Second: 2, 5 * time.Minute: 83})
	now.Advance(5 * time.Minute)
	checkUsage(t, th, map[time.Duration]int64{30 * time.Second: 0, 5 * time.Minute: 0})
}

// Of several sliding limits the finest that covers the interval answers.
func TestUsageTakesTheFinest(t *testing.T) {
	t.Parallel()
	now := throttlertest.NewClock()
	th := throttlertesting.New(t, throttler.Config{Backend: throttlertesting.NewMemory(t, now.Now), Policy: limit.Policy{Limits: []limit.Limit{
		limit.Sliding(100, time.Hour, time.Minute), limit.Sliding(100, time.Minute, time.Second),
	}}})
	throttlertesting.Allow(t, th, "k")
	now.Advance(30 * time.Second)
	throttlertesting.Allow(t, th, "k")
	checkUsage(t, th, map[time.Duration]int64{10 * time.Second: 1, time.Minute: 2, time.Hour: 2})
}

// The failure policy decides requests. What only looks or mends fails without its backend.
func TestOutageFailsTheRest(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: recentPolicy})
	throttlertesting.Allow(t, th, "k")
	b.failWith(func(string) error { return throttlertesting.Outage(false) })
	if n, err := th.Usage(t.Context(), "k", time.Minute); err == nil {
		t.Errorf("Usage = %d without its backend, want an error", n)
	}
	if d, err := th.Peek(t.Context(), "k"); err == nil {
		t.Errorf("Peek = %+v without its backend, want an error", d)
	}
	if err := th.Reset(t.Context(), "k"); err == nil {
		t.Error("Reset worked without its backend")
	}
	if err := th.Ping(t.Context()); err == nil {
		t.Error("Ping found a backend that is down")
	}
}

func TestPeek(t *testing.T) {
	t.Parallel()
	now := throttlertest.NewClock()
	th := throttlertesting.New(t, throttler.Config{Backend: throttlertesting.NewMemory(t, now.Now), Policy: throttlertesting.One(limit.PerMinute(2))})
	for _, want := range []struct {
		allowed   bool
		remaining int64
		retry     time.Duration
	}{{true, 2, 0}, {true, 1, 0}, {false, 0, time.Minute}} {
		for range 2 { // the second look finds what the first did
			d, err := th.Peek(t.Context(), "k")
			if err != nil || d.Allowed != want.allowed || d.Remaining != want.remaining || d.RetryAfter != want.retry ||
				!d.ResetAt.Equal(now.Now().Add(time.Minute)) {
				t.Errorf("Peek = %+v, %v, want %+v", d, err, want)
			}
		}
		throttlertesting.Allow(t, th, "k")
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]limit.Limit{
		"fixed":   limit.PerHour(3),
		"sliding": limit.Sliding(3, time.Hour, time.Minute),
		"bucket":  limit.TokenBucket(1, time.Hour, 3),
	} {
		b := newSpy(t, nil)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(l), Processes: 1})
		spend := func(source throttler.Source) {
			for i := range 4 {
				if d := throttlertesting.Allow(t, th, "k"); d.Allowed != (i < 3) || d.Source != source {
					t.Errorf("%s: request %d by %v: allowed = %v", name, i+1, d.Source, d.Allowed)
				}
			}
		}
		away := func(string) error { return throttlertesting.Outage(false) }
		spend(throttler.Local)
		b.failWith(away)
		spend(throttler.Fallback)
		b.failWith(nil)
		if err := th.Reset(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		spend(throttler.Local)
		b.failWith(away) // what this process counted by itself went back, too
		spend(throttler.Fallback)
	}
}
