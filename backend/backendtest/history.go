package backendtest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// testHistory holds the backend to state.State over random histories of all operations, on keys and policies that
// take turns. The number of histories is -rapid.checks.
func testHistory(t *testing.T, s *subject) {
	if s.withheld > 0 { // what it holds back is invisible from outside once it may come back
		return
	}
	worlds := 0
	rapid.Check(t, func(t *rapid.T) {
		worlds++
		w := drawWorld(t, s, worlds)
		t.Repeat(map[string]func(*rapid.T){
			"":      func(t *rapid.T) {},
			"step":  w.step,
			"steps": w.step, // rapid draws a name first; two names draw better than one
		})
	})
}

// world is a few keys that live under one clock.
type world struct {
	*subject
	mirrors  []*mirror
	policies [][]limit.Limit
	receipts []receipt
	states   []state.State // of any time, of any of the keys
	newest   int64         // the latest moment that the clock has shown
	gone     int64         // the latest end that was seen over: the clock must not step back before it
}

type receipt struct {
	of *mirror
	state.Receipt
}

func drawWorld(t *rapid.T, s *subject, n int) *world {
	s.clock.set(time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "start")))
	w := &world{subject: s, newest: s.clock.micros.Load()}
	first := drawLimits(t)
	w.policies = append(w.policies, first, changed(t, first), drawLimits(t))
	for _, name := range []string{"a", "b"} {
		for _, key := range []string{"alice", "bob"} {
			m := s.mirror(key, first...)
			m.policy.Name = name + "-" + strconv.Itoa(n) // a key of its own for each history
			w.mirrors = append(w.mirrors, m)
		}
	}
	return w
}

// drawLimits draws limits whose windows are long enough that a server's own clock can't end them while a history runs.
func drawLimits(t *rapid.T) []limit.Limit {
	unit := time.Minute
	max := rapid.OneOf(rapid.Int64Range(1, 20), rapid.Just(int64(1000)))
	one := rapid.Custom(func(t *rapid.T) limit.Limit {
		n := max.Draw(t, "max")
		window := time.Duration(rapid.SampledFrom([]int{1, 7, 60}).Draw(t, "window")) * unit
		switch rapid.IntRange(0, 4).Draw(t, "algorithm") {
		case 0:
			return limit.Fixed(n, window)
		case 1:
			return limit.Fixed(n, window).Aligned()
		case 2:
			return limit.Fixed(n, window).Staggered()
		case 3:
			parts := rapid.SampledFrom([]int{1, 2, 3, 10, 60}).Draw(t, "sub-buckets")
			return limit.Sliding(n, window, window/time.Duration(parts))
		}
		rate := rapid.SampledFrom([]int64{1, 3, 7, 60}).Draw(t, "rate")
		return limit.TokenBucket(rate, window, n)
	})
	limits := rapid.SliceOfNDistinct(one, 1, 4, func(l limit.Limit) string { return string(state.AppendID(nil, &l)) }).Draw(t, "limits")
	return limits
}

// changed is what a deploy may make of limits: another Max, another order, one less.
func changed(t *rapid.T, limits []limit.Limit) []limit.Limit {
	next := rapid.Permutation(limits).Draw(t, "reordered")
	next = next[:rapid.IntRange(1, len(next)).Draw(t, "kept")]
	for i := range next {
		n := rapid.Int64Range(1, 30).Draw(t, "new max")
		if next[i].Algorithm == limit.Bucket {
			next[i].Burst = n
		} else {
			next[i].Max = n
		}
	}
	return next
}

func (w *world) step(t *rapid.T) {
	w.tick(t)
	m := rapid.SampledFrom(w.mirrors).Draw(t, "key")
	for i := range w.mirrors { // any call may forget what is over
		w.see(&w.mirrors[i].model)
	}
	op := rapid.SampledFrom([]string{
		"take", "take", "take", "take", "floor", "floor", "peek", "refund", "refund", "charge", "charge", "reset", "grant", "seed", "load", "policy",
	}).Draw(t, "op")
	_, peeks := w.Backend.(backend.Peeker)
	_, refunds := w.Backend.(backend.Refunder)
	_, charges := w.Backend.(backend.Charger)
	_, resets := w.Backend.(backend.Resetter)
	_, grants := w.Backend.(backend.Granter)
	_, seeds := w.Backend.(backend.Seeder)
	switch {
	case op == "take":
		w.keep(m, m.take(t, w.drawCost(t, m)))
	case op == "floor":
		floor := w.drawState(t, m)
		w.see(&floor)
		w.keep(m, m.takeFloor(t, w.drawCost(t, m), &floor))
	case op == "peek" && peeks:
		m.peek(t, w.drawCost(t, m))
	case op == "refund" && refunds && len(w.receipts) > 0:
		r := rapid.SampledFrom(w.receipts).Draw(t, "receipt")
		amount := rapid.OneOf(rapid.Just(r.Cost), rapid.Int64Range(1, r.Cost)).Draw(t, "amount")
		r.of.refund(t, r.Receipt, amount)
		m = r.of
	case op == "charge" && charges:
		var floor *state.State
		if rapid.Bool().Draw(t, "floor") {
			known := w.drawState(t, m)
			w.see(&known)
			floor = &known
		}
		mark, cost := w.drawMark(t, m), rapid.OneOf(rapid.Just(w.drawCost(t, m)), rapid.Int64Range(1, 2000)).Draw(t, "spent")
		w.keep(m, m.spend(t, mark, cost, floor))
	case op == "reset" && resets:
		m.reset(t)
	case op == "grant" && grants:
		m.grant(t, w.drawCost(t, m))
	case op == "seed" && seeds:
		st := w.drawState(t, m)
		w.see(&st)
		m.seed(t, st)
	case op == "policy":
		m.policy = &limit.Policy{Name: m.policy.Name, Limits: rapid.SampledFrom(w.policies).Draw(t, "policy")}
		return
	}
	m.compareLoad(t)
}

// tick moves the clock: forward, or back as far as nothing that was over comes to life again.
func (w *world) tick(t *rapid.T) {
	pauses := []int64{0, 0, 1, rapid.Int64Range(0, 5_000_000).Draw(t, "a little"), rapid.Int64Range(0, 5_000_000_000).Draw(t, "much")}
	for _, m := range w.mirrors {
		for _, end := range ends(&m.model) {
			if until := end - w.clock.micros.Load(); until > 1 {
				pauses = append(pauses, until-1, until, until+1)
			}
		}
	}
	now := w.clock.micros.Load() + rapid.SampledFrom(pauses).Draw(t, "pause")
	if rapid.IntRange(0, 9).Draw(t, "back?") == 0 {
		now = max(w.gone, w.newest-rapid.Int64Range(0, 600_000_000).Draw(t, "back"))
	}
	w.clock.micros.Store(now)
	w.newest = max(w.newest, now)
}

// see takes note of what a state holds that is over.
func (w *world) see(s *state.State) {
	for _, end := range ends(s) {
		if end <= w.newest {
			w.gone = max(w.gone, end)
		}
	}
}

// ends is when each entry of a state is over, in Unix microseconds: in the encoding an entry's end comes first.
func ends(s *state.State) []int64 {
	var all []int64
	for entry := range strings.SplitSeq(s.String(), ";") {
		id, body, _ := strings.Cut(entry, ":")
		body, _, _ = strings.Cut(body, ",")
		whole, fraction, _ := strings.Cut(body, ".")
		end, err := strconv.ParseInt(whole, 10, 64)
		switch {
		case err != nil:
			continue
		case id[0] != 'b':
			end *= 1000
		case fraction != "":
			end++
		}
		all = append(all, end)
	}
	return all
}

func (w *world) drawCost(t *rapid.T, m *mirror) int64 {
	quota := limit.MaxCount
	for i := range m.policy.Limits {
		quota = min(quota, m.policy.Limits[i].Quota())
	}
	return rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, quota), rapid.Just(quota)).Draw(t, "cost")
}

// drawState draws what a caller may know: an earlier state of the key, or a copy that went on by itself.
func (w *world) drawState(t *rapid.T, m *mirror) state.State {
	st := m.model.Clone()
	if len(w.states) > 0 && rapid.Bool().Draw(t, "older") {
		older := rapid.SampledFrom(w.states).Draw(t, "state")
		st = older.Clone()
	}
	if rapid.Bool().Draw(t, "went on") {
		st.Take(m.policy, m.at(), w.drawCost(t, m))
	}
	return st
}

// drawMark draws a mark: none, that of an earlier charge of the key, or of a moment. Of a bucket it is not before anything that is
// over: who remembers that is not agreed upon.
func (w *world) drawMark(t *rapid.T, m *mirror) state.Mark {
	for i := len(w.receipts) - 1; i >= 0 && rapid.Bool().Draw(t, "receipt"); i-- {
		if r := w.receipts[i]; r.of == m && r.Policy() == m.policy && !hasBucket(m.policy) {
			return r.Mark()
		}
	}
	then := m.at()
	if back := rapid.Int64Range(0, 200_000_000).Draw(t, "before"); rapid.Bool().Draw(t, "marked") {
		then.Micros -= back
	}
	if hasBucket(m.policy) {
		then.Micros = min(max(then.Micros, w.gone), m.at().Micros)
	}
	mark, _ := state.MarkAt(m.policy, then)
	return mark
}

func hasBucket(p *limit.Policy) bool {
	return slices.ContainsFunc(p.Limits, func(l limit.Limit) bool { return l.Algorithm == limit.Bucket })
}

func (w *world) keep(m *mirror, r backend.Result) {
	if kept := (receipt{m, r.Receipt()}); kept.Cost > 0 {
		w.receipts = append(w.receipts, kept)
	}
	if len(w.states) < 20 {
		w.states = append(w.states, m.model.Clone())
	}
}
