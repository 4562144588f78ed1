package state_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestRefundsGiveBackWhatWasCharged: whatever is given back, in part, late, out of order, or after its window, and
// after a reset: of a window there remains Max less what was charged in it and not given back. So no window ever
// holds more than Max of what was not given back.
func TestRefundsGiveBackWhatWasCharged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take take refund refund reset code", func(string) {
			s := w.state.Clone()
			v := s.Peek(w.policy, w.now, 1)
			i := 0
			for status := range v.All() {
				if l := status.Limit; l.Algorithm != limit.Bucket {
					used := int64(0)
					for _, c := range w.charges {
						if end, _, _ := c.receipt.Charge(i); end > w.now.Micros {
							used += c.net()
						}
					}
					if status.Remaining != l.Max-used || used > l.Max {
						t.Fatalf("%s: %d left, %d in use, %s", l, status.Remaining, used, w.state.String())
					}
				}
				if status.Remaining < 0 || status.Remaining > status.Limit.Quota() {
					t.Fatalf("%s: %d left", status.Limit, status.Remaining)
				}
				i++
			}
		})
	})
}

// TestBucketRefundsAreNeverGenerous holds the bucket's rule to the exact one, which needs the whole history: a
// charge that had been smaller by r would leave the bucket emptier by min(r, the least lack since), because what the
// bucket was full of in between nobody could save.
//
//   - No refund gives back more than that.
//   - The refund of the newest charge gives back just that.
//   - The bucket never lacks less than if every charge had been smaller by its refund from the start. So in any
//     interval what was admitted, net of refunds, is at most burst + rate x T.
func TestBucketRefundsAreNeverGenerous(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawBucket(t)
		w := &world{policy: policyOf(l), now: at(0)}
		least := map[*charge]*big.Rat{} // what the bucket lacked at least since the charge
		see := func() *big.Rat {
			lack := lackOf(t, w, &l)
			for _, c := range w.charges {
				if least[c] == nil || lack.Cmp(least[c]) < 0 {
					least[c] = lack
				}
			}
			return lack
		}
		repeat(t, func(t *rapid.T) {
			switch rapid.SampledFrom([]string{"take", "refund", "tick", "take", "refund", "reset"}).Draw(t, "step") {
			case "tick":
				w.tick(t)
			case "take":
				w.take(t)
				sum := int64(0)
				for i := len(w.charges) - 1; i >= 0; i-- {
					sum += w.charges[i].net()
					if interval := w.now.Micros - w.charges[i].at.Micros; !allows(&l, interval, sum) {
						t.Fatalf("%s admitted %d within %dus", l, sum, interval)
					}
				}
			case "reset":
				if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					w.reset()
				}
			case "refund":
				was := see()
				c, asked := w.refund(t)
				if c == nil {
					return
				}
				given := new(big.Rat).Sub(was, lackOf(t, w, &l))
				exact := refill(&l, asked)
				if exact.Cmp(least[c]) > 0 {
					exact = least[c]
				}
				if given.Sign() < 0 || given.Cmp(exact) > 0 {
					t.Fatalf("%s: %d of %d gave %s, exact is %s: %s", l, asked, c.cost, given.FloatString(3), exact.FloatString(3), w.state.String())
				}
				if c == w.charges[len(w.charges)-1] && given.Cmp(exact) != 0 {
					t.Fatalf("%s: %d of the newest %d gave %s of %s: %s", l, asked, c.cost, given.FloatString(3), exact.FloatString(3), w.state.String())
				}
			}
			lack := see()
			if ideal := idealLack(w, &l); lack.Cmp(ideal) < 0 {
				t.Fatalf("%s: lacks %s, must lack %s: %s", l, lack.FloatString(3), ideal.FloatString(3), w.state.String())
			}
		})
	})
}

// lackOf is how long the bucket needs to be full, by what is stored.
func lackOf(t rapid.TB, w *world, l *limit.Limit) *big.Rat {
	arrival, credit := bucketOf(t, &w.state, l)
	lack := arrival.Sub(arrival, credit)
	if lack.Sub(lack, new(big.Rat).SetInt64(w.now.Micros)); lack.Sign() < 0 {
		lack.SetInt64(0)
	}
	return lack
}

// idealLack is how long it would need if every charge had been net of its refund from the start.
func idealLack(w *world, l *limit.Limit) *big.Rat {
	lack, last := new(big.Rat), int64(0)
	pass := func(now int64) {
		if lack.Sub(lack, new(big.Rat).SetInt64(now-last)); lack.Sign() < 0 {
			lack.SetInt64(0)
		}
		last = now
	}
	for _, c := range w.charges {
		pass(c.at.Micros)
		lack.Add(lack, refill(l, c.net()))
	}
	pass(w.now.Micros)
	return lack
}

// chargeOf takes cost, which must be admitted, and returns the receipt.
func chargeOf(t *testing.T, s *state.State, p *limit.Policy, now state.At, cost int64) *state.Receipt {
	t.Helper()
	v := s.Take(p, now, cost)
	if !v.Allowed {
		t.Fatalf("%d denied: %s", cost, sayAll(&v))
	}
	r := v.Receipt()
	return &r
}

// wantLeft checks what remains of the binding limit.
func wantLeft(t *testing.T, s *state.State, p *limit.Policy, now state.At, want int64) {
	t.Helper()
	c := s.Clone()
	if v := c.Peek(p, now, 1); v.Binding().Remaining != want {
		t.Errorf("%d left, want %d: %s", v.Binding().Remaining, want, s.String())
	}
}

func TestBucketRefunds(t *testing.T) {
	p := policyOf(limit.TokenBucket(1, time.Second, 10))
	t.Run("as far as it has not refilled", func(t *testing.T) {
		var s state.State
		r := chargeOf(t, &s, p, at(0), 6)
		wantLeft(t, &s, p, at(4*time.Second), 8)
		s.Refund(at(4*time.Second), r, 6) // 4 of the 6 are back already
		wantLeft(t, &s, p, at(4*time.Second), 10)
		chargeOf(t, &s, p, at(4*time.Second), 10)
		wantLeft(t, &s, p, at(5*time.Second), 1)
	})
	t.Run("behind others", func(t *testing.T) {
		var s state.State
		first := chargeOf(t, &s, p, at(0), 4)
		second := chargeOf(t, &s, p, at(0), 6)
		s.Refund(at(3*time.Second), second, 6) // its tokens have not begun to refill
		wantLeft(t, &s, p, at(3*time.Second), 9)
		s.Refund(at(3*time.Second), first, 4) // that overtook what was left of this one
		wantLeft(t, &s, p, at(3*time.Second), 9)
	})
	t.Run("in the order of the charges all comes back", func(t *testing.T) {
		var s state.State
		var receipts []*state.Receipt
		for _, cost := range []int64{1, 4, 2, 3} {
			receipts = append(receipts, chargeOf(t, &s, p, at(0), cost))
		}
		for _, r := range receipts {
			s.Refund(at(0), r, r.Cost)
		}
		wantLeft(t, &s, p, at(0), 10)
	})
	t.Run("a charge that is lost", func(t *testing.T) {
		var s state.State
		r := chargeOf(t, &s, p, at(0), 6)
		s = state.State{}
		chargeOf(t, &s, p, at(0), 2)
		before := s.String()
		s.Refund(at(0), r, 6)
		if got := s.String(); got != before {
			t.Errorf("%s became %s", before, got)
		}
	})
}

// Of concurrent reservations any may be cancelled first: a window gets all of them back.
func TestWindowRefundsInAnyOrder(t *testing.T) {
	for _, l := range []limit.Limit{limit.Fixed(10, time.Minute), limit.Sliding(10, time.Minute, time.Second)} {
		p := policyOf(l)
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
			var s state.State
			receipts := []*state.Receipt{
				chargeOf(t, &s, p, at(0), 5), chargeOf(t, &s, p, at(0), 3), chargeOf(t, &s, p, at(2*time.Second), 2),
			}
			for _, i := range order {
				s.Refund(at(3*time.Second), receipts[i], 10)
			}
			wantLeft(t, &s, p, at(3*time.Second), 10)
		}
	}
}

// TestImmediateRefund: the newest charge given back at once restores the verdict there was before it.
func TestImmediateRefund(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take take refund reset", func(string) {
			cost, next := w.drawCost(t), w.drawCost(t)
			s := w.state.Clone()
			before := s.Peek(w.policy, w.now, next)
			v := s.Take(w.policy, w.now, cost)
			if !v.Allowed {
				return
			}
			r := v.Receipt()
			s.Refund(w.now, &r, cost)
			after := s.Peek(w.policy, w.now, next)
			if before.Allowed != after.Allowed || before.Binding().RetryAfter != after.Binding().RetryAfter {
				t.Fatalf("before %s, after %s", sayAll(&before), sayAll(&after))
			}
			statuses := map[limit.Limit]limit.Status{}
			for status := range before.All() {
				statuses[status.Limit] = status
			}
			for status := range after.All() {
				was := statuses[status.Limit]
				if was.Remaining == was.Limit.Quota() { // the reset is that of a window that is not charged
					was.ResetAt = status.ResetAt
				}
				if was != status {
					t.Fatalf("before %s, after %s", sayAll(&before), sayAll(&after))
				}
			}
		})
	})
}

// The same where nothing else was charged: ResetAt is again what it would be if taken now.
func TestImmediateRefundOfTheOnlyCharge(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.Fixed(5, time.Minute), limit.PerMinute(5).Aligned(), limit.Sliding(5, time.Minute, time.Second),
		limit.TokenBucket(5, time.Minute, 5),
	} {
		p := policyOf(l)
		var s state.State
		before := s.Peek(p, at(0), 1)
		s.Refund(at(0), chargeOf(t, &s, p, at(0), 3), 3)
		if after := s.Peek(p, at(0), 1); say(&after) != say(&before) {
			t.Errorf("%s: before %q, after %q", l, say(&before), say(&after))
		}
	}
}

// TestRefundOfAnotherWindow: a window that is over, or that is not the one that was charged, keeps what it counts.
func TestRefundOfAnotherWindow(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.Fixed(10, time.Minute), limit.Fixed(10, time.Minute).Aligned(), limit.Fixed(10, time.Minute).Staggered(),
		limit.Sliding(10, time.Minute, time.Minute), limit.TokenBucket(10, time.Minute, 10),
	} {
		p := policyOf(l)
		var s state.State
		r := chargeOf(t, &s, p, at(0), 5)
		chargeOf(t, &s, p, at(time.Minute), 5)
		before := s.String()
		s.Refund(at(time.Minute), r, 5)
		s.Refund(at(time.Hour), r, 5) // nor after everything is over
		if got := s.String(); got != before {
			t.Errorf("%s: %s became %s", l, before, got)
		}
		var none state.State // and where nothing is known
		if none.Refund(at(0), r, 5); !none.Empty() {
			t.Errorf("%s: a refund made %s", l, none.String())
		}
	}
}

// A sub-bucket that has left the window is over like any window.
func TestRefundOfASubBucketThatLeft(t *testing.T) {
	p := policyOf(anHour)
	var s state.State
	r := chargeOf(t, &s, p, at(0), 5)
	chargeOf(t, &s, p, at(30*time.Minute), 5)
	before := s.String()
	s.Refund(at(time.Hour), r, 5)
	if got := s.String(); got != before {
		t.Errorf("%s became %s", before, got)
	}
}

// A charge that was lost with its window's state is not known: others' charges in the same window stay.
func TestRefundOfALostCharge(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.Fixed(10, time.Minute).Aligned(), limit.Sliding(10, time.Minute, time.Second), limit.TokenBucket(10, time.Minute, 10),
	} {
		p := policyOf(l)
		var s state.State
		r := chargeOf(t, &s, p, at(0), 8)
		s = state.State{}
		chargeOf(t, &s, p, at(0), 3)
		s.Refund(at(0), r, 8)
		c := s.Clone()
		if v := c.Peek(p, at(0), 1); v.Binding().Remaining != 7 {
			t.Errorf("%s: 3 are in use, %d of 10 left: %s", l, v.Binding().Remaining, s.String())
		}
	}
}

// Used never goes below 0, also where a receipt is used twice, as it must not be, or what it names was lost.
func TestRefundsNeverGoBelowZero(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.Fixed(10, time.Minute).Aligned(), limit.Sliding(10, time.Minute, time.Second), limit.TokenBucket(10, time.Minute, 10),
	} {
		p := policyOf(l)
		var s state.State
		r := chargeOf(t, &s, p, at(0), 8)
		for range 3 {
			s.Refund(at(0), r, 8)
		}
		wantLeft(t, &s, p, at(0), 10)
		lost := decode(t, "")
		chargeOf(t, &lost, p, at(0), 3)
		lost.Refund(at(0), r, 8)
		v := lost.Peek(p, at(0), 1)
		if left := v.Binding().Remaining; left < 7 || left > 10 {
			t.Errorf("%s: %d left: %s", l, left, lost.String())
		}
		decode(t, s.String())
		decode(t, lost.String())
	}
}

func TestRefundAmounts(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.Fixed(10, time.Minute), limit.Sliding(10, time.Minute, time.Second), limit.TokenBucket(10, time.Minute, 10),
	} {
		for _, test := range []struct{ amount, left int64 }{
			{-1 << 63, 1}, {-1, 1}, {0, 1}, {1, 2}, {6, 7}, {7, 7}, {1<<63 - 1, 7}, // 6 of 9 were this charge
		} {
			var s state.State
			r := chargeOf(t, &s, policyOf(l), at(0), 6)
			chargeOf(t, &s, policyOf(l), at(0), 3)
			s.Refund(at(0), r, test.amount)
			c := s.Clone()
			if v := c.Peek(policyOf(l), at(0), 1); v.Binding().Remaining != test.left {
				t.Errorf("%s: %d of 6 given back: %d left, want %d", l, test.amount, v.Binding().Remaining, test.left)
			}
		}
	}
}

// TestBucketRefundsDoNotPileUp: a key that reserves and cancels all day owes nothing in the end. Its state is over
// as soon as the bucket would have been full without the refunds, and it is never locked out.
func TestBucketRefundsDoNotPileUp(t *testing.T) {
	day := policyOf(limit.TokenBucket(1000, 24*time.Hour, 1000))
	var s state.State
	for range 1000 {
		s.Refund(at(0), chargeOf(t, &s, day, at(0), 1000), 1000)
	}
	if keep := time.Duration(s.Until()-start.UnixMicro()) * time.Microsecond; keep > 24*time.Hour {
		t.Errorf("%s: a full bucket that refills within a day is remembered for %s", s.String(), keep)
	}

	for i := range 50_000 {
		v := s.Take(day, at(0), 1000)
		if !v.Allowed {
			t.Fatalf("%s: denied after %d charges that were all given back, for %s", s.String(), i, v.Binding().RetryAfter)
		}
		r := v.Receipt()
		s.Refund(at(0), &r, r.Cost)
	}
}

// TestReset: the full quota is back, and no older floor can undo it.
func TestReset(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		floors := []state.State{{}}
		w.live(t, "tick take take take refund reset", func(string) {
			floors = append(floors, w.state.Clone())
			s := w.state.Clone()
			s.Reset(w.policy, w.now)
			if s.Until() != max(s.Until(), settledUntil(w)) {
				t.Fatalf("%s is over before %s, which it must outlive", s.String(), w.state.String())
			}
			after := s.Clone()
			floor := floors[rapid.IntRange(0, len(floors)-1).Draw(t, "floor")]
			later := w.now
			later.Micros += w.drawPause(t)
			if s.Join(w.policy, later, &floor) {
				t.Fatalf("%s learned from %s: %s", after.String(), floor.String(), s.String())
			}
			for _, s := range []state.State{after, s} {
				v := s.Peek(w.policy, later, 1)
				for status := range v.All() {
					if status.Remaining != status.Limit.Quota() {
						t.Fatalf("%s left after a reset: %s", sayAll(&v), s.String())
					}
				}
			}
		})
	})
}

func settledUntil(w *world) int64 {
	s := settled(&w.state, w.policy, w.now)
	return s.Until()
}

// A reset gives every charge back. A receipt from before it must not do so once more, at the cost of what was charged
// since.
func TestRefundAfterReset(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.Fixed(10, time.Minute), limit.Sliding(10, time.Minute, time.Second), limit.TokenBucket(10, time.Minute, 10),
	} {
		p := policyOf(l)
		var s state.State
		r := chargeOf(t, &s, p, at(0), 10)
		s.Reset(p, at(0))
		chargeOf(t, &s, p, at(0), 10)
		s.Refund(at(0), r, 10)
		c := s.Clone()
		if v := c.Peek(p, at(0), 1); v.Binding().Remaining != 0 {
			t.Errorf("%s: 10 of 10 in use since the reset, and %d left: %s", l, v.Binding().Remaining, s.String())
		}
	}
}

// Reset and refund name the limits of a policy; what another policy counts for the key stays.
func TestRefundAndResetLeaveOtherPoliciesAlone(t *testing.T) {
	one, other := policyOf(limit.PerMinute(5)), policyOf(limit.PerHour(5), limit.TokenBucket(1, time.Minute, 5))
	var s state.State
	r := chargeOf(t, &s, one, at(0), 2)
	chargeOf(t, &s, other, at(0), 3)
	s.Refund(at(0), r, 2)
	wantLeft(t, &s, one, at(0), 5)
	wantLeft(t, &s, other, at(0), 2)
	chargeOf(t, &s, one, at(0), 4)
	s.Reset(other, at(0))
	wantLeft(t, &s, one, at(0), 1)
	wantLeft(t, &s, other, at(0), 5)
	if r.Policy() != one {
		t.Error("the receipt names another policy")
	}
}
