package throttler_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

// A counter denies nothing and is near nothing, and beside a limit it counts what passes that.
func TestCounter(t *testing.T) {
	t.Parallel()
	now := throttlertest.NewClock()
	near := 0
	observer := newNearLimit(t, insight.NearLimitConfig{Share: 1, Notify: func(insight.NearLimitEvent) { near++ }})
	counter := limit.Counter(time.Hour, time.Minute)
	alone := throttlertesting.New(t, throttler.Config{
		Backend: throttlertesting.NewMemory(t, now.Now), Policy: throttlertesting.One(counter), Observer: observer,
	})
	for i := range 1000 {
		d, err := alone.AllowN(t.Context(), "k", 1<<20)
		if err != nil || !d.Allowed || d.Limit != counter || !strings.HasPrefix(d.String(), "allowed: counted by count/1h~1m, full in ") {
			t.Fatalf("request %d: %v, %v", i, d, err)
		}
	}
	checkUsage(t, alone, map[time.Duration]int64{time.Minute: 1000 << 20, time.Hour: 1000 << 20})
	now.Advance(30 * time.Minute)
	throttlertesting.Allow(t, alone, "k")
	checkUsage(t, alone, map[time.Duration]int64{10 * time.Minute: 1, time.Hour: 1000<<20 + 1})
	if err := observer.Close(); err != nil || near != 0 {
		t.Errorf("%d notices of a counter, %v", near, err)
	}

	beside := throttlertesting.New(t, throttler.Config{Backend: throttlertesting.NewMemory(t, now.Now), Policy: limit.Policy{
		Limits: []limit.Limit{counter, limit.PerHour(3), limit.Fixed(limit.MaxCount, time.Minute)},
	}})
	for i := range 5 {
		if d := throttlertesting.Allow(t, beside, "k"); d.Allowed != (i < 3) || d.Limit != limit.PerHour(3) {
			t.Errorf("request %d: %v", i, d)
		}
	}
	checkUsage(t, beside, map[time.Duration]int64{10 * time.Minute: 3})
	huge := throttlertesting.New(t, throttler.Config{Policy: limit.Policy{
		Limits: []limit.Limit{counter, limit.Fixed(limit.MaxCount, time.Minute)},
	}})
	if d := throttlertesting.Allow(t, huge, "k"); d.Limit.IsCounter() {
		t.Errorf("a counter binds beside a limit: %v", d)
	}
}

// A lease charges ahead, which would falsify what a counter alone says.
func TestCounterIsNotLeased(t *testing.T) {
	t.Parallel()
	l, err := lease.New(throttlertesting.NewMemory(t, nil), lease.Config{Batch: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	th := throttlertesting.New(t, throttler.Config{Backend: l, Policy: throttlertesting.One(limit.Counter(time.Hour, time.Minute))})
	for range 50 {
		throttlertesting.Allow(t, th, "k")
	}
	checkUsage(t, th, map[time.Duration]int64{time.Hour: 50})
	if stats := l.Stats(); stats.Fetches != 0 || stats.Leased != 0 {
		t.Errorf("%+v, want no leases", stats)
	}
}

// In an outage a counter counts, and its share is no limit either.
func TestCounterInAnOutage(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	b.failWith(func(string) error { return throttlertesting.Outage(false) })
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.Counter(time.Hour, time.Minute))})
	if d := throttlertesting.Allow(t, th, "k"); !d.Allowed || !d.Limit.IsCounter() || d.Source != throttler.Fallback {
		t.Errorf("%v", d)
	}
	_, err := throttler.New(throttler.Config{
		Policy: throttlertesting.One(limit.PerHour(1)), Failure: throttler.FailOpen, OpenCap: limit.Counter(time.Hour, time.Minute),
	})
	if err == nil || strings.Join(fields(err), "") != "OpenCap" {
		t.Errorf("a counter as OpenCap: %v", err)
	}
}
