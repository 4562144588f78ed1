package limitview_test

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/limitview"
	"github.com/sluice-go/sluice/limit"
)

func TestName(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]limit.Limit{
		"daily": limit.PerDay(5).Named("daily"), "5/24h": limit.PerDay(5), "10/1s+20": limit.TokenBucket(10, time.Second, 20),
	} {
		if got := limitview.Name(&l); got != want {
			t.Errorf("%v: %q, want %q", l, got, want)
		}
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		l    limit.Limit
		want time.Duration
	}{
		{limit.PerHour(5), time.Hour},
		{limit.Sliding(5, time.Hour, time.Minute), time.Hour},
		{limit.TokenBucket(10, time.Second, 20), 2 * time.Second},
		{limit.TokenBucket(3, time.Second, 1), 333334 * time.Microsecond}, // a third, rounded up
	} {
		if got := limitview.Window(&test.l); got != test.want {
			t.Errorf("%v: %v, want %v", test.l, got, test.want)
		}
	}
}

func TestUntilMore(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	bucket := limit.TokenBucket(1, time.Second, 10)
	for name, test := range map[string]struct {
		s    limit.Status
		want time.Duration
	}{
		"a window":             {limit.Status{Limit: limit.PerHour(5), Remaining: 1, ResetAt: now.Add(time.Minute)}, time.Minute},
		"a denial":             {limit.Status{Limit: limit.PerHour(5), ResetAt: now.Add(time.Minute), RetryAfter: time.Second}, time.Second},
		"a bucket's next":      {limit.Status{Limit: bucket, Remaining: 7, ResetAt: now.Add(2500 * time.Millisecond)}, 500 * time.Millisecond},
		"a full bucket":        {limit.Status{Limit: bucket, Remaining: 10, ResetAt: now}, 0},
		"a reset that is over": {limit.Status{Limit: limit.PerHour(5), ResetAt: now.Add(-time.Second)}, -time.Second},
	} {
		if got := limitview.UntilMore(&test.s, now); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestRoundUp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		d, unit time.Duration
		want    int64
	}{
		{0, time.Second, 0}, {1, time.Second, 1}, {time.Second, time.Second, 1}, {time.Second + 1, time.Second, 2},
		{1500 * time.Microsecond, time.Millisecond, 2}, {-1, time.Second, 0}, {-1500 * time.Millisecond, time.Second, -1},
		{limit.Never, time.Second, 9223372037},
	} {
		if got := limitview.RoundUp(test.d, test.unit); got != test.want {
			t.Errorf("%v in %v: %d, want %d", test.d, test.unit, got, test.want)
		}
	}
}
