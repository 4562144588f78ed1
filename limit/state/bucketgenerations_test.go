package state_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// The invariant of a bucket, whatever times its operations have read before they queued, and whatever older copies of its
// state are joined with it:
//
//   - Of any operations in a row, what is admitted from one read at a to one read at b, net of refunds, is at most burst +
//     rate x (b - a).
//   - A copy from before teaches nothing to one from after it, at any moment.
//   - A receipt from before the bucket was full changes nothing.

// A copy from before the bucket was full knows of refunds. They give back nothing that was charged since.
func TestBucketFloorOfAnEarlierLife(t *testing.T) {
	p := policyOf(limit.TokenBucket(10, time.Second, 10))
	var s state.State
	for range 5 {
		s.Refund(at(0), chargeOf(t, &s, p, at(0), 10), 10)
	}
	floor := s.Clone()
	chargeOf(t, &s, p, at(time.Second), 10) // the bucket has been full, and is empty now
	for _, read := range []time.Duration{999 * time.Millisecond, 940 * time.Millisecond, 0} {
		late := s.Clone()
		late.Join(p, at(read), &floor)
		if v := late.Take(p, at(read), 1); v.Allowed {
			t.Errorf("10 admitted at 1s, then with a floor of 0s and a clock read at %s: %s, from %s", read, sayAll(&v), late.String())
		}
		for _, merged := range []state.State{state.Merge(s, floor, at(read)), state.Merge(floor, s, at(read))} {
			if !merged.Equal(&s) {
				t.Errorf("read at %s, merged %s with %s: %s", read, s.String(), floor.String(), merged.String())
			}
		}
	}
}

// Nor does a receipt from then, also if its refund has read the clock long ago.
func TestBucketRefundOfAnEarlierLife(t *testing.T) {
	p := policyOf(limit.TokenBucket(10, time.Second, 10))
	var s state.State
	for range 20 {
		s.Refund(at(0), chargeOf(t, &s, p, at(0), 10), 10)
	}
	r := chargeOf(t, &s, p, at(0), 10) // with 20 seconds of credit, its arrival time is at 21 seconds
	chargeOf(t, &s, p, at(20500*time.Millisecond), 10)
	before := s.String()
	for _, read := range []time.Duration{0, 999 * time.Millisecond, 21 * time.Second} {
		s.Refund(at(read), r, 10)
		if got := s.String(); got != before {
			t.Errorf("a refund read at %s made %s of %s", read, got, before)
		}
	}
}

// A refund that read the clock before later charges gives back what hadn't refilled when the last of them was made.
func TestBucketRefundWithAnOlderTime(t *testing.T) {
	p := policyOf(limit.TokenBucket(1, time.Second, 10))
	for _, test := range []struct {
		at         time.Duration // of the second charge
		cost, left int64
	}{
		{5 * time.Second, 5, 5},   // a second of the first charge was still to refill
		{10 * time.Second, 5, 5},  // the bucket was full: nothing
		{9 * time.Second, 10, 0},  // as full
		{1 * time.Second, 5, 5},   // five of six
		{100 * time.Second, 5, 5}, // in another life
	} {
		var s state.State
		s.Refund(at(0), chargeOf(t, &s, p, at(0), 10), 10) // a life of ten seconds at least
		r := chargeOf(t, &s, p, at(0), 6)
		chargeOf(t, &s, p, at(test.at), test.cost)
		s.Refund(at(0), r, 6)
		if v := s.Peek(p, at(test.at), 1); v.Binding().Remaining != test.left {
			t.Errorf("6 at 0s and %d at %s, then a refund of the first read at 0s: %d left, want %d: %s",
				test.cost, test.at, v.Binding().Remaining, test.left, s.String())
		}
	}
}

// TestBucketLives attacks the invariant: takes, refunds and resets that have read the clock up to some burst ago, joins
// with any earlier copy before them, and refunds with any receipt that is left.
func TestBucketLives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.SampledFrom([]limit.Limit{
			limit.TokenBucket(10, time.Second, 10), limit.TokenBucket(3, time.Second, 4),
			limit.TokenBucket(1, 7*time.Microsecond, 5), limit.TokenBucket(13, 11*time.Millisecond, 20),
			limit.TokenBucket(999_983, time.Second, 1000),
		}).Draw(t, "limit")
		w := &world{policy: policyOf(l), now: at(0)}
		full, _ := l.Refill(l.Burst)
		copies := []state.State{{}}
		older := func() state.At { // the clock as it was read before the request queued
			back := rapid.SampledFrom([]int64{0, 0, 1, full / 8, full / 2, full, 2 * full}).Draw(t, "queued for")
			return state.At{Micros: w.now.Micros - back}
		}
		repeat(t, func(t *rapid.T) {
			present := w.now
			switch rapid.SampledFrom([]string{"tick", "take", "take", "take", "refund", "refund", "reset", "jump"}).Draw(t, "step") {
			case "tick":
				w.tick(t)
				return
			case "jump":
				w.now.Micros += full
				return
			case "take":
				w.now = older()
				if rapid.Bool().Draw(t, "floor") {
					floor := rapid.SampledFrom(copies).Draw(t, "which")
					before := w.state.Clone()
					if w.state.Join(w.policy, w.now, &floor); !w.state.Equal(&before) {
						t.Fatalf("%s: %s joined %s at %d: %s", l, before.String(), floor.String(), w.now.Micros, w.state.String())
					}
				}
				w.take(t)
				sum := int64(0)
				for i := len(w.charges) - 1; i >= 0; i-- {
					c := w.charges[i]
					if sum += c.net(); w.last.Allowed && !allows(&l, w.now.Micros-c.at.Micros, sum) {
						t.Fatalf("%s admitted %d within %dus: %s", l, sum, w.now.Micros-c.at.Micros, w.state.String())
					}
				}
			case "refund":
				w.now = older()
				w.refund(t)
			case "reset":
				w.now = older()
				if rapid.IntRange(0, 5).Draw(t, "really") == 0 {
					w.reset()
				}
			}
			w.now = present
			copies = append(copies, w.state.Clone())
		})
	})
}
