package state_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// The cases of Josiah Carlson, "Introduction to rate limiting with Redis": 240 an hour to the minute.
var anHour = limit.Sliding(240, time.Hour, time.Minute)

func TestSlidingTokensComeBackByTheMinute(t *testing.T) {
	var s state.State
	play(t, &s, policyOf(anHour), []step{
		{5*time.Minute + 59*time.Second, 20, "ok left=220 reset=1h5m0s"}, // 6:05:59 counts as 6:05
		{10 * time.Minute, 200, "ok left=20 reset=1h10m0s"},
		{30 * time.Minute, 20, "ok left=0 reset=1h30m0s"},
		{65*time.Minute - time.Millisecond, 1, "no left=0 reset=1h30m0s retry=1ms"},
		{65*time.Minute - time.Microsecond, 20, "no left=0 reset=1h30m0s retry=1µs"},
		{65*time.Minute - time.Microsecond, 21, "no left=0 reset=1h30m0s retry=5m0.000001s"}, // 20 are not enough
		{65*time.Minute - time.Microsecond, 221, "no left=0 reset=1h30m0s retry=25m0.000001s"},
		{65 * time.Minute, 21, "no left=20 reset=1h30m0s retry=5m0s"},
		{65 * time.Minute, 20, "ok left=0 reset=2h5m0s"},
		{70 * time.Minute, 200, "ok left=0 reset=2h10m0s"},
		{89 * time.Minute, 1, "no left=0 reset=2h10m0s retry=1m0s"},
		{90 * time.Minute, 1, "ok left=19 reset=2h30m0s"},
		{10 * time.Hour, 240, "ok left=0 reset=11h0m0s"},
	})
}

// At 100 requests a second for an hour exactly 240 succeed; what is denied doesn't count, so that the next hour
// begins with all of them again.
func TestSlidingOnlyAdmittedCount(t *testing.T) {
	var s state.State
	for _, hour := range []time.Duration{0, time.Hour} {
		admitted := 0
		for i := range 100 * 3600 {
			v := s.Take(policyOf(anHour), at(hour+time.Duration(i)*10*time.Millisecond), 1)
			if v.Allowed {
				admitted++
			}
		}
		if admitted != 240 {
			t.Errorf("%d of %d succeeded in the hour from %s, want 240", admitted, 100*3600, hour)
		}
	}
}

// Several limits, in whatever order, admit the same and count the same.
func TestOrderOfLimitsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 5)
		reversed := *w.policy
		reversed.Limits = slices.Clone(w.policy.Limits)
		slices.Reverse(reversed.Limits)
		var mirror state.State
		var receipts []state.Receipt
		w.live(t, "tick take take take refund", func(kind string) {
			switch kind {
			case "take":
				v := mirror.Take(&reversed, w.now, w.cost)
				if v.Allowed {
					receipts = append(receipts, v.Receipt())
				}
				want := slices.Collect(w.last.All())
				slices.Reverse(want)
				if got := slices.Collect(v.All()); v.Allowed != w.last.Allowed || !slices.Equal(got, want) {
					t.Fatalf("%s; in reversed order %s", sayAll(&w.last), sayAll(&v))
				}
			case "refund":
				for i, c := range w.charges {
					if c.settled && receipts[i].Cost > 0 {
						mirror.Refund(w.now, &receipts[i], c.asked)
						receipts[i].Cost = 0
					}
				}
			}
			if a, b := settled(&w.state, w.policy, w.now), settled(&mirror, &reversed, w.now); !a.Equal(&b) {
				t.Fatalf("%s; in reversed order %s", a.String(), b.String())
			}
		})
	})
}

// Costs weigh: a request of 5 takes the room of five.
func TestSlidingCosts(t *testing.T) {
	var s state.State
	play(t, &s, policyOf(limit.Sliding(10, 3*time.Second, time.Second)), []step{
		{0, 5, "ok left=5 reset=3s"},
		{500 * time.Millisecond, 3, "ok left=2 reset=3s"},
		{1500 * time.Millisecond, 2, "ok left=0 reset=4s"},
		{1500 * time.Millisecond, 8, "no left=0 reset=4s retry=1.5s"},
		{1500 * time.Millisecond, 9, "no left=0 reset=4s retry=2.5s"},
		{1500 * time.Millisecond, 10, "no left=0 reset=4s retry=2.5s"},
		{3 * time.Second, 9, "no left=8 reset=4s retry=1s"},
		{3 * time.Second, 8, "ok left=0 reset=6s"},
		{4 * time.Second, 3, "no left=2 reset=6s retry=2s"},
	})
}

// Precision = Window is the aligned fixed window, whatever happens, the clock stepping back included.
func TestSlidingOfOneSubBucketIsAlignedFixed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window, max := drawWindow(t), rapid.Int64Range(1, 30).Draw(t, "max")
		w := &world{policy: policyOf(limit.Fixed(max, window).Aligned()), now: at(0)}
		p := policyOf(limit.Sliding(max, window, window))
		var s state.State
		var receipts []state.Receipt
		same := func(v, fixed state.Verdict) {
			f := fixed.Binding()
			f.Limit = p.Limits[0]
			if v.Allowed != fixed.Allowed || v.Binding() != f {
				t.Fatalf("fixed: %s, sliding: %s", sayAll(&fixed), sayAll(&v))
			}
		}
		repeat(t, func(t *rapid.T) {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				w.now.Micros -= w.drawPause(t)
			case 1, 2:
				w.tick(t)
			case 3:
				if i := rapid.IntRange(0, 20).Draw(t, "receipt"); i < len(receipts) {
					amount := rapid.Int64Range(1, max).Draw(t, "amount")
					w.state.Refund(w.now, &w.charges[i].receipt, amount)
					s.Refund(w.now, &receipts[i], amount)
				}
			}
			cost := rapid.Int64Range(1, max).Draw(t, "cost")
			same(s.Peek(p, w.now, cost), w.state.Peek(w.policy, w.now, cost))
			if rapid.IntRange(0, 9).Draw(t, "reset") == 9 {
				w.state.Reset(w.policy, w.now)
				s.Reset(p, w.now)
			}
			w.last = w.state.Take(w.policy, w.now, cost)
			v := s.Take(p, w.now, cost)
			same(v, w.last)
			if v.Allowed {
				w.charges = append(w.charges, &charge{cost: cost, receipt: w.last.Receipt()})
				receipts = append(receipts, v.Receipt())
			}
		})
	})
}

// A clock that steps back charges the newest sub-bucket, and is admitted no more for it.
func TestSlidingClockSteppingBack(t *testing.T) {
	p := policyOf(limit.Sliding(10, 3*time.Second, time.Second))
	var s state.State
	play(t, &s, p, []step{
		{0, 2, "ok left=8 reset=3s"},
		{2 * time.Second, 3, "ok left=5 reset=5s"},
		{time.Second, 2, "ok left=3 reset=5s"}, // with those of 2s
		{-time.Hour, 3, "ok left=0 reset=5s"},  // and these
		{0, 1, "no left=0 reset=5s retry=3s"},
	})
	if got, want := s.String(), "s3s~1s:1767247205000,10,8,0,2;"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	play(t, &s, p, []step{
		{3 * time.Second, 3, "no left=2 reset=5s retry=2s"},
		{5*time.Second - 1000, 3, "no left=2 reset=5s retry=1µs"},
		{5 * time.Second, 10, "ok left=0 reset=8s"},
	})
}

// TestEarlierClocksAdmitNoMore: whatever the state, who reads it by an earlier clock finds no more left.
func TestEarlierClocksAdmitNoMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 3)
		w.live(t, "tick take take take refund reset", func(string) {
			later := w.now
			later.Micros += w.drawPause(t)
			earlier := later
			earlier.Micros -= w.drawPause(t)
			a, b := w.state.Clone(), w.state.Clone()
			before, after := a.Peek(w.policy, earlier, 1), b.Peek(w.policy, later, 1)
			left := slices.Collect(after.All())
			i := 0
			for status := range before.All() {
				if status.Remaining > left[i].Remaining {
					t.Fatalf("%s at %d, %s at %d: %s", sayAll(&before), earlier.Micros, sayAll(&after), later.Micros, w.state.String())
				}
				i++
			}
		})
	})
}

func TestSlidingChangedMax(t *testing.T) {
	with := func(max int64) *limit.Policy { return policyOf(limit.Sliding(max, 3*time.Second, time.Second)) }
	var s state.State
	play(t, &s, with(4), []step{{0, 3, "ok left=1 reset=3s"}, {time.Second, 1, "ok left=0 reset=4s"}})
	play(t, &s, with(6), []step{{2 * time.Second, 2, "ok left=0 reset=5s"}})
	play(t, &s, with(2), []step{
		{2 * time.Second, 1, "no left=0 reset=5s retry=3s"}, // the two of 2s are all that fits now
		{2 * time.Second, 2, "no left=0 reset=5s retry=3s"},
		{4 * time.Second, 1, "no left=0 reset=5s retry=1s"},
		{5 * time.Second, 2, "ok left=0 reset=8s"},
	})
}

// A sub-bucket never counts past MaxCount, whatever was given back in between; the next one counts afresh.
func TestSlidingNeverOverflows(t *testing.T) {
	const most = 1 << 46
	p := policyOf(limit.Sliding(most, time.Minute, time.Second))
	var s state.State
	denied := false
	for range 200 {
		v := s.Take(p, at(0), most)
		if denied = !v.Allowed; denied {
			break
		}
		r := v.Receipt()
		s.Refund(at(0), &r, most)
	}
	if !denied {
		t.Fatalf("more than MaxCount charged: %s", s.String())
	}
	play(t, &s, p, []step{
		{0, most, "no left=70368744177664 reset=1m0s retry=1s"},
		{time.Second, most, "ok left=0 reset=1m1s"},
	})
}

// What is over does not announce its end: where the newest charges were given back, the full quota may be here
// already.
func TestSlidingResetIsAhead(t *testing.T) {
	p := policyOf(anHour)
	var s state.State
	s.Take(p, at(0), 1)
	v := s.Take(p, at(30*time.Minute), 1)
	r := v.Receipt()
	s.Refund(at(30*time.Minute), &r, 1)
	v = s.Peek(p, at(70*time.Minute), 1) // the charge of 0 has left; the one of 30 min would still be in the window
	if got := v.Binding(); got.Remaining != 240 || !got.ResetAt.After(start.Add(70*time.Minute)) {
		t.Errorf("%d left, the reset is %s, now is 1h10m", got.Remaining, got.ResetAt.Sub(start))
	}
}

// Usage over several intervals from one limit, after Chris O'Hara, "Rate limiting with Redis": 20 s, 30 s, 5 min.
func TestUsage(t *testing.T) {
	fine := limit.Sliding(1_000_000, 5*time.Minute, 10*time.Second)
	coarse := limit.Sliding(1_000_000, time.Hour, time.Minute)
	p := policyOf(limit.PerSecond(1000), coarse, limit.TokenBucket(1000, time.Second, 1000), fine)
	var s state.State
	if used, by, ok := s.Usage(p, at(0), time.Minute); used != 0 || by != fine || !ok {
		t.Errorf("of a new key: %d by %s, %t", used, by, ok)
	}
	for i := range 40 * 60 { // one a second, for 40 minutes
		if v := s.Take(p, at(time.Duration(i)*time.Second), 1); !v.Allowed {
			t.Fatalf("denied: %s", sayAll(&v))
		}
	}
	const now = 40*time.Minute - time.Second
	for _, test := range []struct {
		now, interval time.Duration
		used          int64
		by            limit.Limit
		ok            bool
	}{
		{now, 20 * time.Second, 20, fine, true},
		{now, 30 * time.Second, 30, fine, true},
		{now, 5 * time.Minute, 300, fine, true},
		{now, time.Millisecond, 10, fine, true}, // sub-buckets are counted whole
		{now, 10 * time.Second, 10, fine, true},
		{now, 10*time.Second + 1, 20, fine, true},
		{now, 5*time.Minute + 1, 360, coarse, true},
		{now, time.Hour, 2400, coarse, true},
		{now, time.Hour + 1, 0, limit.Limit{}, false},
		{now, 0, 0, limit.Limit{}, false},
		{now, -time.Second, 0, limit.Limit{}, false},
		{now + 20*time.Second, 20 * time.Second, 0, fine, true},
		{now + 20*time.Second, 30 * time.Second, 10, fine, true},
		{now + 2*time.Minute, 5 * time.Minute, 180, fine, true},
		{now + 20*time.Minute, 5 * time.Minute, 0, fine, true},
		{now + 20*time.Minute, time.Hour, 2400, coarse, true},
		{now + 50*time.Minute, time.Hour, 600, coarse, true},
		{now + 2*time.Hour, time.Hour, 0, coarse, true},
	} {
		s := s.Clone()
		if used, by, ok := s.Usage(p, at(test.now), test.interval); used != test.used || by != test.by || ok != test.ok {
			t.Errorf("last %s at %s: %d by %s, %t; want %d by %s, %t", test.interval, test.now, used, by, ok, test.used, test.by, test.ok)
		}
	}
	v := s.Take(p, at(now), 7)
	r := v.Receipt()
	s.Refund(at(now), &r, 5)
	if used, _, _ := s.Usage(p, at(now), 20*time.Second); used != 22 {
		t.Errorf("after a charge of 7 of which 5 came back: %d, want 22", used)
	}
	if _, _, ok := s.Usage(policyOf(limit.PerSecond(1), limit.TokenBucket(1, time.Second, 1)), at(now), time.Second); ok {
		t.Error("a policy without a sliding limit can't tell")
	}
}

// Usage is the sum over the last ceil(interval / precision) sub-buckets, of what was not given back.
func TestUsageCountsSubBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawSliding(t, 1000)
		w := &world{policy: policyOf(l), now: at(0)}
		w.live(t, "tick tick take take refund", func(string) {
			interval := time.Duration(rapid.Int64Range(1, int64(l.Window)).Draw(t, "interval"))
			precision := l.Precision.Microseconds()
			first := w.now.Micros/precision - int64((interval+l.Precision-1)/l.Precision) + 1
			want := int64(0)
			for _, c := range w.charges {
				if c.at.Micros/precision >= first {
					want += c.net()
				}
			}
			s := w.state.Clone()
			if used, _, ok := s.Usage(w.policy, w.now, interval); used != want || !ok {
				t.Fatalf("%s, last %s: %d, want %d: %s", l, interval, used, want, w.state.String())
			}
		})
	})
}
