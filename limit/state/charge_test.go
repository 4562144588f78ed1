package state_test

import (
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// drawMark draws a mark: none, that of an earlier charge, or of an earlier moment.
func (w *world) drawMark(t *rapid.T) state.Mark {
	switch rapid.SampledFrom([]string{"now", "receipt", "receipt", "moment", "moment"}).Draw(t, "mark") {
	case "receipt":
		if len(w.charges) > 0 {
			back := rapid.OneOf(rapid.IntRange(1, 3), rapid.IntRange(1, 50)).Draw(t, "which mark")
			return w.charges[max(len(w.charges)-back, 0)].receipt.Mark()
		}
	case "moment":
		then := w.now
		then.Micros -= min(w.drawPause(t), then.Micros-1)
		m, _ := state.MarkAt(w.policy, then)
		return m
	}
	return state.Mark{}
}

// drawCharge draws what a charge may cost: also far more than a limit can hold.
func (w *world) drawCharge(t *rapid.T) int64 {
	return rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 50), rapid.Just(w.drawCost(t)),
		rapid.SampledFrom([]int64{1 << 46, 1 << 52, limit.MaxCount})).Draw(t, "charge")
}

// TestChargeIsATakeWhereThereIsRoom: a charge at now is a take that nothing denies.
func TestChargeIsATakeWhereThereIsRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take refund reset max code charge", func(kind string) {
			if kind != "take" {
				return
			}
			before, again := w.state.Clone(), w.state.Clone()
			take := before.Take(w.policy, w.now, w.cost)
			if !take.Allowed {
				return
			}
			charge := again.Charge(w.policy, w.now, state.Mark{}, w.cost)
			bound := charge.Receipt().Cost == 0 && w.cost > 1<<40 // this charge meets one
			if !again.Equal(&before) || sayAll(&charge) != sayAll(&take) || !bound && !sameReceipt(charge.Receipt(), take.Receipt()) {
				t.Fatalf("took %d: %s, %q\ncharged: %s, %q", w.cost, sayAll(&take), before.String(), sayAll(&charge), again.String())
			}
		})
	})
}

func sameReceipt(a, b state.Receipt) bool {
	if a.Cost != b.Cost || a.Policy() != b.Policy() {
		return false
	}
	for i := range a.Policy().Limits {
		e, p, f := a.Charge(i)
		if e2, p2, f2 := b.Charge(i); e != e2 || p != p2 || f != f2 {
			return false
		}
	}
	return true
}

// TestChargesOnlyAdd: a charge is a step up in the order of Merge. It leaves a valid state, whose reader says the same of it, and
// it never gives back.
func TestChargesOnlyAdd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take refund reset charge max code", func(string) {
			before, mark, cost := w.state.Clone(), w.drawMark(t), w.drawCharge(t)
			peek := before.Peek(w.policy, w.now, 1)
			after := before.Clone()
			v := after.Charge(w.policy, w.now, mark, cost)
			if merged := state.Merge(before, after, w.now); !merged.Equal(ptr(settled(&after, w.policy, w.now))) {
				t.Fatalf("%q charged %d is %q, merged %q", before.String(), cost, after.String(), merged.String())
			}
			decoded := decode(t, after.String())
			again := decoded.Charged(w.policy, w.now, mark, cost)
			if !v.Allowed || sayAll(&again) != sayAll(&v) || !sameReceipt(again.Receipt(), v.Receipt()) {
				t.Fatalf("charged %d: %s, decoded: %s", cost, sayAll(&v), sayAll(&again))
			}
			left := remaining(&peek)
			for i, is := range remaining(&v) {
				if is > left[i] || is < 0 || is < left[i]-cost {
					t.Fatalf("%s: %d remained, and %d after a charge of %d", w.policy.Limits[i], left[i], is, cost)
				}
			}
		})
	})
}

func ptr[T any](v T) *T { return &v }

func remaining(v *state.Verdict) (left []int64) {
	for s := range v.All() {
		left = append(left, s.Remaining)
	}
	return left
}

// TestChargeAndRefund: what is refunded at once leaves as much as before, for whatever cost.
func TestChargeAndRefund(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take refund reset charge code", func(string) {
			s, cost := w.state.Clone(), w.drawCost(t)
			before, mark, more := s.Peek(w.policy, w.now, cost), w.drawMark(t), w.drawCharge(t)
			v := s.Charge(w.policy, w.now, mark, more)
			r := v.Receipt()
			if r.Cost != more && r.Cost != 0 { // 0 if the state is at a bound
				t.Fatalf("a charge of %d left a receipt for %d", more, r.Cost)
			}
			s.Refund(w.now, &r, more)
			after := s.Peek(w.policy, w.now, cost)
			if left := remaining(&before); r.Cost > 0 && (!slices.Equal(remaining(&after), left) || after.Allowed != before.Allowed) {
				t.Fatalf("%s is after a charge of %d and its refund %s\n%q\n%q", sayAll(&before), more, sayAll(&after), w.state.String(), s.String())
			}
			if r.Cost == 0 && slices.Max(remaining(&after)) > slices.Max(remaining(&before)) {
				t.Fatal("a charge that met a bound gave back")
			}
		})
	})
}

// TestChargesMergeInAnyOrder: copies of a state that were charged apart merge in any order, any number of times.
func TestChargesMergeInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 3)
		copies := []state.State{{}, {}, {}}
		repeat(t, func(t *rapid.T) {
			i := rapid.IntRange(0, 2).Draw(t, "copy")
			w.state = copies[i]
			switch rapid.SampledFrom([]string{"take", "charge", "charge", "refund", "tick", "reset", "join"}).Draw(t, "step") {
			case "take":
				w.take(t)
			case "charge":
				w.charge(t)
			case "refund":
				w.refund(t)
			case "tick":
				w.tick(t)
			case "reset":
				w.state.Reset(w.policy, w.now)
			case "join":
				w.state.Join(w.policy, w.now, &copies[rapid.IntRange(0, 2).Draw(t, "other")])
			}
			copies[i] = w.state
			a, b, c := copies[0], copies[1], copies[2]
			ab, ba := state.Merge(a, b, w.now), state.Merge(b, a, w.now)
			twice := state.Merge(ab, b, w.now)
			left, right := state.Merge(ab, c, w.now), state.Merge(a, state.Merge(b, c, w.now), w.now)
			if !ab.Equal(&ba) || !twice.Equal(&ab) {
				t.Fatalf("%q and %q: %q, %q, %q", a.String(), b.String(), ab.String(), ba.String(), twice.String())
			}
			text := a.String() + b.String() + c.String()
			refunds := windowsOf(text) == 2 && strings.Contains(text, "-") // the earlier window has used less in the merged copies
			if !left.Equal(&right) && !lostTwice(text) && !refunds {
				t.Fatalf("%q, %q and %q: %q or %q", a.String(), b.String(), c.String(), left.String(), right.String())
			}
			for _, s := range []state.State{ab, left} {
				decode(t, s.String())
			}
		})
	})
}

// charge charges under a drawn mark.
func (w *world) charge(t *rapid.T) {
	cost := w.drawCharge(t)
	w.last = w.state.Charge(w.policy, w.now, w.drawMark(t), cost)
	if r := w.last.Receipt(); r.Cost > 0 {
		w.charges = append(w.charges, &charge{at: w.now, cost: cost, receipt: r})
	}
}

// TestChargedWindows holds marked charges to a model: what was admitted at a moment counts in the window or sub-bucket of that
// moment, whenever it is charged.
func TestChargedWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		max := rapid.Int64Range(1, 20).Draw(t, "max")
		l := limit.Fixed(max, drawWindow(t)).Aligned()
		switch rapid.SampledFrom([]string{"aligned", "staggered", "sliding"}).Draw(t, "kind") {
		case "staggered":
			l = limit.Fixed(max, l.Window).Staggered()
		case "sliding":
			l = drawSliding(t, max)
		}
		w := drawWorld(t, 1)
		w.policy = policyOf(l)
		until := map[int64]int64{} // what counts until when
		used := func() (sum int64) {
			for end, cost := range until {
				if end > w.now.Micros {
					sum += cost
				}
			}
			return sum
		}
		repeat(t, func(t *rapid.T) {
			switch rapid.SampledFrom([]string{"tick", "take", "charge"}).Draw(t, "step") {
			case "tick":
				w.tick(t)
			case "take":
				fits, v := used(), w.take(t)
				if v.Allowed != (fits+w.cost <= max) {
					t.Fatalf("%s: a take of %d with %d in use: %t", l, w.cost, fits, v.Allowed)
				}
				if v.Allowed {
					until[state.End(&l, w.now)*1000] += w.cost
				}
			case "charge":
				then, cost := w.now, rapid.Int64Range(1, 30).Draw(t, "cost")
				then.Micros -= min(w.drawPause(t), 2*l.Window.Microseconds())
				mark, ok := state.MarkAt(w.policy, then)
				if !ok {
					t.Fatalf("%s has no mark", l)
				}
				w.last = w.state.Charge(w.policy, w.now, mark, cost)
				until[state.End(&l, then)*1000] += cost
			}
			v := w.state.Peek(w.policy, w.now, 1)
			if left := v.Binding().Remaining; left != maxOf(max-used(), 0) {
				t.Fatalf("%s: %d left with %d in use, %q", l, left, used(), w.state.String())
			}
			if sum, _, ok := w.state.Usage(w.policy, w.now, l.Window); ok && sum != used() {
				t.Fatalf("%s: usage %d with %d in use", l, sum, used())
			}
		})
	})
}

func maxOf(a, b int64) int64 { return max(a, b) }

// TestChargedBucketIsGCRA: a bucket is charged as if it had met the requests in the order of the charges, each at its mark. So in
// any interval all that was admitted and charged in time delays the refill.
func TestChargedBucketIsGCRA(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawBucket(t)
		w := &world{policy: policyOf(l), now: at(0)}
		m := bucketModel{limit: l, full: new(big.Rat)}
		repeat(t, func(t *rapid.T) {
			switch rapid.SampledFrom([]string{"tick", "take", "charge", "charge"}).Draw(t, "step") {
			case "tick":
				w.tick(t)
			case "take":
				v := w.take(t)
				if v.Allowed != m.admits(w.now, w.cost) {
					t.Fatalf("%s: a take of %d was admitted: %t", &l, w.cost, v.Allowed)
				}
				if v.Allowed {
					m.charge(w.now, w.cost)
				}
			case "charge":
				then, cost := w.now, rapid.Int64Range(1, 60).Draw(t, "cost") // never to the bound of ten years
				then.Micros -= w.drawPause(t)
				mark, _ := state.MarkAt(w.policy, then)
				w.last = w.state.Charge(w.policy, w.now, mark, cost)
				m.charge(then, cost)
			}
			arrival, credit := bucketOf(t, &w.state, &l)
			if arrival.Sign() > 0 && (arrival.Cmp(m.full) != 0 || credit.Sign() != 0) {
				t.Fatalf("%s is full at %s, want %s", &l, arrival.FloatString(3), m.full.FloatString(3))
			}
		})
	})
}

// TestChargeSaturates: no sum leaves what Lua and the encoding can hold, no receipt gives back more than was charged, and a reset
// still brings everything back.
func TestChargeSaturates(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.Fixed(10, time.Hour), limit.Fixed(limit.MaxCount, time.Hour), limit.Sliding(1<<46, time.Hour, time.Minute),
		limit.Sliding(5, time.Hour, 30*time.Second), limit.TokenBucket(1, time.Hour, 10), limit.TokenBucket(1<<52, time.Hour, limit.MaxCount),
		limit.TokenBucket(1, limit.MaxWindow, 1), limit.TokenBucket(999_983, time.Microsecond, 10),
	} {
		p, quota := policyOf(l), l.Quota()
		var s state.State
		for i := range 200 {
			now := at(time.Duration(i) * 20 * time.Second)
			v := s.Charge(p, now, state.Mark{}, limit.MaxCount)
			r := v.Receipt()
			s.Refund(now, &r, limit.MaxCount)
			s.Charge(p, now, state.Mark{}, limit.MaxCount)
			s = decode(t, s.String())
			if peek := s.Peek(p, now, 1); peek.Allowed && l.Quota() != limit.MaxCount && l.Max < 1<<46 && l.Max != 999_983 {
				t.Fatalf("%s admits after charges of %d: %q", l, limit.MaxCount, s.String())
			}
		}
		now := at(200 * 20 * time.Second)
		s.Reset(p, now)
		if v := s.Peek(p, now, 1); v.Binding().Remaining != quota {
			t.Errorf("%s after a reset: %s, %q", l, sayAll(&v), s.String())
		}
	}
}

// A mark beyond the windows of now, by a clock that is ahead, charges them: it frees nothing.
func TestChargeMarkAhead(t *testing.T) {
	now := state.At{Micros: 1_767_225_600_000_000 + 30_000_000}
	for _, l := range []limit.Limit{limit.PerMinute(10), limit.PerMinute(10).Aligned(), limit.Sliding(10, time.Minute, time.Second)} {
		p := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
		var s state.State
		s.Take(p, now, 10)
		mark, _ := state.MarkAt(&limit.Policy{Name: "p", Limits: []limit.Limit{l.Aligned()}}, state.At{Micros: now.Micros + 61_000_000})
		if l.Algorithm == limit.SlidingWindow {
			mark, _ = state.MarkAt(p, state.At{Micros: now.Micros + 61_000_000})
		}
		s.Charge(p, now, mark, 1)
		if v := s.Peek(p, now, 1); v.Allowed || v.Binding().Remaining != 0 {
			t.Errorf("%s: %d remain", l, v.Binding().Remaining)
		}
	}
}

// A mark has room for the buckets of a long policy.
func TestAdmitLongPolicy(t *testing.T) {
	p := &limit.Policy{Name: "p"}
	for i := range 6 {
		p.Limits = append(p.Limits, limit.TokenBucket(1, time.Duration(i+1)*time.Second, 10))
	}
	var m state.Mark
	if m.Admit(p, 7); m.At(5) != 7 {
		t.Errorf("%+v", m)
	}
}
