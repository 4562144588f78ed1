package state_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestModels holds the algebra to the models: a policy of several limits under a clock that goes forward, each
// kind of limit alone under one that goes anywhere.
func TestModels(t *testing.T) {
	compare := func(t *rapid.T, w *world, models []model) {
		cost := w.drawCost(t)
		want := true
		for _, m := range models {
			want = want && m.admits(w.now, cost)
		}
		w.last = w.state.Take(w.policy, w.now, cost)
		if w.last.Allowed != want {
			t.Fatalf("%d at %d under %v: %s, the models say %t", cost, w.now.Micros, w.policy.Limits, sayAll(&w.last), want)
		}
		for _, m := range models {
			if want {
				m.charge(w.now, cost)
			}
		}
	}
	t.Run("policies", rapid.MakeCheck(func(t *rapid.T) {
		w := drawWorld(t, 4)
		var models []model
		for _, l := range w.policy.Limits {
			models = append(models, newModel(l))
		}
		repeat(t, func(t *rapid.T) {
			w.tick(t)
			compare(t, w, models)
		})
	}))
	t.Run("clock stepping back", rapid.MakeCheck(func(t *rapid.T) {
		w := drawWorld(t, 1)
		models := []model{newModel(w.policy.Limits[0])}
		repeat(t, func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "back") == 0 {
				w.now.Micros -= w.drawPause(t)
			} else {
				w.tick(t)
			}
			compare(t, w, models)
		})
	}))
}

// A key that nothing is known of has its quota, and ResetAt is what it would be if the request were admitted now.
func TestNewKey(t *testing.T) {
	for _, test := range []struct {
		limit limit.Limit
		want  string
	}{
		{limit.PerMinute(5), "ok left=5 reset=1m7.001s"},
		{limit.PerMinute(5).Aligned(), "ok left=5 reset=1m0s"},
		{limit.PerMinute(5).Staggered(), "ok left=5 reset=59.001s"},
		{limit.Sliding(5, time.Minute, 5*time.Second), "ok left=5 reset=1m5s"},
		{limit.TokenBucket(3, time.Second, 5), "ok left=5 reset=7.334789s"},
	} {
		var s state.State
		now := at(7_001_455 * time.Microsecond)
		now.Phase = 59_001
		p := policyOf(test.limit)
		v := s.Peek(p, now, 1)
		if got := say(&v); got != test.want || !s.Empty() {
			t.Errorf("%s: peeked %q, want %q", test.limit, got, test.want)
		}
		reset := v.Binding().ResetAt
		if v = s.Take(p, now, 1); !v.Binding().ResetAt.Equal(reset) {
			t.Errorf("%s: peeked a reset at %s, took %s", test.limit, reset.Sub(start), say(&v))
		}
	}
}

// TestRetryAfterIsExact: whoever comes back right then is admitted if nobody else took, and not a microsecond
// earlier; for the policy as a whole and for each of its limits.
func TestRetryAfterIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take take peek refund max rate", func(string) {
			cost := w.drawCost(t)
			ahead := func(p *limit.Policy, after time.Duration) bool {
				s := w.state.Clone()
				v := s.Peek(p, state.At{Micros: w.now.Micros + after.Microseconds(), Phase: w.now.Phase}, cost)
				return v.Allowed
			}
			hold := func(p *limit.Policy, allowed bool, retry time.Duration) {
				if allowed != (retry == 0) {
					t.Fatalf("%v: allowed %t, retry after %s", p.Limits, allowed, retry)
				}
				if !ahead(p, retry) {
					t.Fatalf("%v: not admitted after %s, as announced, %s", p.Limits, retry, w.state.String())
				}
				if !allowed && ahead(p, retry-time.Microsecond) {
					t.Fatalf("%v: admitted before %s, %s", p.Limits, retry, w.state.String())
				}
			}
			s := w.state.Clone()
			v := s.Peek(w.policy, w.now, cost)
			hold(w.policy, v.Allowed, v.Binding().RetryAfter)
			for status := range v.All() {
				hold(policyOf(status.Limit), status.RetryAfter == 0, status.RetryAfter)
			}
		})
	})
}

// TestResetAtAndRemainingAreExact: what remains is admitted and one more is not; the full quota is back at ResetAt
// and not before; and all who hold the state say the same.
func TestResetAtAndRemainingAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take take peek max rate", func(string) {
			s := w.state.Clone()
			v := s.Peek(w.policy, w.now, 1)
			for status := range v.All() {
				p := policyOf(status.Limit)
				left := func(micros int64) int64 {
					s := w.state.Clone()
					v := s.Peek(p, state.At{Micros: micros, Phase: w.now.Phase}, 1)
					return v.Binding().Remaining
				}
				quota, reset := status.Limit.Quota(), status.ResetAt.UnixMicro()
				if reset < w.now.Micros || reset == w.now.Micros && status.Remaining < quota {
					t.Fatalf("%s: the reset is not ahead: %s", status.Limit, sayAll(&v))
				}
				if got := left(reset); got != quota {
					t.Fatalf("%s: %d left at the reset, %s", status.Limit, got, w.state.String())
				}
				if got := left(reset - 1); status.Remaining < quota && got == quota {
					t.Fatalf("%s: all left before the reset, %s", status.Limit, w.state.String())
				}
				if status.Remaining > 0 {
					if s := w.state.Clone(); !ok(s.Peek(p, w.now, status.Remaining)) {
						t.Fatalf("%s: %d remain but are denied", status.Limit, status.Remaining)
					}
				}
				if status.Remaining < quota {
					if s := w.state.Clone(); ok(s.Peek(p, w.now, status.Remaining+1)) {
						t.Fatalf("%s: %d remain, one more is admitted", status.Limit, status.Remaining)
					}
				}
			}
			d, err := state.ParseState(w.state.String())
			if err != nil {
				t.Fatal(err)
			}
			if again := d.Peek(w.policy, w.now, 1); sayAll(&again) != sayAll(&v) {
				t.Fatalf("%s, decoded %s", sayAll(&v), sayAll(&again))
			}
		})
	})
}

func ok(v state.Verdict) bool { return v.Allowed }

// TestBounds holds every admitted history to the promise of its algorithm, over all intervals.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 3)
		w.live(t, "tick take take take max code", func(kind string) {
			if kind == "max" {
				w.charges = nil // the promise starts anew
				w.state.Reset(w.policy, w.now)
			}
		})
		for i := range w.policy.Limits {
			l := &w.policy.Limits[i]
			for first := range w.charges {
				sum := int64(0)
				for _, c := range w.charges[first:] {
					sum += c.cost
					if interval := c.at.Micros - w.charges[first].at.Micros; !allows(l, interval, sum) {
						t.Fatalf("%s admitted %d within %dus", l, sum, interval)
					}
				}
			}
		}
	})
}

// allows reports whether l may admit sum in an interval that includes both its ends.
func allows(l *limit.Limit, interval, sum int64) bool {
	window := l.Window.Microseconds()
	switch l.Algorithm {
	case limit.SlidingWindow:
		return sum <= l.Max || interval > window-l.Precision.Microseconds()
	case limit.Bucket:
		bound := refill(l, l.Burst)
		return refill(l, sum).Cmp(bound.Add(bound, new(big.Rat).SetInt64(interval))) <= 0
	}
	windows := new(big.Int).SetInt64((interval+window-1)/window + 1)
	return windows.Mul(windows, big.NewInt(l.Max)).Cmp(big.NewInt(sum)) >= 0
}
