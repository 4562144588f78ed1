package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
)

// Whoever asks with an exhausted key of his own, many times at once and in two processes, denies nobody who shares another key
// with him: not in either order of the keys, not with a local view.
func TestAllowAllExhaustedKeyDeniesNobodyElse(t *testing.T) {
	t.Parallel()
	const processes, atOnce, quota, requests = 2, 32, 20, 15
	server := testserver.Redis(t)
	for _, test := range []struct{ userFirst, lease bool }{{true, false}, {false, false}, {true, true}, {false, true}} {
		t.Run(fmt.Sprintf("userFirst=%t,lease=%t", test.userFirst, test.lease), func(t *testing.T) {
			var all []*throttler.Throttler
			for range processes {
				r, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, redisbackend.Config{
					Prefix: fmt.Sprintf("%t-%t:", test.userFirst, test.lease), Timeout: 30 * time.Second,
				})
				if err != nil {
					t.Fatal(err)
				}
				var b backend.Backend = r
				if test.lease {
					if b, err = lease.New(r, lease.Config{}); err != nil {
						t.Fatal(err)
					}
				}
				t.Cleanup(func() { _ = b.Close() })
				all = append(all, throttlertesting.New(t, throttler.Config{
					Backend: b, Policy: throttlertesting.One(limit.PerHour(quota)), Failure: throttler.FailError,
				}))
			}
			keys := func(address string) []string {
				k := []string{"user", address}
				if !test.userFirst {
					slices.Reverse(k)
				}
				return k
			}
			if d, err := all[0].AllowN(t.Context(), "exhausted", quota); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			var attackers sync.WaitGroup
			var stop atomic.Bool
			for _, th := range all {
				for range atOnce {
					attackers.Go(func() {
						for !stop.Load() {
							runtime.Gosched() // a local view denies without a pause
							if d, err := th.AllowAll(t.Context(), keys("exhausted"), 1); err != nil || d.Allowed {
								t.Errorf("an exhausted key: %+v, %v", d, err)
								return
							}
						}
					})
				}
			}
			denied := 0
			for i := range requests {
				d, err := all[i%processes].AllowAll(t.Context(), keys(fmt.Sprint("address ", i)), 1)
				if err != nil {
					t.Fatal(err)
				}
				if !d.Allowed {
					denied++
					t.Logf("request %d: %d left, retry after %s", i, d.Remaining, d.RetryAfter)
				}
			}
			stop.Store(true)
			attackers.Wait()
			if denied > 0 {
				t.Errorf("%d of %d requests denied", denied, requests)
			}
			// A machine that is so busy that a refund takes longer than a second loses it.
			if left := remaining(t, all[0], "user"); left > quota-requests || left < quota-requests-processes {
				t.Errorf("%d left, want %d", left, quota-requests)
			}
		})
	}
}

// tidal is a backend whose takes take a while, and that knows what is charged to a key at most.
type tidal struct {
	*spy
	peekTime, refundTime time.Duration

	mu            sync.Mutex // guards what follows
	charged, most map[string]int
	takes, peeks  int
}

func newTidal(t *testing.T) *tidal {
	return &tidal{
		spy: newSpy(t, time.Now), peekTime: 2 * time.Millisecond, refundTime: 50 * time.Millisecond,
		charged: map[string]int{}, most: map[string]int{},
	}
}

func (b *tidal) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	time.Sleep(time.Millisecond)
	r, err := b.spy.Take(ctx, req)
	b.mu.Lock()
	b.takes++
	if r.Allowed {
		b.charged[req.Key]++
		b.most[req.Key] = max(b.most[req.Key], b.charged[req.Key])
	}
	b.mu.Unlock()
	time.Sleep(time.Millisecond)
	return r, err
}

func (b *tidal) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	b.mu.Lock()
	b.peeks++
	b.mu.Unlock()
	select {
	case <-time.After(b.peekTime):
		return b.spy.Peek(ctx, req)
	case <-ctx.Done():
		return backend.Result{}, ctx.Err()
	}
}

func (b *tidal) Refund(ctx context.Context, req backend.Request, r state.Receipt, n int64) error {
	time.Sleep(b.refundTime)
	b.mu.Lock()
	b.charged[req.Key]--
	b.mu.Unlock()
	return b.spy.Refund(ctx, req, r, n)
}

// Beside an exhausted key one call in a process charges another key, in any order, and then none; and healthy keys cost no look.
func TestAllowAllChargesBesideStrangers(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"small user other", "user other small", "user small other"} {
		synctest.Test(t, func(t *testing.T) {
			b := newTidal(t)
			th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(1000)), PolicyFor: byName})
			if d, err := th.AllowN(t.Context(), "small", 3); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			wave := func() {
				var all sync.WaitGroup
				for range 32 {
					all.Go(func() {
						if d, err := th.AllowAll(t.Context(), strings.Fields(order), 1); err != nil || d.Allowed {
							t.Errorf("%+v, %v, want a denial", d, err)
						}
					})
				}
				all.Wait()
			}
			wave()
			if most := max(b.most["user"], b.most["other"]); most > 1 {
				t.Errorf("%s: charged for %d at once", order, most)
			}
			clear(b.most)
			takes, peeks := b.takes, b.peeks
			wave()
			if n := b.takes - takes; len(b.most) > 0 || n != 32 || b.peeks != peeks {
				t.Errorf("%s: once it is known, %v are charged, and %d takes and %d peeks made of 32 requests", order, b.most, n, b.peeks-peeks)
			}
			takes, peeks = b.takes, b.peeks
			for i := range 10 { // one after the other, no look is worth while
				if d, err := th.AllowAll(t.Context(), []string{"user", fmt.Sprint(i)}, 1); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			}
			if b.takes-takes != 20 || b.peeks != peeks {
				t.Errorf("10 healthy requests made %d takes and %d peeks", b.takes-takes, b.peeks-peeks)
			}
		})
	}
}

// What a call has charged and may give back denies others in the process for a moment only, and has a short RetryAfter.
func TestAllowAllRetryAfterAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTidal(t)
		book := &notes{}
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), PolicyFor: byName, Observer: book})
		_, _ = th.AllowN(t.Context(), "small", 2)
		_, _ = th.AllowAll(t.Context(), []string{"small", "one"}, 1) // small is used up, and known to be
		_ = th.Reset(t.Context(), "small")
		_, _ = th.AllowN(t.Context(), "empty", 10)
		go func() { // charges small first, and then finds the other one empty
			if d, err := th.AllowAll(t.Context(), []string{"empty", "small"}, 3); err != nil || d.Allowed {
				t.Errorf("%+v, %v", d, err)
			}
		}()
		time.Sleep(3 * time.Millisecond)
		synctest.Wait()
		before := len(book.ended)
		wait := func(how string, d throttler.Decision, err error) {
			if err != nil || d.Allowed || d.RetryAfter > 100*time.Millisecond || d.RetryAfter <= 0 {
				t.Errorf("%s: %+v, %v", how, d, err)
			}
		}
		var all sync.WaitGroup
		all.Go(func() { d, err := th.Allow(t.Context(), "small"); wait("Allow", d, err) })
		all.Go(func() {
			d, err := th.AllowAll(t.Context(), []string{"small", "two"}, 1)
			wait("AllowAll", d, err)
		})
		all.Go(func() {
			r, err := th.Reserve(t.Context(), "small", 1)
			if err != nil {
				t.Error(err)
				return
			}
			wait("Reserve", r.Decision(), err)
		})
		all.Wait()
		denials := 0
		for _, e := range book.ended[before:] {
			if e.Policy == &smallPolicy && !e.Decision.Allowed {
				denials++
				wait("as the observer sees it", e.Decision, e.Err)
			}
		}
		if denials != 3 {
			t.Errorf("the observer saw %d denials, want 3", denials)
		}
		time.Sleep(time.Second)
		for range 3 {
			if d := throttlertesting.Allow(t, th, "small"); !d.Allowed {
				t.Errorf("after it: %+v", d)
			}
		}
		if d := throttlertesting.Allow(t, th, "small"); d.Allowed || d.RetryAfter < time.Minute {
			t.Errorf("after it: %+v, want a denial for the window", d)
		}
	})
}

// A denial by a window says how long the window lasts, however many requests are under way on its key and on others.
func TestAllowAllRetryAfterAWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := throttlertesting.New(t, throttler.Config{Backend: newTidal(t), Policy: throttlertesting.One(limit.PerHour(10))})
		check := func(how string, d throttler.Decision, err error) {
			t.Helper()
			if err != nil || d.Allowed || d.RetryAfter < time.Minute {
				t.Errorf("%s: %+v, %v, want a denial for the window", how, d, err)
			}
		}
		const keys = 50
		for i := range keys {
			_, _ = th.AllowN(t.Context(), fmt.Sprint("used up ", i), 10)
		}
		d, err := th.AllowAll(t.Context(), []string{"used up 0", "user"}, 1)
		check("one request", d, err)
		time.Sleep(time.Second)

		stop, others := make(chan struct{}), sync.WaitGroup{}
		for i := range 64 {
			others.Go(func() {
				pair := []string{fmt.Sprint("user ", i), fmt.Sprint("address ", i)}
				if i < 4 {
					pair[0] = "used up 0"
				}
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					d, err := th.AllowAll(t.Context(), pair, 1)
					if i < 4 {
						check("AllowAll", d, err)
					}
				}
			})
		}
		for i := range keys {
			key := fmt.Sprint("used up ", i)
			d, err := th.Allow(t.Context(), key)
			check("Allow", d, err)
			r, err := th.Reserve(t.Context(), key, 1)
			check("Reserve", r.Decision(), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		if d, err := th.Wait(ctx, "used up 0", 1); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 100*time.Millisecond {
			t.Errorf("Wait returned after %s: %+v, %v, want an error at once", time.Since(start), d, err)
		}
		close(stop)
		others.Wait()

		d, err = th.AllowAll(t.Context(), []string{"twice", "twice"}, 6)
		check("a key that is there twice", d, err)
	})
}

// A denial stays temporary until the charge that explains it is back, also where that takes longer than the caller waits.
func TestAllowAllRetryAfterUntilGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTidal(t)
		b.refundTime = 600 * time.Millisecond
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(1)), Timeout: 50 * time.Millisecond})
		throttlertesting.Allow(t, th, "used up")
		if d, err := th.AllowAll(t.Context(), []string{"user", "used up"}, 1); err != nil || d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		for range 3 { // at 50, 250 and 450 ms
			if d := throttlertesting.Allow(t, th, "user"); d.Allowed || d.RetryAfter > 100*time.Millisecond {
				t.Errorf("while its charge goes back: %+v, want a short wait", d)
			}
			time.Sleep(200 * time.Millisecond)
		}
		if d := throttlertesting.Allow(t, th, "user"); !d.Allowed {
			t.Errorf("when its charge is back: %+v", d)
		}
	})
}

// The look at other keys takes no longer than a call to the backend may.
func TestAllowAllLooksInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTidal(t)
		b.peekTime = 5 * time.Second
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), Timeout: 50 * time.Millisecond})
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				start := time.Now()
				d, err := th.AllowAll(t.Context(), []string{"user", fmt.Sprint("address ", i)}, 1)
				if took := time.Since(start); err != nil || !d.Allowed || took > 60*time.Millisecond {
					t.Errorf("after %s: %+v, %v, want it admitted in 60ms", took, d, err)
				}
			})
		}
		all.Wait()
		if b.peeks == 0 {
			t.Error("nobody looked")
		}
	})
}

// While the backend is down the process counts itself, and charges that go back explain its denials, too.
func TestAllowAllRetryAfterInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTidal(t)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), PolicyFor: byName, Processes: 1})
		b.failWith(func(string) error { return throttlertesting.Outage(false) })
		_, _ = th.AllowN(t.Context(), "used up", 10)
		go func() { // charges small, and then meets the other one
			if d, err := th.AllowAll(t.Context(), []string{"small", "used up"}, 3); err != nil || d.Allowed {
				t.Errorf("%+v, %v", d, err)
			}
		}()
		time.Sleep(time.Millisecond) // Allow then meets the charge of small
		if d := throttlertesting.Allow(t, th, "small"); d.Allowed || d.Source != throttler.Fallback || d.RetryAfter > 100*time.Millisecond {
			t.Errorf("small: %+v, want a short wait", d)
		}
		if d := throttlertesting.Allow(t, th, "used up"); d.Allowed || d.Source != throttler.Fallback || d.RetryAfter < time.Minute {
			t.Errorf("used up: %+v, want a denial for the window", d)
		}
	})
}
