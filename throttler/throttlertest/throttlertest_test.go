package throttlertest_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

var twoLimits = limit.Policy{Name: "two", Limits: []limit.Limit{limit.PerSecond(10), limit.TokenBucket(5, time.Minute, 20)}}

func TestDenyingDeniesEverything(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, time.Millisecond, 90 * time.Minute, limit.Never} {
		limits := throttlertest.Denying(wait)
		for range 2 {
			d, err := limits.AllowN(t.Context(), "k", 1000)
			if err != nil || d.Allowed || d.RetryAfter != wait || d.Remaining != 0 || d.Guarantee != throttler.Exact {
				t.Errorf("wait %v: %+v, %v", wait, d, err)
			}
			if until := d.ResetAt.Sub(d.At); wait != limit.Never && until != wait {
				t.Errorf("wait %v: resets in %v", wait, until)
			}
		}
		if r, err := limits.Reserve(t.Context(), "k", 3); err != nil || r.Decision().Allowed || r.Settle(t.Context(), 1) != nil {
			t.Errorf("wait %v: a reservation %+v, %v", wait, r, err)
		}
	}
}

func TestAllowingAdmitsEverything(t *testing.T) {
	t.Parallel()
	limits := throttlertest.Allowing()
	for range 3 {
		d, err := limits.AllowN(t.Context(), "k", 1_000_000)
		if err != nil || !d.Allowed || d.RetryAfter != 0 || d.Remaining != 1_000_000 {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if d, err := limits.AllowAll(t.Context(), []string{"a", "b"}, 2); err != nil || !d.Allowed {
		t.Errorf("several keys: %+v, %v", d, err)
	}
	if d, err := limits.Wait(t.Context(), "k", 2); err != nil || !d.Allowed {
		t.Errorf("wait: %+v, %v", d, err)
	}
	if _, err := limits.Allow(t.Context(), ""); err == nil {
		t.Error("no key is no bad input")
	}
}

func TestScriptAnswersInOrder(t *testing.T) {
	t.Parallel()
	bounded := throttlertest.Allow(7)
	bounded.Guarantee, bounded.Cause = throttler.Bounded, backend.ErrCountsLost
	limits, script := throttlertest.Scripted(throttler.Config{Policy: twoLimits, Failure: throttler.FailError},
		bounded, throttlertest.Deny(time.Second), throttlertest.Fail(errors.New("broken")))

	peek, err := limits.Peek(t.Context(), "k")
	if err != nil || !peek.Allowed || peek.Remaining != 7 {
		t.Errorf("the peek doesn't show the next answer: %+v, %v", peek, err)
	}
	d, err := limits.Allow(t.Context(), "k")
	if err != nil || !d.Allowed || d.Guarantee != throttler.Bounded || throttler.Reason(d.Cause) != "counts_lost" {
		t.Errorf("%+v, %v", d, err)
	}
	if all := slices.Collect(d.All()); len(all) != 2 || all[0].Remaining != 7 || all[1].Limit != twoLimits.Limits[1] {
		t.Errorf("limits %+v", all)
	}
	if d, err = limits.Allow(t.Context(), "k"); err != nil || d.Allowed || d.RetryAfter != time.Second {
		t.Errorf("%+v, %v", d, err)
	}
	for range 2 { // the last step is repeated
		if _, err = limits.Allow(t.Context(), "k"); err == nil {
			t.Error("no error")
		}
	}
	script.Then(throttlertest.Allow(3))
	if d, err = limits.AllowN(t.Context(), "other", 4); err != nil || !d.Allowed || d.Remaining != 3 {
		t.Errorf("%+v, %v", d, err)
	}
	if err := limits.Reset(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	want := []throttlertest.Call{
		{Op: throttler.OpPeek, Key: "k", Policy: "two", Cost: 1},
		{Op: throttler.OpTake, Key: "k", Policy: "two", Cost: 1}, {Op: throttler.OpTake, Key: "k", Policy: "two", Cost: 1},
		{Op: throttler.OpTake, Key: "k", Policy: "two", Cost: 1}, {Op: throttler.OpTake, Key: "k", Policy: "two", Cost: 1},
		{Op: throttler.OpTake, Key: "other", Policy: "two", Cost: 4}, {Op: throttler.OpReset, Key: "other", Policy: "two"},
	}
	if got := script.Calls(); !reflect.DeepEqual(got, want) {
		t.Errorf("calls %+v\nwant %+v", got, want)
	}
}

func TestScriptRecordsWhatIsGivenBack(t *testing.T) {
	t.Parallel()
	limits, script := throttlertest.Scripted(throttler.Config{})
	r, err := limits.Reserve(t.Context(), "k", 10)
	if err != nil || !r.Decision().Allowed {
		t.Fatal(r, err)
	}
	if err := r.Settle(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	want := []throttlertest.Call{
		{Op: throttler.OpTake, Key: "k", Policy: "test", Cost: 10}, {Op: throttler.OpRefund, Key: "k", Policy: "test", Cost: 6},
	}
	if got := script.Calls(); !reflect.DeepEqual(got, want) {
		t.Errorf("calls %+v", got)
	}
	if err := script.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := script.Take(t.Context(), backend.Request{Key: "k", Policy: &twoLimits, Cost: 1}); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// An outage is decided by the failure policy, and a server that hangs is left after Config.Timeout.
func TestScriptedOutages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		local, _ := throttlertest.Scripted(throttler.Config{Policy: twoLimits, Processes: 10}, throttlertest.Fail(nil))
		for i, want := range []bool{true, false} { // of 10 a second this process has one
			d, err := local.Allow(t.Context(), "k")
			if err != nil || d.Allowed != want || d.Source != throttler.Fallback || throttler.Reason(d.Cause) != "unavailable" {
				t.Errorf("request %d: %+v, %v", i, d, err)
			}
		}
		hanging, _ := throttlertest.Scripted(throttler.Config{Failure: throttler.FailClosed, Timeout: time.Second}, throttlertest.Hang())
		start := time.Now()
		d, err := hanging.Allow(t.Context(), "k")
		if err != nil || d.Allowed || d.Source != throttler.Fallback || time.Since(start) != time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(start), d, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := hanging.Allow(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller's deadline: %v", err)
		}
	})
}

func TestNewCountsByItsClock(t *testing.T) {
	t.Parallel()
	limits, clock := throttlertest.New(throttler.Config{
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerDay(1).Aligned()}},
	})
	for i, want := range []bool{true, false} {
		d, err := limits.Allow(t.Context(), "k")
		if err != nil || d.Allowed != want || !d.At.Equal(clock.Now()) || !d.ResetAt.Equal(clock.Now().Add(24*time.Hour)) {
			t.Errorf("request %d: %+v, %v", i, d, err)
		}
	}
	clock.Advance(24*time.Hour - time.Microsecond)
	if d, _ := limits.Allow(t.Context(), "k"); d.Allowed {
		t.Error("admitted before the end of the window")
	}
	clock.Advance(time.Microsecond)
	if d, _ := limits.Allow(t.Context(), "k"); !d.Allowed {
		t.Error("denied at the end of the window")
	}
}

func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	limits, script := throttlertest.Scripted(throttler.Config{}, throttlertest.Allow(1), throttlertest.Deny(time.Second))
	var wg sync.WaitGroup
	var mu sync.Mutex // guards admitted
	admitted := 0
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if d, err := limits.Allow(t.Context(), "k"); err == nil && d.Allowed {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if admitted != 1 || len(script.Calls()) != 400 {
		t.Errorf("%d admitted, %d calls", admitted, len(script.Calls()))
	}
}

func TestPanicsWithAnInvalidConfig(t *testing.T) {
	t.Parallel()
	counts, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(){
		"no policy":                 func() { throttlertest.New(throttler.Config{}) },
		"a backend":                 func() { throttlertest.New(throttler.Config{Policy: twoLimits, Backend: counts}) },
		"a backend beside a script": func() { throttlertest.Scripted(throttler.Config{Backend: counts}) },
		"a policy without a limit":  func() { throttlertest.Scripted(throttler.Config{Policy: limit.Policy{Name: "none"}}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			make()
		}()
	}
}
