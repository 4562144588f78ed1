package state_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestBinding: of a denial the limit that lets the request pass last; of an admission the one with the least left,
// and of equals the one that resets last.
func TestBinding(t *testing.T) {
	second, minute, hour := limit.PerSecond(5), limit.PerMinute(5), limit.PerHour(5)
	for _, test := range []struct {
		name   string
		limits []limit.Limit
		before []int64 // taken first
		cost   int64
		want   limit.Limit
	}{
		{"least left", []limit.Limit{minute, limit.PerSecond(3), hour}, nil, 1, limit.PerSecond(3)},
		{"least left, wherever it stands", []limit.Limit{limit.PerSecond(3), minute, hour}, nil, 1, limit.PerSecond(3)},
		{"equals: resets last", []limit.Limit{second, hour, minute}, nil, 1, hour},
		{"equals: resets last, wherever it stands", []limit.Limit{hour, second, minute}, nil, 5, hour},
		{
			"all the same: the first", []limit.Limit{minute.Named("a"), limit.Sliding(5, time.Minute, time.Second)},
			nil, 1, minute.Named("a"),
		},
		{"denied: passes last", []limit.Limit{second, hour, minute}, []int64{5}, 1, hour},
		{
			"denied: the only one that denies", []limit.Limit{limit.PerSecond(1), limit.Fixed(3, time.Hour)},
			[]int64{1}, 1, limit.PerSecond(1),
		},
		{
			"denied: passes last, to the minute", []limit.Limit{limit.Sliding(4, time.Hour, time.Minute), second},
			[]int64{2, 2}, 1, limit.Sliding(4, time.Hour, time.Minute),
		},
		{
			"denied at the same time: the least left", []limit.Limit{minute.Named("a"), limit.Sliding(3, time.Minute, time.Second)},
			[]int64{3}, 3, limit.Sliding(3, time.Minute, time.Second),
		},
	} {
		p := policyOf(test.limits...)
		var s state.State
		for _, cost := range test.before {
			if v := s.Take(p, at(0), cost); !v.Allowed {
				t.Fatalf("%s: %s", test.name, sayAll(&v))
			}
		}
		v := s.Take(p, at(0), test.cost)
		if v.Binding().Limit != test.want {
			t.Errorf("%s: %s, want %s", test.name, sayAll(&v), test.want)
		}
	}
}

// TestBindingRules holds any verdict to the same rules, and to what its limits say each for itself.
func TestBindingRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, 6)
		w.live(t, "tick take take take peek refund", func(kind string) {
			if kind != "take" && kind != "peek" {
				return
			}
			v, binding := w.last, w.last.Binding()
			i, longest := 0, time.Duration(0)
			for status := range v.All() {
				if status.Limit != w.policy.Limits[i] {
					t.Fatalf("status %d is of %s, not of %s", i, status.Limit, w.policy.Limits[i])
				}
				if v.Allowed && status.RetryAfter != 0 {
					t.Fatalf("admitted, and %s", sayAll(&v))
				}
				longest = max(longest, status.RetryAfter)
				if status.Limit.IsCounter() != binding.Limit.IsCounter() {
					if v.Allowed && binding.Limit.IsCounter() {
						t.Fatalf("a counter binds: %s", sayAll(&v))
					}
				} else if v.Allowed && (status.Remaining < binding.Remaining ||
					status.Remaining == binding.Remaining && status.ResetAt.After(binding.ResetAt)) {
					t.Fatalf("%s binds: %s", binding.Limit, sayAll(&v))
				}
				i++
			}
			if i != len(w.policy.Limits) || binding.RetryAfter != longest || v.Allowed != (longest == 0) {
				t.Fatalf("%d limits, %s binds: %s", i, binding.Limit, sayAll(&v))
			}
		})
	})
}

// manyLimits are n limits of which limit i holds 10 + i.
func manyLimits(n int) *limit.Policy {
	p := &limit.Policy{}
	for i := range n {
		l := limit.Fixed(int64(10+i), time.Duration(i+1)*time.Second)
		switch window := l.Window; i % 3 {
		case 1:
			l = limit.Sliding(l.Max, window, window)
		case 2:
			l = limit.TokenBucket(1, window, l.Max)
		}
		p.Limits = append(p.Limits, l)
	}
	return p
}

// TestManyLimits: up to as many as a policy may have, each is charged, described and given back.
func TestManyLimits(t *testing.T) {
	for n := 1; n <= limit.MaxLimits; n++ {
		p := manyLimits(n)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		var s state.State
		v := s.Take(p, at(0), 10)
		all := slices.Collect(v.All())
		if len(all) != n || !v.Allowed || v.Binding().Remaining != 0 {
			t.Fatalf("%d limits: %s", n, sayAll(&v))
		}
		for i, status := range all {
			if status.Limit != p.Limits[i] || status.Remaining != int64(i) {
				t.Errorf("of %d limits, number %d: %+v", n, i, status)
			}
		}
		r := v.Receipt()
		denied := s.Take(p, at(0), 5)
		for i, status := range slices.Collect(denied.All()) {
			if (status.RetryAfter > 0) != (i < 5) {
				t.Errorf("of %d limits, number %d: %+v", n, i, status)
			}
		}
		if r := denied.Receipt(); r.Cost != 0 || denied.Allowed {
			t.Errorf("%d limits: the receipt of a denial is for %d", n, r.Cost)
		}
		for i := range p.Limits {
			if end, position, fraction := r.Charge(i); fraction != 0 || end == 0 || position == 0 {
				t.Errorf("of %d limits, number %d is marked %d.%d", n, i, end, fraction)
			}
		}
		s.Refund(at(0), &r, 3)
		v = s.Peek(p, at(0), 1)
		for i, status := range slices.Collect(v.All()) {
			if status.Remaining != int64(i+3) {
				t.Errorf("of %d limits, number %d after a refund of 3: %+v", n, i, status)
			}
		}
		for range v.All() { // a caller may stop early
			break
		}
	}
}

// A verdict keeps what it said, and its receipt what it names, whatever is decided later.
func TestVerdictsAreValues(t *testing.T) {
	p := manyLimits(9)
	var s state.State
	v := s.Take(p, at(0), 1)
	said, r := sayAll(&v), v.Receipt()
	w, r2 := v, r
	for i := range 9 {
		s.Take(p, at(time.Duration(i)*time.Second), 1)
	}
	s.Refund(at(0), &r, 1)
	if sayAll(&v) != said || sayAll(&w) != said || r2.Cost != 1 {
		t.Errorf("said %s, says %s", said, sayAll(&v))
	}
}

// Taken describes what was decided elsewhere, whatever it would decide itself.
func TestTaken(t *testing.T) {
	p := policyOf(limit.PerMinute(3), limit.TokenBucket(1, time.Second, 5))
	var s state.State
	want := s.Take(p, at(0), 3)
	got := s.Taken(p, at(0), 3, true)
	if r := got.Receipt(); sayAll(&got) != sayAll(&want) || r.Cost != 3 {
		t.Errorf("got %s, want %s", sayAll(&got), sayAll(&want))
	}
	want = s.Take(p, at(0), 1)
	got = s.Taken(p, at(0), 1, false)
	if r := got.Receipt(); sayAll(&got) != sayAll(&want) || got.Allowed || r.Cost != 0 {
		t.Errorf("got %s, want %s", sayAll(&got), sayAll(&want))
	}
	var empty state.State
	if got := empty.Taken(p, at(0), 1, false); got.Allowed {
		t.Errorf("denied elsewhere: %s", sayAll(&got))
	}
}

func TestZeroValues(t *testing.T) {
	var v state.Verdict
	if v.Binding() != (limit.Status{}) || len(slices.Collect(v.All())) != 0 {
		t.Errorf("a zero verdict says %s", sayAll(&v))
	}
	r := v.Receipt()
	if r.Cost != 0 || r.Policy() != nil {
		t.Errorf("a zero verdict has the receipt %+v", r)
	}
	var s, o state.State
	s.Refund(at(0), &r, 5)
	s.Refund(at(0), &state.Receipt{}, 5)
	s.Reset(policyOf(limit.PerSecond(1)), at(0))
	if s.Join(policyOf(limit.PerSecond(1)), at(0), &o) {
		t.Error("nothing taught something")
	}
	if m := state.Merge(s, o, at(0)); !m.Empty() || !m.Equal(&s) || s.String() != "" || s.Until() != 0 {
		t.Errorf("nothing is %q", m.String())
	}
	c := o.Clone()
	if !c.Equal(&o) {
		t.Error("a clone of nothing is something")
	}
	var p limit.Policy
	if err := p.CheckCost(1); err != nil {
		t.Error(err)
	}
	if text := fmt.Sprint(limit.Limit{}, state.At{}, limit.Status{}); text == "" {
		t.Error("no text")
	}
	if decoded, err := state.ParseState([]byte(nil)); err != nil || !decoded.Empty() {
		t.Errorf("no bytes are %q, %v", decoded.String(), err)
	}
}

// TestAllocations: no decision on a known key allocates, whatever the algorithm and for up to four limits, while
// windows and sub-buckets come and go; nor does its refund.
func TestAllocations(t *testing.T) {
	kinds := map[string]func(i int) limit.Limit{
		"first":     func(i int) limit.Limit { return limit.Fixed(20, time.Duration(i+1)*time.Second) },
		"aligned":   func(i int) limit.Limit { return limit.Fixed(20, time.Duration(i+1)*time.Second).Aligned() },
		"staggered": func(i int) limit.Limit { return limit.Fixed(20, time.Duration(i+1)*time.Second).Staggered() },
		"sliding": func(i int) limit.Limit {
			return limit.Sliding(20, time.Duration(i+1)*time.Second, 100*time.Millisecond)
		},
		"bucket": func(i int) limit.Limit { return limit.TokenBucket(7, time.Duration(i+1)*time.Second, 20) },
		"mixed": func(i int) limit.Limit {
			return []limit.Limit{
				limit.PerSecond(20), limit.Sliding(20, 2*time.Second, 100*time.Millisecond), limit.TokenBucket(7, time.Second, 20),
				limit.PerSecond(20).Staggered(),
			}[i]
		},
	}
	for name, kind := range kinds {
		for n := 1; n <= 4; n++ {
			p := &limit.Policy{}
			for i := range n {
				p.Limits = append(p.Limits, kind(i))
			}
			var s state.State
			now, admitted, denied := at(0), 0, 0
			use := func() {
				now.Micros += 17_000
				v := s.Take(p, now, 1)
				if v.Allowed {
					admitted++
					if r := v.Receipt(); admitted%5 == 0 {
						s.Refund(now, &r, 1)
					}
				} else {
					denied++
				}
				peek := s.Peek(p, now, 2)
				_ = peek.Binding()
				s.Usage(p, now, time.Second)
				s.Until()
			}
			often := func() { // the average is rounded down: one in a hundred must not be lost in it
				for range 100 {
					use()
				}
			}
			for range 10 {
				often() // sub-buckets find their room
			}
			if allocs := testing.AllocsPerRun(20, often); allocs != 0 {
				t.Errorf("%d limits of kind %s: %v allocations in 100 decisions", n, name, allocs)
			}
			if admitted == 0 || denied == 0 {
				t.Errorf("%d limits of kind %s: %d admitted, %d denied: nothing is shown", n, name, admitted, denied)
			}
		}
	}
}

// Encoding into a buffer that is large enough doesn't allocate either.
func TestEncodingAllocations(t *testing.T) {
	var s state.State
	s.Take(policyOf(limit.PerMinute(5), anHour, limit.TokenBucket(3, time.Second, 5)), at(0), 1)
	buffer := make([]byte, 0, 256)
	if allocs := testing.AllocsPerRun(1000, func() { buffer, _ = s.AppendText(buffer[:0]) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// A verdict that no state has made says of each limit what it was made with.
func TestNewVerdict(t *testing.T) {
	t.Parallel()
	p := &limit.Policy{Name: "p", Limits: []limit.Limit{
		limit.PerSecond(9), limit.PerMinute(9), limit.PerHour(9), limit.PerDay(9), limit.TokenBucket(9, time.Minute, 9),
	}}
	now := state.At{Micros: 1_800_000_000_000_000}
	for _, test := range []struct {
		allowed         bool
		cost, remaining int64
		wait, want      time.Duration // want is the RetryAfter
	}{
		{true, 3, 6, time.Minute, 0}, {true, 0, 6, time.Minute, 0}, {false, 3, 0, time.Minute, time.Minute},
		{false, 3, 2, 0, 0}, {false, 3, 0, limit.Never, limit.Never},
	} {
		v, n := state.NewVerdict(p, now, test.allowed, test.cost, test.remaining, test.wait), 0
		for s := range v.All() {
			resets := now.Micros
			if test.wait != limit.Never {
				resets += test.wait.Microseconds()
			}
			if s.Limit != p.Limits[n] || s.Remaining != test.remaining || s.RetryAfter != test.want || s.ResetAt.UnixMicro() != resets {
				t.Errorf("%+v: %+v", test, s)
			}
			n++
		}
		charged := int64(0)
		if test.allowed {
			charged = test.cost
		}
		if receipt := v.Receipt(); n != len(p.Limits) || v.Allowed != test.allowed || receipt.Cost != charged {
			t.Errorf("%+v: %d limits, allowed %v, receipt of %d", test, n, v.Allowed, receipt.Cost)
		}
	}
}
