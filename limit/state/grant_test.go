package state_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// A grant never makes used negative, nor gives more than it says: in one window, what was charged less what receipts gave back is
// at most Max and all grants, in whatever order they come, and used is at least that less the grants.
func TestGrantBounds(t *testing.T) {
	t.Parallel()
	for _, l := range []limit.Limit{
		limit.Fixed(20, time.Hour), limit.Sliding(20, time.Hour, 10*time.Minute), limit.TokenBucket(1, 1000*time.Hour, 20),
	} {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				p := &limit.Policy{Limits: []limit.Limit{l}}
				var s state.State
				type charge struct {
					state.Receipt
					left int64
				}
				var charges []charge
				trueUse, granted := int64(0), int64(0)
				now := state.At{Micros: 1_800_000_000_000_000}
				for range rapid.IntRange(1, 60).Draw(t, "steps") {
					now.Micros += rapid.Int64Range(0, int64(50*time.Second/time.Microsecond)).Draw(t, "pause") // all within the hour
					switch op := rapid.IntRange(0, 5).Draw(t, "op"); {
					case op < 3:
						cost := rapid.Int64Range(1, 20).Draw(t, "cost")
						if v := s.Take(p, now, cost); v.Allowed {
							charges = append(charges, charge{v.Receipt(), cost})
							trueUse += cost
						}
					case op == 3 && len(charges) > 0:
						i := rapid.IntRange(0, len(charges)-1).Draw(t, "receipt")
						s.Refund(now, &charges[i].Receipt, charges[i].left)
						trueUse -= charges[i].left
						charges = append(charges[:i], charges[i+1:]...)
					case op == 4:
						extra := rapid.Int64Range(1, 30).Draw(t, "extra")
						before := s.Peek(p, now, 1)
						s.Grant(p, now, extra)
						after := s.Peek(p, now, 1)
						gave := after.Binding().Remaining - before.Binding().Remaining
						if want := min(extra, 20-before.Binding().Remaining); gave != want {
							t.Fatalf("a grant of %d gave %d, want %d: %s", extra, gave, want, s.String())
						}
						granted += gave
					}
					v := s.Peek(p, now, 1)
					most := trueUse
					if l.Algorithm == limit.Bucket {
						most = 20 // refunds that overtake each other may give back less
					}
					if used := 20 - v.Binding().Remaining; used < 0 || used < trueUse-granted || used > most {
						t.Fatalf("%d are used; charged less refunds %d, granted %d: %s", used, trueUse, granted, s.String())
					}
					if trueUse > 20+granted {
						t.Fatalf("%d are in use of 20 and %d granted", trueUse, granted)
					}
					if parsed, err := state.ParseState(s.String()); err != nil || !parsed.Equal(&s) {
						t.Fatalf("%s: %v", s.String(), err)
					}
				}
			})
		})
	}
}

// A copy from before a grant can't undo it, and one that was granted as much twice counts once.
func TestGrantJoins(t *testing.T) {
	t.Parallel()
	now := state.At{Micros: 1_800_000_000_000_000}
	for _, l := range []limit.Limit{
		limit.Fixed(20, time.Hour), limit.Sliding(20, time.Hour, 10*time.Minute), limit.TokenBucket(1, time.Hour, 20),
	} {
		p := &limit.Policy{Limits: []limit.Limit{l}}
		var s state.State
		s.Take(p, now, 20)
		before := s.Clone()
		s.Grant(p, now, 5)
		other := before.Clone()
		other.Grant(p, now, 5)
		for _, copy := range []state.State{before, s, other} {
			merged := state.Merge(s, copy, now)
			if v := merged.Peek(p, now, 5); !v.Allowed || v.Binding().Remaining != 5 {
				t.Errorf("%v: %d left of 5 granted after a merge with %s", l, v.Binding().Remaining, copy.String())
			}
		}
	}
}

// The newest sub-buckets are given back: what leaves the window later is more quota for longer.
func TestGrantLastsInASlidingWindow(t *testing.T) {
	t.Parallel()
	p := &limit.Policy{Limits: []limit.Limit{limit.Sliding(20, time.Hour, 10*time.Minute)}}
	at := func(minute int64) state.At { return state.At{Micros: 1_800_000_000_000_000 + minute*60_000_000} }
	var s state.State
	s.Take(p, at(0), 10)
	s.Take(p, at(30), 10)
	s.Grant(p, at(30), 5)
	if v := s.Peek(p, at(30), 1); v.Binding().Remaining != 5 {
		t.Errorf("%d left after a grant of 5", v.Binding().Remaining)
	}
	if v := s.Peek(p, at(65), 1); v.Binding().Remaining != 15 { // the first 10 have left
		t.Errorf("%d left later, want 15: the grant still counts", v.Binding().Remaining)
	}
}
