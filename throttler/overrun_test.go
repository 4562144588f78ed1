package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// What the work cost above the reservation is charged in full, and whoever comes next waits for it.
func TestSettleOverrun(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]limit.Limit{
		"fixed":   limit.PerHour(10),
		"sliding": limit.Sliding(10, time.Hour, time.Minute),
		"bucket":  limit.TokenBucket(1, time.Hour, 10),
	} {
		for _, actual := range []int64{5, 10, 25, 100_000} {
			th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(l)})
			r := reserve(t, th, 4)
			if err := r.Settle(t.Context(), actual); err != nil {
				t.Errorf("%s: Settle(%d) = %v", name, actual, err)
			}
			d, err := th.Allow(t.Context(), "k")
			if err != nil || d.Allowed != (actual < 10) || d.Remaining != max(10-actual-1, 0) {
				t.Errorf("%s: after Settle(%d) %+v, %v", name, actual, d, err)
			}
			if wait := time.Duration(actual-9) * time.Hour; name == "bucket" && actual == 25 && (d.RetryAfter < wait-time.Minute || d.RetryAfter > wait) {
				t.Errorf("retry after %s, want %s: the bucket owes 15 tokens", d.RetryAfter, wait)
			}
			if err := r.Settle(t.Context(), actual); !errors.Is(err, throttler.ErrSettled) {
				t.Errorf("%s: again: %v, want ErrSettled", name, err)
			}
		}
	}
}

// An overrun counts where the reservation did. The second is over, and what runs now is not charged; the hour goes on.
func TestSettleOverrunLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(100), limit.PerSecond(5).Named("second")}}
		th := throttlertesting.New(t, throttler.Config{Policy: p})
		r := reserve(t, th, 4)
		time.Sleep(2 * time.Second)
		if err := r.Settle(t.Context(), 54); err != nil {
			t.Fatal(err)
		}
		d, err := th.AllowN(t.Context(), "k", 5)
		if err != nil || !d.Allowed || d.Limit.Name != "second" || d.Remaining != 0 {
			t.Errorf("%+v, %v, want all of a new second", d, err)
		}
		time.Sleep(time.Second)
		if d, err = th.AllowN(t.Context(), "k", 5); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		time.Sleep(time.Hour)
		r = reserve(t, th, 4)
		time.Sleep(time.Hour)
		if err := r.Settle(t.Context(), 90); err != nil {
			t.Errorf("after the hour: %v", err)
		}
		if left := remaining(t, th, "k"); left != 5 {
			t.Errorf("%d left of a new second, want 5: the overrun was of an hour that is over", left)
		}
	})
}

// A backend that can't charge says so, and the reservation may be settled by what was reserved.
func TestSettleOverrunUnsupported(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Backend: refundsOnly{newSpy(t, nil)}, Policy: throttlertesting.One(limit.PerHour(10))})
	r := reserve(t, th, 4)
	if err := r.Settle(t.Context(), 5); !errors.Is(err, throttler.ErrUnsupported) {
		t.Errorf("Settle above the cost = %v, want ErrUnsupported", err)
	}
	if err := r.Settle(t.Context(), 3); err != nil {
		t.Errorf("Settle below it then = %v", err)
	}
	if left := remaining(t, th, "k"); left != 7 {
		t.Errorf("%d left, want 7", left)
	}
}

// A charge that may have run is never sent again; one that has not may be.
func TestSettleOverrunInAnOutage(t *testing.T) {
	t.Parallel()
	for _, mayHave := range []bool{false, true} {
		b := newSpy(t, nil)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10))})
		r := reserve(t, th, 4)
		b.failWith(func(string) error { return throttlertesting.Outage(mayHave) })
		if err := r.Settle(t.Context(), 6); err == nil {
			t.Error("an overrun was charged without a backend")
		}
		b.failWith(nil)
		err, left := r.Settle(t.Context(), 6), remaining(t, th, "k")
		if mayHave && (!errors.Is(err, throttler.ErrSettled) || left != 6) || !mayHave && (err != nil || left != 4) {
			t.Errorf("outcome known: %t, then %v, %d left", !mayHave, err, left)
		}
	}
}

// Of several keys one may cost more than was reserved, and another less.
func TestSettleEachOverrun(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(10)), Allow: []string{"good"}})
	r, err := th.ReserveAll(t.Context(), []string{"a", "good", "b", "c"}, 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SettleEach(t.Context(), []int64{7, 50, 1, 4}); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int64{"a": 3, "b": 9, "c": 6} {
		if left := remaining(t, th, key); left != want {
			t.Errorf("%d left of %s, want %d", left, key, want)
		}
	}
}

// What this process admitted in an outage is settled in its own counts.
func TestSettleOverrunOfAFallback(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), Processes: 1})
	b.failWith(func(string) error { return throttlertesting.Outage(false) })
	r := reserve(t, th, 4)
	if err := r.Settle(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		if d, err := th.Allow(t.Context(), "k"); err != nil || d.Allowed != want {
			t.Errorf("%d: %+v, %v, want %t", i, d, err, want)
		}
	}
}

func TestOverrunIsObserved(t *testing.T) {
	t.Parallel()
	j := &journal{}
	th := throttlertesting.New(t, throttler.Config{
		Backend: newSpy(t, nil), Policy: throttlertesting.One(limit.PerHour(10)), Observer: throttler.Observers(full{plain{"a", j}}, full{plain{"b", j}}),
	})
	r := reserve(t, th, 4)
	j.lines = nil
	if err := r.Settle(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	want := "[a start charge k b start charge k a overrun 2 b overrun 2 a end charge k false b end charge k false]"
	if got := fmt.Sprint(j.lines); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestClampReserve(t *testing.T) {
	t.Parallel()
	p := limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(100), limit.TokenBucket(10, time.Hour, 20)}}
	for _, clamp := range []bool{false, true} {
		th := throttlertesting.New(t, throttler.Config{Policy: p, ClampReserve: clamp, Allow: []string{"good"}})
		r, err := th.Reserve(t.Context(), "k", 70)
		if clamp != (err == nil) || clamp == errors.Is(err, limit.ErrCostExceedsLimit) {
			t.Fatalf("clamp %t: %v", clamp, err)
		}
		if _, err := th.AllowN(t.Context(), "k", 70); !errors.Is(err, limit.ErrCostExceedsLimit) {
			t.Errorf("AllowN = %v, want ErrCostExceedsLimit: only an estimate is clamped", err)
		}
		for _, bad := range []int64{0, -1, limit.MaxCount + 1} {
			if _, err := th.Reserve(t.Context(), "k", bad); err == nil {
				t.Errorf("a cost of %d was reserved", bad)
			}
		}
		if !clamp {
			continue
		}
		if r.Cost() != 20 || !r.Decision().Allowed || r.Decision().Remaining != 0 {
			t.Errorf("reserved %d, %+v, want all 20", r.Cost(), r.Decision())
		}
		if err := r.Settle(t.Context(), 70); err != nil {
			t.Fatal(err)
		}
		d, err := th.Peek(t.Context(), "k")
		if err != nil || d.Allowed || d.RetryAfter < 5*time.Hour {
			t.Errorf("%+v, %v, want a bucket that owes 50 tokens", d, err)
		}
		all, err := th.ReserveAll(t.Context(), []string{"x", "good", "y"}, 70)
		if err != nil || all.Cost() != 20 || !all.Decision().Allowed {
			t.Errorf("%d of each key, %+v, %v", all.Cost(), all.Decision(), err)
		}
		if _, err := th.ReserveAll(context.Background(), []string{"x", ""}, 70); err == nil {
			t.Error("an empty key was reserved")
		}
	}
}

// The cost of a model's answer is known when it has been written. The estimate may be too low, or more than the budget holds.
func ExampleReservation_Settle_overrun() {
	t, err := throttler.New(throttler.Config{
		Policy:       limit.Policy{Name: "tokens", Limits: []limit.Limit{limit.PerMinute(10_000)}},
		ClampReserve: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	ctx := context.Background()
	r, err := t.Reserve(ctx, "tenant:7", 12_000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("reserved:", r.Cost())
	if err := r.Settle(ctx, 11_500); err != nil {
		log.Fatal(err)
	}
	d, err := t.Peek(ctx, "tenant:7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("next one allowed:", d.Allowed)
	// Output:
	// reserved: 10000
	// next one allowed: false
}
