package state_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestChargeMarks: a charge counts where its mark says, under each limit by itself.
func TestChargeMarks(t *testing.T) {
	fixed, sliding := limit.Fixed(10, time.Minute), limit.Sliding(10, time.Minute, 10*time.Second)
	aligned, second := limit.Fixed(10, time.Minute).Aligned(), limit.Fixed(5, time.Second).Aligned()
	bucket := limit.TokenBucket(10, time.Second, 10)
	markAt := func(after time.Duration) func(p *limit.Policy) state.Mark {
		return func(p *limit.Policy) state.Mark {
			m, _ := state.MarkAt(p, at(after))
			return m
		}
	}
	// taken is the mark of a take in a copy that was lost.
	taken := func(after time.Duration) func(p *limit.Policy) state.Mark {
		return func(p *limit.Policy) state.Mark {
			var s state.State
			v := s.Take(p, at(after), 1)
			return ptr(v.Receipt()).Mark()
		}
	}
	for _, test := range []struct {
		name   string
		limits []limit.Limit
		before string
		at     time.Duration
		mark   func(p *limit.Policy) state.Mark
		cost   int64
		want   string
	}{
		{"now", []limit.Limit{fixed}, "", 0, markAt(0), 3, "f1m:1767247260000,3;"},
		{"lost window", []limit.Limit{fixed}, "", 30 * time.Second, taken(0), 3, "f1m:1767247260000,3;"},
		{"lost window, later one", []limit.Limit{fixed}, "f1m:1767247290000,4;", 35 * time.Second, taken(0), 3, "f1m:1767247290000,7;"},
		{"lost window, earlier one", []limit.Limit{fixed}, "f1m:1767247260000,4-1;", 35 * time.Second, taken(30 * time.Second), 3,
			"f1m:1767247290000,6;"},
		{"next window opened", []limit.Limit{fixed}, "f1m:1767247320000,4;", 59 * time.Second, taken(0), 3, "f1m:1767247320000,4;"},
		{"window over", []limit.Limit{fixed}, "f1m:1767247290000,4;", time.Minute, taken(0), 3, "f1m:1767247290000,4;"},
		{"above max", []limit.Limit{fixed}, "f1m:1767247260000,9-2;", 0, taken(0), 30, "f1m:1767247260000,39-2;"},
		{"second over, minute not", []limit.Limit{second, aligned}, "", 1500 * time.Millisecond, markAt(900 * time.Millisecond), 3,
			"a1m:1767247260000,3;"},
		{"older sub-bucket", []limit.Limit{sliding}, "s1m~10s:1767247290000,2,2;", 35 * time.Second, markAt(15 * time.Second), 3,
			"s1m~10s:1767247290000,5,2,0,3;"},
		{"known sub-bucket", []limit.Limit{sliding}, "s1m~10s:1767247290000,3,2,1;", 35 * time.Second, markAt(29 * time.Second), 3,
			"s1m~10s:1767247290000,6,2,4;"},
		{"newer sub-bucket", []limit.Limit{sliding}, "s1m~10s:1767247290000,3,2,1;", 45 * time.Second, markAt(41 * time.Second), 3,
			"s1m~10s:1767247300000,6,3,2,1;"},
		{"first sub-bucket", []limit.Limit{sliding}, "", 45 * time.Second, markAt(31 * time.Second), 3, "s1m~10s:1767247290000,3,3;"},
		{"sub-bucket left", []limit.Limit{sliding}, "s1m~10s:1767247290000,2,2;", time.Minute, markAt(9 * time.Second), 3,
			"s1m~10s:1767247290000,2,2;"},
		{"sub-bucket left elsewhere", []limit.Limit{sliding}, "s1m~10s:1767247330000,2,2;", 59 * time.Second, markAt(9 * time.Second), 3,
			"s1m~10s:1767247330000,2,2;"},
		{"idle bucket", []limit.Limit{bucket}, "", time.Second, markAt(900 * time.Millisecond), 3, "b1s:1767247201200000,300000,300000;"},
		{"bucket since refilled", []limit.Limit{bucket}, "b1s:1767247200950000,50000,50000;", time.Second, markAt(900 * time.Millisecond), 3,
			"b1s:1767247201250000,350000,350000;"},
		{"busy bucket", []limit.Limit{bucket}, "b1s:1767247201500000,1500000,500000;", time.Second, markAt(100 * time.Millisecond), 3,
			"b1s:1767247201800000,1800000,800000;"},
		{"bucket's receipt", []limit.Limit{bucket}, "", 2 * time.Second, taken(0), 30, "b1s:1767247203000000,3000000,3000000;"},
		{"another's window over", []limit.Limit{fixed}, "f1h:1767247200000,4;", time.Second, markAt(0), 3, "f1m:1767247261000,3;"},
		{"bucket's mark ahead", []limit.Limit{bucket}, "", 0, markAt(time.Hour), 3, "b1s:1767247200300000,300000,300000;"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, s := policyOf(test.limits...), decode(t, test.before)
			v := s.Charge(p, at(test.at), test.mark(p), test.cost)
			if s.String() != test.want || !v.Allowed {
				t.Errorf("got %q, want %q", s.String(), test.want)
			}
			decode(t, s.String())
		})
	}
}

// TestReceiptMark: a charge beside a take counts where the take does, and lifts no refund of another.
func TestReceiptMark(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 4)
		w.live(t, "tick take take refund reset charge code", func(kind string) {
			if kind != "take" || !w.last.Allowed {
				return
			}
			r := w.last.Receipt()
			s, u := w.state.Clone(), w.state.Clone()
			s.Charge(w.policy, w.now, r.Mark(), 3)
			u.Charge(w.policy, w.now, state.Mark{}, 3)
			if !s.Equal(&u) {
				t.Fatalf("charged beside the take %q, at the same time %q", s.String(), u.String())
			}
		})
	})
	var none state.Receipt
	if m := none.Mark(); m.At(0) != 0 || m.At(9) != 0 {
		t.Error("a receipt of nothing has a mark")
	}
}

func TestMarkAt(t *testing.T) {
	p := policyOf(limit.PerMinute(1).Aligned(), limit.Sliding(5, time.Minute, time.Second), limit.TokenBucket(1, time.Second, 1),
		limit.PerHour(1).Staggered(), limit.PerDay(1).Aligned())
	now := at(90 * time.Second)
	now.Phase = 120_000
	m, ok := state.MarkAt(p, now)
	for i, want := range []time.Duration{2 * time.Minute, 150 * time.Second, 90 * time.Second, 2 * time.Minute, 18 * time.Hour} {
		if got := time.UnixMicro(m.At(i)).Sub(start); got != want {
			t.Errorf("%s: marked %s, want %s", p.Limits[i], got, want)
		}
	}
	if !ok || m.At(5) != 0 {
		t.Errorf("ok %t, and %d beyond the last", ok, m.At(5))
	}
	if m, ok = state.MarkAt(policyOf(limit.PerMinute(1)), now); ok || m.At(0) != 0 {
		t.Errorf("a window that the first request opens: %d, %t", m.At(0), ok)
	}
	one := policyOf(limit.PerMinute(1).Aligned())
	var s state.State
	s.Charge(one, now, state.Mark{}, 1)
	if n := testing.AllocsPerRun(100, func() {
		m, _ := state.MarkAt(one, now)
		s.Charge(one, now, m, 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
