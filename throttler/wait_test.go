package throttler_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// spread is the most that Wait adds, so that not all come back at once.
const spread = 20 * time.Millisecond

func TestWait(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		limit limit.Limit
		spend int64 // before
		cost  int64
		want  time.Duration
	}{
		{"at once", limit.Fixed(10, 10*time.Second), 6, 4, 0},
		{"fixed", limit.Fixed(10, 10*time.Second), 10, 1, 10 * time.Second},
		{"sliding", limit.Sliding(10, 10*time.Second, time.Second), 8, 3, 10 * time.Second},
		{"bucket", limit.TokenBucket(1, time.Second, 10), 10, 3, 3 * time.Second},
		{"bucket, a part is there", limit.TokenBucket(1, time.Second, 10), 8, 3, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSpy(t, time.Now)
				th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(test.limit)})
				if _, err := th.AllowN(t.Context(), "k", test.spend); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				d, err := th.Wait(t.Context(), "k", test.cost)
				if err != nil || !d.Allowed {
					t.Fatalf("Wait = %+v, %v", d, err)
				}
				if took := time.Since(start); took < test.want || took > test.want+spread {
					t.Errorf("took %v, want %v and at most %v more", took, test.want, spread)
				}
				calls := int64(2)
				if test.want > 0 {
					calls = 3 // the denial and the admission
				}
				if n := b.calls.Load(); n != calls {
					t.Errorf("%d calls reached the backend, want %d", n, calls)
				}
				if charged := d.Remaining + test.cost; d.Limit.Algorithm == limit.FixedWindow && test.want > 0 && charged != 10 {
					t.Errorf("%d remaining after a cost of %d: charged more than once", d.Remaining, test.cost)
				}
			})
		})
	}
}

func TestWaitGivesUp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		timeout time.Duration // of the context
		cancel  time.Duration // 0: never
		took    time.Duration
		is      error
	}{
		{"the deadline is too early", 9 * time.Second, 0, 0, context.DeadlineExceeded},
		{"the deadline is the reset", 10 * time.Second, 0, 0, context.DeadlineExceeded},
		{"cancelled", time.Hour, 3 * time.Second, 3 * time.Second, context.Canceled},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSpy(t, time.Now)
				th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.Fixed(1, 10*time.Second))})
				throttlertesting.Allow(t, th, "k")
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), test.timeout)
				defer cancel()
				if test.cancel > 0 {
					time.AfterFunc(test.cancel, cancel)
				}
				d, err := th.Wait(ctx, "k", 1)
				if !errors.Is(err, test.is) || d.Allowed || d.RetryAfter != 10*time.Second {
					t.Errorf("Wait = %+v, %v, want the denial and %v", d, err, test.is)
				}
				if took := time.Since(start); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				if n := b.calls.Load(); n != 2 {
					t.Errorf("%d calls reached the backend, want 2", n)
				}
			})
		})
	}
}

// A deadline just behind the reset is kept: the spread must not eat what is between them.
func TestWaitCloseToTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := throttlertesting.New(t, throttler.Config{
			Backend: throttlertesting.NewMemory(t, time.Now), Policy: throttlertesting.One(limit.Fixed(1, 10*time.Second)),
		})
		throttlertesting.Allow(t, th, "k")
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
			if d, err := th.Wait(ctx, "k", 1); err != nil || !d.Allowed {
				t.Fatalf("Wait = %+v, %v", d, err)
			}
			cancel()
		}
	})
}

// All who wait pass in the end, no window holding more than its Max.
func TestWaitTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiters, perWindow, window = 10, 3, 10 * time.Second
		th := throttlertesting.New(t, throttler.Config{
			Backend: throttlertesting.NewMemory(t, time.Now), Policy: throttlertesting.One(limit.Fixed(perWindow, window).Aligned()),
		})
		start := time.Now()
		var mu sync.Mutex
		passed := map[int]int{} // by window
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				if _, err := th.Wait(t.Context(), "k", 1); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				passed[int(time.Since(start)/window)]++
			})
		}
		wg.Wait()
		for window, n := range passed {
			if want := min(perWindow, waiters-window*perWindow); n != want {
				t.Errorf("%d passed in window %d, want %d", n, window, want)
			}
		}
	})
}

// During an outage that denies, Wait goes on asking until the backend is back, also where the denial is by a window of this
// process's own counts.
func TestWaitThroughAnOutage(t *testing.T) {
	t.Parallel()
	for _, failure := range []throttler.FailurePolicy{throttler.FailClosed, throttler.FailLocal, throttler.FailOpen} {
		synctest.Test(t, func(t *testing.T) {
			b := newSpy(t, time.Now)
			b.failWith(func(string) error { return throttlertesting.Outage(false) })
			cfg := throttler.Config{
				Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), Failure: failure, RetryAfter: 2 * time.Second,
			}
			if failure == throttler.FailOpen {
				cfg.OpenCap = limit.PerHour(1)
			}
			th := throttlertesting.New(t, cfg)
			if d := throttlertesting.Allow(t, th, "k"); d.Allowed == (failure == throttler.FailClosed) {
				t.Errorf("%v: %v", failure, d)
			}
			start := time.Now()
			time.AfterFunc(5*time.Second, func() { b.failWith(nil) })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			d, err := th.Wait(ctx, "k", 1)
			if err != nil || !d.Allowed || d.Source != throttler.Local {
				t.Errorf("%v: Wait = %+v, %v", failure, d, err)
			}
			if took := time.Since(start); took < 6*time.Second || took > 6*time.Second+3*spread {
				t.Errorf("%v: took %v, want the third try after 6s", failure, took)
			}
		})
	}
}

// Close wakes whoever waits, and neither asks nor charges for them.
func TestCloseEndsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newSpy(t, time.Now)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.Fixed(1, time.Hour))})
		throttlertesting.Allow(t, th, "k")
		start := time.Now()
		time.AfterFunc(3*time.Second, func() { _ = th.Close() })
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				d, err := th.Wait(context.Background(), "k", 1)
				if !errors.Is(err, throttler.ErrClosed) || d.Allowed || d.RetryAfter != time.Hour {
					t.Errorf("Wait = %+v, %v, want the denial and ErrClosed", d, err)
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took != 3*time.Second || b.calls.Load() != 6 {
			t.Errorf("took %v and %d calls, want 3s and 6", took, b.calls.Load())
		}
	})
}
