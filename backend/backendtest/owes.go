package backendtest

import (
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Owes allows the backend to decide on credit, with [backend.OnCredit] as the source: a take is charged after its answer. Owed
// returns what it has admitted and not charged yet. The suite waits after each take of a single caller until that is 0; all
// that the backend holds must be as if the take had been exact. A decision on credit may show less than remains, never more: of
// a bucket, and after something was given back. Its receipt may name a position up to cost-1 lower. Callers at once may be
// admitted up to above(l) more than l holds, and be shown any number as remaining.
func Owes(owed func(b backend.Backend) int64, above func(l limit.Limit) int64) Option {
	return func(c *config) { c.owed, c.above = owed, above }
}

// settle waits until a backend that may owe owes nothing.
func (s *subject) settle(t reporter) {
	t.Helper()
	if s.owed == nil {
		return
	}
	for deadline := time.Now().Add(10 * time.Second); s.owed(s.Backend) > 0; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d are still not charged", s.owed(s.Backend))
		}
	}
}

// most is how much callers at once may be admitted under l.
func (s *subject) most(l limit.Limit) int64 {
	if s.above == nil {
		return l.Quota()
	}
	return l.Quota() + s.above(l)
}

// mayShowLess reports whether a result may show less than remains.
func (m *mirror) mayShowLess(got *backend.Result) bool {
	return m.owed != nil && got.Source == backend.OnCredit && (m.lagging || hasBucket(m.policy))
}

// compareResult is compare, with regard to what may be on credit.
func (m *mirror) compareResult(t reporter, what string, got *backend.Result, want *state.Verdict) {
	t.Helper()
	if !m.mayShowLess(got) {
		m.compare(t, what, &got.Verdict, want)
		return
	}
	statuses := slices.Collect(want.All())
	i := 0
	for g := range got.All() {
		if w := statuses[i]; !want.Allowed || g.Remaining > w.Remaining {
			t.Errorf("%s on credit: %s, want %s or less", what, say(&got.Verdict), say(want))
		}
		i++
	}
}

// compareOwed checks a receipt of a take on credit.
func (m *mirror) compareOwed(t reporter, got, want state.Receipt) {
	t.Helper()
	for i := range m.policy.Limits {
		if m.policy.Limits[i].Algorithm == limit.Bucket {
			continue
		}
		end, position, _ := got.Charge(i)
		wantEnd, wantPosition, _ := want.Charge(i)
		if end != wantEnd || position > wantPosition || !m.lagging && position <= wantPosition-want.Cost {
			t.Errorf("the receipt on credit names %d until %d of limit %s, want at most %d until %d",
				position, end, m.policy.Limits[i], wantPosition, wantEnd)
		}
	}
}
