package state_test

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func TestBucket(t *testing.T) {
	var s state.State
	play(t, &s, policyOf(limit.TokenBucket(10, time.Second, 20)), []step{
		{0, 1, "ok left=19 reset=100ms"},
		{0, 19, "ok left=0 reset=2s"},
		{0, 1, "no left=0 reset=2s retry=100ms"},
		{0, 20, "no left=0 reset=2s retry=2s"},
		{50 * time.Millisecond, 1, "no left=0 reset=2s retry=50ms"},
		{100*time.Millisecond - time.Microsecond, 1, "no left=0 reset=2s retry=1µs"},
		{100 * time.Millisecond, 1, "ok left=0 reset=2.1s"},
		{350 * time.Millisecond, 3, "no left=2 reset=2.1s retry=50ms"},
		{350 * time.Millisecond, 2, "ok left=0 reset=2.3s"},
		{2300 * time.Millisecond, 20, "ok left=0 reset=4.3s"},
		{time.Hour, 5, "ok left=15 reset=1h0m0.5s"}, // never more than the burst
	})
}

// A third of a second is no whole number of microseconds; waits are rounded up, what is kept is not rounded.
func TestBucketFractions(t *testing.T) {
	var s state.State
	play(t, &s, policyOf(limit.TokenBucket(3, time.Second, 1)), []step{
		{0, 1, "ok left=0 reset=333.334ms"},
		{0, 1, "no left=0 reset=333.334ms retry=333.334ms"},
		{333_333 * time.Microsecond, 1, "no left=0 reset=333.334ms retry=1µs"},
		{333_334 * time.Microsecond, 1, "ok left=0 reset=666.668ms"}, // idle: from here anew
		{666_668 * time.Microsecond, 1, "ok left=0 reset=1.000002s"},
	})
	s = state.State{}
	play(t, &s, policyOf(limit.TokenBucket(3, time.Second, 2)), []step{
		{0, 2, "ok left=0 reset=666.667ms"},
		{333_334 * time.Microsecond, 1, "ok left=0 reset=1s"}, // busy: three thirds are one
		{666_667 * time.Microsecond, 1, "ok left=0 reset=1.333334s"},
		{time.Second, 1, "ok left=0 reset=1.666667s"},
		{1333_333 * time.Microsecond, 1, "no left=0 reset=1.666667s retry=1µs"},
	})
}

// TestBucketDoesNotDrift: after a million takes, each at the first microsecond that admits it, the bucket is full when
// as many tokens have refilled, to the fraction.
func TestBucketDoesNotDrift(t *testing.T) {
	for l, takes := range map[limit.Limit]int{
		limit.TokenBucket(999_983, time.Second, 5): 1_000_000,
		limit.TokenBucket(3, time.Second, 2):       50_000,
		limit.TokenBucket(7, 24*time.Hour, 3):      50_000,
	} {
		p, now, admitted := policyOf(l), at(0), int64(0)
		var s state.State
		for range takes {
			v := s.Take(p, now, 1)
			if v.Allowed {
				admitted++
				continue
			}
			now.Micros += v.Binding().RetryAfter.Microseconds()
			if v = s.Take(p, now, 1); !v.Allowed {
				t.Fatalf("%s: denied when it said it would admit, %s", l, sayAll(&v))
			}
			admitted++
		}
		arrival, _ := bucketOf(t, &s, &l)
		want := refill(&l, admitted)
		want.Add(want, new(big.Rat).SetInt64(start.UnixMicro()))
		if arrival.Cmp(want) != 0 {
			t.Errorf("%s: after %d takes full at %s, want %s", l, admitted, arrival.FloatString(9), want.FloatString(9))
		}
	}
}

// TestBucketIsGCRA compares decisions, waits, what remains and what is stored with the textbook's rule in rational
// numbers, under any clock.
func TestBucketIsGCRA(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawBucket(t)
		w := &world{policy: policyOf(l), now: at(0)}
		model := &bucketModel{limit: l, full: new(big.Rat)}
		repeat(t, func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "back") == 9 {
				w.now.Micros -= w.drawPause(t)
			} else {
				w.tick(t)
			}
			now, cost := new(big.Rat).SetInt64(w.now.Micros), w.drawCost(t)
			wait := model.next(w.now, cost)
			wait.Sub(wait, refill(&l, l.Burst)).Sub(wait, now)
			w.last = w.state.Take(w.policy, w.now, cost)
			if w.last.Allowed != (wait.Sign() <= 0) {
				t.Fatalf("%s: %d at %d: %s, should wait %sus", l, cost, w.now.Micros, sayAll(&w.last), wait.FloatString(6))
			}
			if w.last.Allowed {
				model.charge(w.now, cost)
			} else if got, want := w.last.Binding().RetryAfter.Microseconds(), -floor(wait.Neg(wait)); got != want {
				t.Fatalf("%s: retry after %dus, want %dus", l, got, want)
			}
			left := refill(&l, l.Burst)
			left.Sub(left, model.next(w.now, 0)).Add(left, now).Quo(left, refill(&l, 1))
			if got, want := w.last.Binding().Remaining, floor(left); got != max(want, 0) {
				t.Fatalf("%s: %d left, want %d", l, got, want)
			}
			arrival, credit := bucketOf(t, &w.state, &l)
			if model.full.Cmp(now) > 0 && arrival.Cmp(model.full) != 0 || credit.Sign() != 0 {
				t.Fatalf("%s: stored %s, full at %s", l, w.state.String(), model.full.FloatString(6))
			}
		})
	})
}

func floor(r *big.Rat) int64 {
	return new(big.Int).Div(r.Num(), r.Denom()).Int64() // the denominator is positive
}

func TestBucketClockSteppingBack(t *testing.T) {
	var s state.State
	play(t, &s, policyOf(limit.TokenBucket(1, time.Second, 3)), []step{
		{10 * time.Second, 2, "ok left=1 reset=12s"},
		{9 * time.Second, 1, "no left=0 reset=12s retry=1s"}, // nothing has refilled, and what will needs longer
		{8 * time.Second, 1, "no left=0 reset=12s retry=2s"},
		{10 * time.Second, 1, "ok left=0 reset=13s"},
		{0, 3, "no left=0 reset=13s retry=13s"},
		{13 * time.Second, 3, "ok left=0 reset=16s"},
	})
}

// A changed burst applies at once: what was spent stays spent. A changed rate refills the same lack faster or
// slower, the time at which the bucket is full is kept.
func TestBucketChangedBurstAndRate(t *testing.T) {
	with := func(rate, burst int64) *limit.Policy { return policyOf(limit.TokenBucket(rate, time.Second, burst)) }
	var s state.State
	play(t, &s, with(10, 20), []step{{0, 20, "ok left=0 reset=2s"}})
	play(t, &s, with(10, 25), []step{{0, 6, "no left=5 reset=2s retry=100ms"}, {0, 5, "ok left=0 reset=2.5s"}})
	play(t, &s, with(10, 5), []step{
		{0, 1, "no left=0 reset=2.5s retry=2.1s"},
		{2100 * time.Millisecond, 2, "no left=1 reset=2.5s retry=100ms"},
		{2100 * time.Millisecond, 1, "ok left=0 reset=2.6s"},
	})
	play(t, &s, with(20, 5), []step{
		{2100 * time.Millisecond, 1, "no left=0 reset=2.6s retry=300ms"},
		{2600 * time.Millisecond, 5, "ok left=0 reset=2.85s"},
	})
}

// A fraction that was written under a larger rate is read as the largest of the rate now.
func TestBucketFractionsOfAnotherRate(t *testing.T) {
	rate := func(n int64) *limit.Policy { return policyOf(limit.TokenBucket(n, time.Second, 3)) }
	now := start.UnixMicro()
	s := decode(t, fmt.Sprintf("b1s:%d.999982,500000,500000,%d.999982,5.999982;", now+500_000, now+500_000))
	play(t, &s, rate(3), []step{{0, 1, "ok left=0 reset=833.329ms"}})
	if got, want := s.String(), fmt.Sprintf("b1s:%d.1,833328,833328,%d,5.2;", now+833_328, now+833_334); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	play(t, &s, rate(1), []step{{0, 2, "ok left=0 reset=2.833329s"}})
	if got, want := s.String(), fmt.Sprintf("b1s:%d,2833329,2833329,%d,5;", now+2_833_329, now+2_833_334); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A bucket that can't count any further gives nothing back; up to there it does.
func TestBucketNeverOverflows(t *testing.T) {
	const most = 1<<52 - 1 // microseconds of credit
	for _, test := range []struct{ credit, left int64 }{{most - 1_000_000, 10}, {most - 999_999, 9}} {
		p, now := policyOf(limit.TokenBucket(1, time.Second, 10)), start.UnixMicro()
		s := decode(t, fmt.Sprintf("b1s:%d,1,1,%d,%d;", now+1, now+test.credit, test.credit))
		r := chargeOf(t, &s, p, at(0), 1)
		s.Refund(at(0), r, 1)
		if v := s.Peek(p, at(0), 1); v.Binding().Remaining != test.left {
			t.Errorf("with a credit of %d: %d left, want %d: %s", test.credit, v.Binding().Remaining, test.left, s.String())
		}
	}
}
