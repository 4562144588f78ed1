package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

func reserve(t testing.TB, th *throttler.Throttler, cost int64) *throttler.Reservation {
	t.Helper()
	r, err := th.Reserve(t.Context(), "k", cost)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSettle(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]limit.Limit{
		"fixed":   limit.PerHour(10),
		"sliding": limit.Sliding(10, time.Hour, time.Minute),
		"bucket":  limit.TokenBucket(1, time.Hour, 10),
	} {
		for actual, left := range map[int64]int64{0: 10, 1: 9, 3: 7, 4: 6} {
			th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(l)})
			r := reserve(t, th, 4)
			if d := r.Decision(); !d.Allowed || d.Remaining != 6 {
				t.Errorf("%s: reserved %+v, want 6 remaining", name, d)
			}
			if err := r.Settle(t.Context(), actual); err != nil {
				t.Errorf("%s: Settle(%d) = %v", name, actual, err)
			}
			if got := remaining(t, th, "k"); got != left {
				t.Errorf("%s: %d left after Settle(%d), want %d", name, got, actual, left)
			}
			for name, again := range map[string]func(context.Context) error{
				"Settle": func(ctx context.Context) error { return r.Settle(ctx, 0) }, "Cancel": r.Cancel,
			} {
				if err := again(t.Context()); !errors.Is(err, throttler.ErrSettled) {
					t.Errorf("%s again = %v, want ErrSettled", name, err)
				}
			}
			if got := remaining(t, th, "k"); got != left {
				t.Errorf("%s: %d left after settling again, want %d", name, got, left)
			}
		}
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(10))})
	throttlertesting.Allow(t, th, "k")
	if err := reserve(t, th, 4).Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := remaining(t, th, "k"); got != 9 {
		t.Errorf("%d left, want 9: all of the reservation and nothing else came back", got)
	}
}

// What is refused leaves the reservation as it was.
func TestSettleRefuses(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10))})
	r := reserve(t, th, 4)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name   string
		ctx    context.Context
		actual int64
		field  string
		is     error
	}{
		{"negative", t.Context(), -1, "actual cost", nil},
		{"above what can be counted", t.Context(), limit.MaxCount + 1, "actual cost", nil},
		{"nil context", nil, 1, "context", nil},
		{"ended context", ended, 1, "", context.Canceled},
	} {
		err := r.Settle(test.ctx, test.actual)
		if err == nil || strings.Join(fields(err), "") != test.field || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if n := b.calls.Load(); n != 1 {
		t.Errorf("%d calls reached the backend, want the take alone", n)
	}
	if err := r.Settle(t.Context(), 1); err != nil {
		t.Errorf("Settle after what was refused = %v", err)
	}
	if got := remaining(t, th, "k"); got != 9 {
		t.Errorf("%d left, want 9", got)
	}

	r = reserve(t, th, 4)
	if err := th.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Cancel(t.Context()); !errors.Is(err, throttler.ErrClosed) {
		t.Errorf("Cancel after Close = %v, want ErrClosed", err)
	}
}

// A refund that is known not to have run may be asked for again; one that may have run is never sent twice.
func TestSettleAfterAnOutage(t *testing.T) {
	t.Parallel()
	for _, mayHave := range []bool{false, true} {
		b := newSpy(t, nil)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10))})
		r := reserve(t, th, 4)
		b.failWith(func(string) error { return throttlertesting.Outage(mayHave) })
		if err := r.Cancel(t.Context()); err == nil {
			t.Error("Cancel worked without its backend")
		}
		b.failWith(nil)
		err, left := r.Cancel(t.Context()), remaining(t, th, "k")
		if mayHave && (!errors.Is(err, throttler.ErrSettled) || left != 6) {
			t.Errorf("after an unknown outcome: %v, %d left, want ErrSettled and 6", err, left)
		}
		if !mayHave && (err != nil || left != 10) {
			t.Errorf("after a refund that never ran: %v, %d left, want 10", err, left)
		}
	}
}

// Whatever error says that nothing was sent leaves the reservation open.
func TestSettleAfterARefusal(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]error{
		"bad input":     &limit.Error{Field: "window", Value: "1s", Bound: "must be longer"},
		"unsupported":   backend.ErrUnsupported,
		"moved":         &state.MovedError{Version: 2},
		"misconfigured": &backend.Error{Kind: backend.Misconfigured, Err: errors.New("no")},
	} {
		b := newSpy(t, nil)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10))})
		r := reserve(t, th, 4)
		b.failWith(func(string) error { return refusal })
		if err := r.Cancel(t.Context()); !errors.Is(err, refusal) {
			t.Errorf("%s: Cancel = %v", name, err)
		}
		b.failWith(nil)
		if err, left := r.Cancel(t.Context()), remaining(t, th, "k"); err != nil || left != 10 {
			t.Errorf("%s: Cancel again = %v, %d left, want 10", name, err, left)
		}
	}
}

func TestDeniedReservationHoldsNothing(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10))})
	reserve(t, th, 8)
	r := reserve(t, th, 4)
	if d := r.Decision(); d.Allowed || d.RetryAfter <= 0 {
		t.Errorf("%+v, want a denial", d)
	}
	for range 2 {
		if err := r.Cancel(t.Context()); err != nil {
			t.Errorf("Cancel of a denied one = %v", err)
		}
	}
	if n := b.calls.Load(); n != 2 {
		t.Errorf("%d calls reached the backend, want the two takes", n)
	}
	if got := remaining(t, th, "k"); got != 2 {
		t.Errorf("%d left, want 2", got)
	}
}

// A window that is over keeps nothing to give back, and the next one is not touched.
func TestSettleAcrossWindows(t *testing.T) {
	t.Parallel()
	now := throttlertest.NewClock()
	th := throttlertesting.New(t, throttler.Config{Backend: throttlertesting.NewMemory(t, now.Now), Policy: throttlertesting.One(limit.PerMinute(10))})
	r := reserve(t, th, 4)
	now.Advance(time.Minute)
	reserve(t, th, 7)
	if err := r.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := remaining(t, th, "k"); got != 3 {
		t.Errorf("%d left, want 3: a refund crossed into the next window", got)
	}
}

// A reservation that the failure policy made gives back to where it was charged.
func TestSettleOfAFallback(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(4)), Processes: 1})
	b.failWith(func(string) error { return throttlertesting.Outage(false) })
	for range 3 {
		r := reserve(t, th, 4)
		if d := r.Decision(); !d.Allowed || d.Source != throttler.Fallback {
			t.Fatalf("%+v, want it admitted by the failure policy", d)
		}
		if err := r.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.failWith(nil)
	if got := remaining(t, th, "k"); got != 4 {
		t.Errorf("%d left at the backend, want 4", got)
	}
}

func TestSettleWorksOnce(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(1000))})
	for range 50 {
		r := reserve(t, th, 10)
		var worked, settled atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				switch err := r.Settle(t.Context(), int64(i%2)*10); {
				case err == nil:
					worked.Add(1)
				case errors.Is(err, throttler.ErrSettled):
					settled.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if worked.Load() != 1 || settled.Load() != 7 {
			t.Fatalf("%d settled and %d got ErrSettled, want 1 and 7", worked.Load(), settled.Load())
		}
	}
	if got := remaining(t, th, "k"); got%10 != 0 || got < 500 {
		t.Errorf("%d left, want whole reservations, and no more than were made", got)
	}
}

// What is settled goes back to each key, and what could not be sent is all that goes back when it is settled again.
func TestReserveAll(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), PolicyFor: byName, Allow: []string{"good"}})
	left := func(when string, a, c, small int64) {
		t.Helper()
		for key, want := range map[string]int64{"a": a, "c": c, "small": small} {
			if got := remaining(t, th, key); got != want {
				t.Errorf("%s: %d left of %s, want %d", when, got, key, want)
			}
		}
	}
	r, err := th.ReserveAll(t.Context(), []string{"a", "good", "small", "c"}, 2)
	if err != nil || !r.Decision().Allowed || r.Decision().Remaining != 1 {
		t.Fatalf("%+v, %v, want what small has left", r.Decision(), err)
	}
	left("reserved", 8, 8, 1)
	if denied, err := th.ReserveAll(t.Context(), []string{"a", "small"}, 2); err != nil || denied.Decision().Allowed || denied.Settle(t.Context(), 1) != nil {
		t.Errorf("%+v, %v, want a denial that holds nothing", denied, err)
	}
	left("denied", 8, 8, 1)

	var refunds atomic.Int64
	b.failWith(func(call string) error {
		if call == "refund" && refunds.Add(1) == 2 {
			return throttlertesting.Outage(false)
		}
		return nil
	})
	if err := r.Settle(t.Context(), 1); err == nil || errors.Is(err, throttler.ErrSettled) {
		t.Errorf("Settle = %v, want the outage", err)
	}
	if err := r.Settle(t.Context(), 1); err != nil {
		t.Errorf("Settle again = %v", err)
	}
	left("settled", 9, 9, 2)
	if err := r.Cancel(t.Context()); !errors.Is(err, throttler.ErrSettled) || refunds.Load() != 4 {
		t.Errorf("a third time: %v after %d refunds, want ErrSettled after 4", err, refunds.Load())
	}

	for keys, want := range map[string]string{"": "[keys]", "a,": "[key]"} {
		var list []string
		if keys != "" {
			list = strings.Split(keys, ",")
		}
		if _, err := th.ReserveAll(t.Context(), list, 1); fmt.Sprint(fields(err)) != want {
			t.Errorf("keys %q: %v, want %s", list, err, want)
		}
	}
	b.failWith(nil)
	if _, err := throttlertesting.New(t, throttler.Config{Backend: bare{b}, Policy: throttlertesting.One(limit.PerHour(1))}).
		ReserveAll(t.Context(), []string{"a"}, 1); !errors.Is(err, throttler.ErrUnsupported) {
		t.Errorf("without refunds: %v, want ErrUnsupported", err)
	}
}

// An address and a user are charged together; the work turns out to be cheaper than feared.
func ExampleThrottler_ReserveAll() {
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(100)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	ctx := context.Background()
	r, err := t.ReserveAll(ctx, []string{"user:42", "addr:192.0.2.7"}, 60)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("allowed:", r.Decision().Allowed)
	if err := r.Settle(ctx, 10); err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"user:42", "addr:192.0.2.7"} {
		d, err := t.Peek(ctx, key)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, "has", d.Remaining, "left")
	}
	// Output:
	// allowed: true
	// user:42 has 90 left
	// addr:192.0.2.7 has 90 left
}
