package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// failurePolicies are the four with what they admit of 12 requests on one key, and of 12 on another after it, while
// the backend is down. Three processes share a limit of 10.
var failurePolicies = []struct {
	cfg    throttler.Config
	first  int
	second int
}{
	{throttler.Config{Failure: throttler.FailLocal, Processes: 3}, 4, 4},
	{throttler.Config{Failure: throttler.FailClosed}, 0, 0},
	{throttler.Config{Failure: throttler.FailOpen, OpenCap: limit.PerHour(15)}, 12, 3},
	{throttler.Config{Failure: throttler.FailError}, 0, 0},
}

// outcome is what one request of an outage must look like. It reports whether the request was admitted.
func outcome(t *testing.T, how throttler.FailurePolicy, d throttler.Decision, err error, mayHaveCharged bool) bool {
	t.Helper()
	var cause *backend.Error
	if how == throttler.FailError {
		if !errors.As(err, &cause) || cause.Kind != backend.Unavailable || d.Allowed {
			t.Errorf("%v: %+v, %v, want the backend's error alone", how, d, err)
		}
		return false
	}
	if err != nil {
		t.Errorf("%v: %v, want a decision", how, err)
		return false
	}
	if d.Source != throttler.Fallback || d.Guarantee != throttler.Bounded || !errors.As(d.Cause, &cause) {
		t.Errorf("%v: by %v, %v because of %v, want Fallback, Bounded and the backend's error",
			how, d.Source, d.Guarantee, d.Cause)
		return d.Allowed
	}
	if cause.Kind != backend.Unavailable || cause.MayHaveCharged != mayHaveCharged {
		t.Errorf("%v: cause %v, may have charged %v, want %v", how, cause, cause.MayHaveCharged, mayHaveCharged)
	}
	if d.Allowed == (d.RetryAfter > 0) || d.ResetAt.IsZero() || d.At.IsZero() || d.Limit == (limit.Limit{}) {
		t.Errorf("%v: %+v", how, d)
	}
	return d.Allowed
}

func TestFailurePolicies(t *testing.T) {
	t.Parallel()
	for _, test := range failurePolicies {
		b := newSpy(t, nil)
		test.cfg.Backend, test.cfg.Policy = b, throttlertesting.One(limit.PerHour(10))
		th := throttlertesting.New(t, test.cfg)
		b.failWith(func(string) error { return throttlertesting.Outage(true) })
		for key, want := range map[string]int{"first": test.first, "second": test.second} {
			admitted := 0
			for range 12 {
				d, err := th.Allow(t.Context(), key)
				if outcome(t, test.cfg.Failure, d, err, true) {
					admitted++
				}
			}
			// FailOpen's cap is for all keys together, and a map has no order.
			if test.cfg.Failure != throttler.FailOpen && admitted != want {
				t.Errorf("%v: %d of %s admitted, want %d", test.cfg.Failure, admitted, key, want)
			}
		}
	}
}

// The share is rounded up, limit by limit, and what can't fit into it is denied rather than let through.
func TestFailLocalShare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limits    []limit.Limit
		processes int
		cost      int64
		want      int
	}{
		{[]limit.Limit{limit.PerHour(100)}, 0, 1, 10}, // the default is 10
		{[]limit.Limit{limit.PerHour(10)}, 1, 1, 10},
		{[]limit.Limit{limit.PerHour(10)}, 3, 1, 4},
		{[]limit.Limit{limit.PerHour(10)}, 10, 1, 1},
		{[]limit.Limit{limit.PerHour(10)}, 1000, 1, 1},
		{[]limit.Limit{limit.PerHour(10)}, 3, 4, 1},
		{[]limit.Limit{limit.PerHour(10)}, 3, 5, 0},
		{[]limit.Limit{limit.TokenBucket(1, time.Hour, 7)}, 2, 1, 4},
		{[]limit.Limit{limit.Sliding(9, time.Hour, time.Minute)}, 2, 1, 5},
		{[]limit.Limit{limit.PerHour(100), limit.PerDay(9)}, 3, 1, 3},
	} {
		b := newSpy(t, nil)
		b.failWith(func(string) error { return throttlertesting.Outage(false) })
		th := throttlertesting.New(t, throttler.Config{
			Backend: b, Policy: limit.Policy{Limits: test.limits}, Processes: test.processes,
		})
		admitted := 0
		for range 20 {
			d, err := th.AllowN(t.Context(), "k", test.cost)
			if outcome(t, throttler.FailLocal, d, err, false) {
				admitted++
			}
		}
		if admitted != test.want {
			t.Errorf("%v for %d processes, cost %d: %d admitted, want %d",
				test.limits, test.processes, test.cost, admitted, test.want)
		}
	}
}

// All processes together admit their shares: promise P5.
func TestFailLocalOfAllProcesses(t *testing.T) {
	t.Parallel()
	const quota, processes, share = 10, 4, 3
	admitted := 0
	for range processes {
		b := newSpy(t, nil)
		b.failWith(func(string) error { return throttlertesting.Outage(false) })
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(quota)), Processes: processes})
		for range quota {
			if throttlertesting.Allow(t, th, "k").Allowed {
				admitted++
			}
		}
	}
	if admitted != processes*share {
		t.Errorf("%d admitted by all, want %d x %d", admitted, processes, share)
	}
}

// A backend that comes and goes with every call refills nothing: promise P5 for one process.
func TestFlapping(t *testing.T) {
	t.Parallel()
	const quota, processes, share, openCap = 30, 4, 8, 5
	for _, test := range []struct {
		cfg  throttler.Config
		most int // that the failure policy may admit
	}{
		{throttler.Config{Failure: throttler.FailLocal, Processes: processes}, share},
		{throttler.Config{Failure: throttler.FailOpen, OpenCap: limit.PerHour(openCap)}, openCap},
		{throttler.Config{Failure: throttler.FailClosed}, 0},
	} {
		b := newSpy(t, nil)
		test.cfg.Backend, test.cfg.Policy = b, throttlertesting.One(limit.PerHour(quota))
		th := throttlertesting.New(t, test.cfg)
		bySource := map[throttler.Source]int{}
		for i := range 200 {
			b.failWith(func(string) error {
				if i%2 == 0 {
					return throttlertesting.Outage(i%4 == 0)
				}
				return nil
			})
			if d := throttlertesting.Allow(t, th, "k"); d.Allowed {
				bySource[d.Source]++
			}
		}
		if bySource[throttler.Local] != quota || bySource[throttler.Fallback] != test.most {
			t.Errorf("%v: admitted %v, want %d by the backend and %d without", test.cfg.Failure, bySource, quota, test.most)
		}
	}
}

// The failure policy decides neither for a caller who has gone nor what was bad input.
func TestNoFallback(t *testing.T) {
	t.Parallel()
	bad := &limit.Error{Field: "window", Value: "1 year", Bound: "is beyond this backend"}
	for _, test := range []struct {
		name string
		err  error // of the backend
		gone bool  // the caller, in the middle of the call
		is   error
	}{
		{"cancelled", throttlertesting.Outage(true), true, context.Canceled},
		{"bad input", bad, false, bad},
		{"the backend is closed", backend.ErrClosed, false, throttler.ErrClosed},
	} {
		for _, policy := range failurePolicies {
			b := newSpy(t, nil)
			policy.cfg.Backend, policy.cfg.Policy = b, throttlertesting.One(limit.PerHour(10))
			book := &throttlertesting.LogBook{}
			policy.cfg.Logger = book.Logger()
			th := throttlertesting.New(t, policy.cfg)
			ctx, cancel := context.WithCancel(t.Context())
			b.failWith(func(string) error {
				if test.gone {
					cancel()
				}
				return test.err
			})
			d, err := th.Allow(ctx, "k")
			if !errors.Is(err, test.is) || d.Allowed {
				t.Errorf("%s, %v: %+v, %v, want %v", test.name, policy.cfg.Failure, d, err, test.is)
			}
			if test.gone && !errors.As(err, new(*backend.Error)) {
				t.Errorf("%s, %v: %v, want to know that it may have been charged", test.name, policy.cfg.Failure, err)
			}
			if n := len(book.Levels()); n != 0 {
				t.Errorf("%s, %v: logged as an outage", test.name, policy.cfg.Failure)
			}
			cancel()
		}
	}
}

// A connection's own timer for the caller's deadline may be faster than the context's: it is the caller's deadline
// all the same.
func TestDeadlineThatTheContextHasNotNoticed(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	b.failWith(func(string) error { return throttlertesting.Outage(true) })
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10))})
	d, err := th.Allow(unnoticed{t.Context()}, "k")
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, new(*backend.Error)) || d.Allowed {
		t.Errorf("Allow = %+v, %v, want context.DeadlineExceeded", d, err)
	}
}

// unnoticed is a context whose deadline is over and whose timer has not fired.
type unnoticed struct{ context.Context }

func (unnoticed) Deadline() (time.Time, bool) { return time.Now(), true }

// The Throttler's own Timeout is an outage, not the caller's deadline.
func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 30 * time.Millisecond
		th := throttlertesting.New(t, throttler.Config{
			Backend: stuck{throttlertesting.NewMemory(t, nil)}, Policy: throttlertesting.One(limit.PerHour(10)), Timeout: timeout,
		})
		start := time.Now()
		if d := throttlertesting.Allow(t, th, "k"); !d.Allowed || d.Source != throttler.Fallback ||
			!errors.Is(d.Cause, context.DeadlineExceeded) {
			t.Errorf("%+v, want an admission by the failure policy", d)
		}
		if took := time.Since(start); took != timeout {
			t.Errorf("took %v, want %v", took, timeout)
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout/2)
		defer cancel()
		start = time.Now()
		if d, err := th.Allow(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%+v, %v, want the caller's deadline", d, err)
		}
		if took := time.Since(start); took != timeout/2 {
			t.Errorf("took %v, want the caller's %v", took, timeout/2)
		}
	})
}

// stuck answers no take before its context ends.
type stuck struct{ *memory.Memory }

func (stuck) Take(ctx context.Context, _ backend.Request) (backend.Result, error) {
	<-ctx.Done()
	return backend.Result{}, ctx.Err()
}

// An outage is logged once a minute for each kind; what somebody has to fix as an error, every five seconds.
func TestOutageLog(t *testing.T) {
	t.Parallel()
	const key = "alice@example.com"
	kinds := []backend.Kind{
		backend.Unavailable, backend.Interrupted, backend.Misconfigured, backend.Corrupt, backend.Contended,
	}
	synctest.Test(t, func(t *testing.T) {
		book := &throttlertesting.LogBook{}
		b := newSpy(t, time.Now)
		th := throttlertesting.New(t, throttler.Config{
			Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), Failure: throttler.FailClosed, Logger: book.Logger(),
		})
		fail := func() {
			for _, kind := range kinds {
				b.failWith(func(string) error {
					return &backend.Error{Op: "take", Node: "node", Kind: kind, Err: fmt.Errorf("because of %v", kind)}
				})
				throttlertesting.Allow(t, th, key)
			}
		}
		for minute := 1; minute <= 3; minute++ {
			for range 60 { // one of each kind a second
				fail()
				time.Sleep(time.Second)
			}
			got := book.Levels()
			if got[slog.LevelError] != 2*12*minute || got[slog.LevelWarn] != 3*minute || len(got) != 2 {
				t.Errorf("logged %v in %d minutes, want 24 errors and 3 warnings for each", got, minute)
			}
		}
		b.failWith(func(string) error { return errors.New("a foreign backend's error") })
		throttlertesting.Allow(t, th, key)
		text := book.Text()
		for _, want := range []string{"because of misconfigured", "because of corrupt", "foreign", "failure_policy=closed"} {
			if !strings.Contains(text, want) {
				t.Errorf("the log doesn't say %q:\n%s", want, text)
			}
		}
		if strings.Contains(text, key) {
			t.Errorf("the log names the key:\n%s", text)
		}
	})
}

// Errors never name a key.
func TestErrorsDoNotNameTheKey(t *testing.T) {
	t.Parallel()
	const key = "alice@example.com"
	b := newSpy(t, nil)
	invalid := throttlertesting.One(limit.PerMinute(0))
	for name, cfg := range map[string]throttler.Config{
		"outage": {Failure: throttler.FailError},
		"policy": {PolicyFor: func(context.Context, string) *limit.Policy { return &invalid }},
	} {
		cfg.Backend, cfg.Policy = b, throttlertesting.One(limit.PerHour(10))
		th := throttlertesting.New(t, cfg)
		b.failWith(func(string) error { return throttlertesting.Outage(true) })
		for _, op := range operations {
			for _, cost := range []int64{1, -1, 1 << 60} {
				if _, err := op.call(t.Context(), th, key, cost); err != nil && strings.Contains(err.Error(), key) {
					t.Errorf("%s, %s: %v", name, op.name, err)
				}
			}
		}
	}
}
