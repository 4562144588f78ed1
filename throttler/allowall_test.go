package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// byName gives keys that start with "small" a quota of 3, all others 10.
func byName(_ context.Context, key string) *limit.Policy {
	if strings.HasPrefix(key, "small") {
		return &smallPolicy
	}
	return nil
}

var smallPolicy = throttlertesting.One(limit.PerHour(3))

func TestAllowAll(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		keys    []string
		cost    int64
		spend   map[string]int64 // before
		allowed bool
		remain  int64 // of the decision
		left    map[string]int64
	}{
		{"one key", []string{"a"}, 4, nil, true, 6, map[string]int64{"a": 6}},
		{"the least left comes first", []string{"small", "a"}, 1, nil, true, 2, map[string]int64{"small": 2, "a": 9}},
		{"the least left comes last", []string{"a", "b", "small"}, 2, nil, true, 1,
			map[string]int64{"a": 8, "b": 8, "small": 1}},
		{"the first denies", []string{"small", "a"}, 2, map[string]int64{"small": 2}, false, 1,
			map[string]int64{"small": 1, "a": 10}},
		{"the last denies", []string{"a", "b", "small"}, 3, map[string]int64{"small": 1}, false, 2,
			map[string]int64{"a": 10, "b": 10, "small": 2}},
		{"one in the middle denies", []string{"a", "small", "b"}, 3, map[string]int64{"small": 1}, false, 2,
			map[string]int64{"a": 10, "b": 10, "small": 2}},
		{"a key twice is charged twice", []string{"a", "a"}, 5, nil, true, 0, map[string]int64{"a": 0}},
		{"a key twice denies itself", []string{"a", "a"}, 6, nil, false, 4, map[string]int64{"a": 10}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(10)), PolicyFor: byName})
			for key, cost := range test.spend {
				if _, err := th.AllowN(t.Context(), key, cost); err != nil {
					t.Fatal(err)
				}
			}
			d, err := th.AllowAll(t.Context(), test.keys, test.cost)
			if err != nil || d.Allowed != test.allowed || d.Remaining != test.remain {
				t.Errorf("AllowAll = %+v, %v, want allowed %v, remaining %d", d, err, test.allowed, test.remain)
			}
			for key, want := range test.left {
				if got := remaining(t, th, key); got != want {
					t.Errorf("%d left of %s, want %d", got, key, want)
				}
			}
		})
	}
}

// A later key without a verdict gives the earlier ones back, whatever became of the caller.
func TestAllowAllGivesBackOnError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		failure throttler.FailurePolicy
		gone    bool // the caller
	}{
		{"an error", throttler.FailError, false},
		{"a denial by the failure policy", throttler.FailClosed, false},
		{"the caller has gone", throttler.FailLocal, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newSpy(t, nil)
			th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), Failure: test.failure})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b.failWith(func(call string) error {
				if call != "take c" {
					return nil
				}
				if test.gone {
					cancel()
				}
				return throttlertesting.Outage(true)
			})
			d, err := th.AllowAll(ctx, []string{"a", "b", "c"}, 4)
			if d.Allowed || (err == nil) != (test.failure == throttler.FailClosed) {
				t.Errorf("AllowAll = %+v, %v", d, err)
			}
			if test.gone && !errors.Is(err, context.Canceled) {
				t.Errorf("AllowAll = %v, want context.Canceled", err)
			}
			for _, key := range []string{"a", "b", "c"} {
				for deadline := time.Now().Add(10 * time.Second); remaining(t, th, key) != 10; {
					if time.Now().After(deadline) { // it goes on after a caller who has gone
						t.Fatalf("%d left of %s, want 10", remaining(t, th, key), key)
					}
				}
			}
		})
	}
}

// One exact decision doesn't hide that another is not.
func TestAllowAllHasTheWeakestGuarantee(t *testing.T) {
	t.Parallel()
	for _, keys := range [][]string{{"away", "small"}, {"small", "away"}} {
		b := newSpy(t, nil)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), PolicyFor: byName, Processes: 1})
		b.failWith(func(call string) error {
			if call == "take away" {
				return throttlertesting.Outage(false)
			}
			return nil
		})
		d, err := th.AllowAll(t.Context(), keys, 1)
		if err != nil || !d.Allowed || d.Remaining != 2 || d.Source != throttler.Local {
			t.Errorf("%q: %+v, %v, want what small has left", keys, d, err)
		}
		var cause *backend.Error
		if d.Guarantee != throttler.Bounded || !errors.As(d.Cause, &cause) {
			t.Errorf("%q: guarantee %v because of %v, want Bounded and the backend's error", keys, d.Guarantee, d.Cause)
		}
	}
}

func TestAllowAllNeedsARefunder(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: bare{b}, Policy: throttlertesting.One(limit.PerHour(10))})
	if _, err := th.AllowAll(t.Context(), []string{"a", "b"}, 1); !errors.Is(err, throttler.ErrUnsupported) {
		t.Errorf("AllowAll of two keys = %v, want ErrUnsupported", err)
	}
	if n := b.calls.Load(); n != 0 {
		t.Errorf("%d calls reached the backend", n)
	}
}

// Whatever the order in which callers meet, no key is charged for a request that was denied.
func TestAllowAllConcurrently(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(500)), PolicyFor: byName})
	var mu sync.Mutex
	admitted := int64(0)
	var wg sync.WaitGroup
	for i := range 32 {
		keys := []string{"a", "b", "small"}
		if i%2 == 0 {
			keys = []string{"small", "b", "a"}
		}
		wg.Go(func() {
			for range 4 {
				d, err := th.AllowAll(t.Context(), keys, 1)
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if admitted != 3 {
		t.Errorf("%d admitted, want 3", admitted)
	}
	for key, quota := range map[string]int64{"a": 500, "b": 500, "small": 3} {
		if got := remaining(t, th, key); got != quota-admitted {
			t.Errorf("%d left of %s, want %d", got, key, quota-admitted)
		}
	}
}

// Giving back is not a caller's to wait for without end.
func TestAllowAllGivesBackInTime(t *testing.T) {
	t.Parallel()
	b := &boundedRefunds{Memory: throttlertesting.NewMemory(t, nil)}
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), PolicyFor: byName})
	d, err := th.AllowAll(t.Context(), []string{"a", "small", "small", "small", "small"}, 1)
	if err != nil || d.Allowed {
		t.Errorf("AllowAll = %+v, %v, want a denial", d, err)
	}
	if !b.bounded.Load() {
		t.Error("a refund had no deadline of its own")
	}
}

// boundedRefunds never gives back; it sees whether trying may take for ever.
type boundedRefunds struct {
	*memory.Memory
	bounded atomic.Bool
}

func (s *boundedRefunds) Refund(ctx context.Context, _ backend.Request, _ state.Receipt, _ int64) error {
	_, ok := ctx.Deadline()
	s.bounded.Store(ok)
	return throttlertesting.Outage(false)
}

// A charge that is given back is neither counted by a shadow nor notified of.
func TestAllowAllCommitsWhatStands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var near []string
		b := throttlertesting.NewMemory(t, nil)
		shadow := newShadow(t, insight.ShadowConfig{Backend: b, Policy: throttlertesting.One(limit.PerHour(9))})
		th := throttlertesting.New(t, throttler.Config{
			Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), PolicyFor: byName, Observer: throttler.Observers(shadow,
				newNearLimit(t, insight.NearLimitConfig{
					Share: 0.9, Notify: func(n insight.NearLimitEvent) { near = append(near, n.Key) },
				})),
		})
		for i, step := range []struct {
			keys    []string
			allowed bool
			near    string
			shadow  insight.ShadowCounts
		}{
			{[]string{"small"}, true, "[small]", insight.ShadowCounts{Allowed: 1}},
			{[]string{"a", "small"}, true, "[small a]", insight.ShadowCounts{Allowed: 3}},
			{[]string{"b", "small", "small"}, false, "[small a]", insight.ShadowCounts{Allowed: 3}},
			{[]string{"b", "small"}, true, "[small a b]", insight.ShadowCounts{Allowed: 5}},
			{[]string{"c", "small"}, false, "[small a b]", insight.ShadowCounts{Allowed: 5}},
		} {
			d, err := th.AllowAll(t.Context(), step.keys, 1)
			synctest.Wait()
			if err != nil || d.Allowed != step.allowed {
				t.Fatalf("%d: %+v, %v", i, d, err)
			}
			if got := fmt.Sprint(near); got != step.near || shadow.Counts() != step.shadow {
				t.Errorf("%d: notified of %s and %+v, want %s and %+v", i, got, shadow.Counts(), step.near, step.shadow)
			}
		}
		if _, err := th.Reserve(t.Context(), "d", 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if fmt.Sprint(near) != "[small a b d]" || shadow.Counts().Allowed != 6 {
			t.Errorf("a reservation: notified of %v and %+v", near, shadow.Counts())
		}
	})
}

// Close waits for calls under way and for what they give back, whenever they came.
func TestCloseWaitsForAllowAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &slowly{spy: newSpy(t, time.Now)}
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(1))})
		throttlertesting.Allow(t, th, "slow")
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		go func() {
			if d, err := th.AllowAll(ctx, []string{"a", "slow"}, 1); err != nil || d.Allowed {
				t.Errorf("AllowAll = %+v, %v, want a denial", d, err)
			}
		}()
		synctest.Wait() // it has charged a
		start := time.Now()
		if err := th.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 1900*time.Millisecond || !b.refunded.Load() { // the take and the refund
			t.Errorf("closed after %v, refunded: %v", took, b.refunded.Load())
		}
		if _, err := th.AllowAll(t.Context(), []string{"a", "b"}, 1); !errors.Is(err, throttler.ErrClosed) {
			t.Errorf("AllowAll after Close = %v", err)
		}
	})
}

// AllowAll that meets Close gives back what it has charged, and charges no more.
func TestCloseEndsAllowAll(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	for range 20 {
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10))})
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for {
					d, err := th.AllowAll(t.Context(), []string{"a", "b", "b", "b", "b", "b", "b", "b", "b", "b", "b", "b"}, 1)
					if errors.Is(err, throttler.ErrClosed) {
						return
					}
					if err != nil || d.Allowed {
						t.Errorf("AllowAll = %+v, %v, want a denial", d, err)
						return
					}
				}
			})
		}
		_ = th.Close()
		all.Wait()
		look := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10))})
		if left := remaining(t, look, "a"); left != 10 {
			t.Fatalf("%d left, want 10", left)
		}
	}
}

// slowly is a spy that takes its time, and knows whether it has given back.
type slowly struct {
	*spy
	refunded atomic.Bool
}

func (s *slowly) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if req.Key == "slow" {
		time.Sleep(time.Second)
	}
	return s.spy.Take(ctx, req)
}

func (s *slowly) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	time.Sleep(900 * time.Millisecond)
	err := s.spy.Refund(ctx, req, receipt, amount)
	s.refunded.Store(err == nil)
	return err
}
