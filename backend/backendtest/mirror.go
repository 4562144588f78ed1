package backendtest

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit/state"
)

// comparePeek checks a denial that package limit/state would not give.
func (m *mirror) comparePeek(t reporter, got *state.Verdict, cost int64) {
	t.Helper()
	peeked := m.model.Clone()
	want := peeked.Peek(m.policy, m.at(), cost)
	short := false
	for s := range want.All() {
		short = short || s.Remaining-m.withheld < cost
	}
	if !short {
		t.Errorf("denied %d: %s, want %s, of which %d may be withheld", cost, say(got), say(&want), m.withheld)
	}
}

func (m *mirror) peek(t reporter, cost int64) backend.Result {
	t.Helper()
	looked := m.model.Clone()
	want := looked.Peek(m.policy, m.at(), cost)
	for deadline := time.Now().Add(5 * time.Second); ; {
		got := m.subject.peek(t, m.request(cost, nil))
		if !m.lags || say(&got.Verdict) == say(&want) || time.Now().After(deadline) {
			m.compareResult(t, "Peek", &got, &want)
			return got
		}
	}
}

// compare checks a verdict against that of package limit/state.
func (m *mirror) compare(t reporter, what string, got, want *state.Verdict) {
	t.Helper()
	if m.withheld == 0 {
		if say(got) != say(want) || got.Binding() != want.Binding() {
			t.Errorf("%s: %s, binding %s; want %s, binding %s", what, say(got), got.Binding().Limit, say(want), want.Binding().Limit)
		}
		return
	}
	if got.Allowed && !want.Allowed {
		t.Errorf("%s: %s, want %s", what, say(got), say(want))
	}
	statuses := slices.Collect(want.All())
	i := 0
	for g := range got.All() {
		if w := statuses[i]; g.Remaining > w.Remaining || g.Remaining < w.Remaining-m.withheld {
			t.Errorf("%s: limit %s: %d left, want %d, of which %d may be withheld", what, g.Limit, g.Remaining, w.Remaining, m.withheld)
		}
		i++
	}
}

func (m *mirror) compareReceipts(t reporter, got, want state.Receipt) {
	t.Helper()
	if m.withheld > 0 || want.Cost == 0 {
		return
	}
	for i := range m.policy.Limits {
		end, position, fraction := got.Charge(i)
		wantEnd, wantPosition, wantFraction := want.Charge(i)
		if end != wantEnd || position != wantPosition || fraction != wantFraction {
			t.Errorf("the receipt names %d.%d until %d of limit %s, want %d.%d until %d",
				position, fraction, end, m.policy.Limits[i], wantPosition, wantFraction, wantEnd)
		}
	}
}

// compareStates checks a state against the model, apart from what is over.
func (m *mirror) compareStates(t reporter, what string, got state.State) {
	t.Helper()
	got, want := settled(got, m.at()), settled(m.model, m.at())
	if !got.Equal(&want) {
		t.Errorf("%s holds %q, want %q", what, got.String(), want.String())
	}
}

// settled is a state without what is over.
func settled(s state.State, at state.At) state.State { return state.Merge(s, state.State{}, at) }

// compareLoad checks what is remembered, where the backend can tell.
func (m *mirror) compareLoad(t reporter) {
	t.Helper()
	loader, ok := m.Backend.(backend.Loader)
	if !ok || m.withheld > 0 {
		return
	}
	want := settled(m.model, m.at())
	for deadline := time.Now().Add(5 * time.Second); ; {
		snapshot, err := loader.Load(context.Background(), m.request(0, nil))
		if err != nil {
			t.Fatalf("Load: %v", err)
		}
		if now := m.clock.micros.Load(); snapshot.Now != now || snapshot.Source == backend.Unknown {
			t.Errorf("loaded at %d us from %s, the clock says %d", snapshot.Now, snapshot.Source, now)
		}
		got := settled(snapshot.State, m.at())
		if !m.lags || got.Equal(&want) || time.Now().After(deadline) {
			m.compareStates(t, "Load", snapshot.State)
			return
		}
	}
}

func (m *mirror) refund(t reporter, receipt state.Receipt, amount int64) {
	t.Helper()
	if err := m.subject.refund(m.request(0, nil), receipt, amount); err != nil {
		t.Fatalf("Refund: %v", err)
	}
	m.lagging = true
	for _, pair := range m.receipts {
		if reflect.DeepEqual(pair[0], receipt) {
			receipt = pair[1]
			break
		}
	}
	m.model.Refund(m.at(), &receipt, amount)
}

func (m *mirror) reset(t reporter) {
	t.Helper()
	if err := m.subject.reset(m.request(0, nil)); err != nil {
		t.Fatalf("Reset: %v", err)
	}
	m.lagging = true
	m.model.Reset(m.policy, m.at())
}

func (m *mirror) grant(t reporter, extra int64) {
	t.Helper()
	if err := m.subject.grant(m.request(0, nil), extra); err != nil {
		t.Fatalf("Grant: %v", err)
	}
	m.lagging = true
	m.model.Grant(m.policy, m.at(), extra)
}

func (m *mirror) seed(t reporter, st state.State) {
	t.Helper()
	before := st.Clone()
	if err := m.subject.seed(m.request(0, nil), st); err != nil {
		t.Fatalf("Seed: %v", err)
	}
	if !st.Equal(&before) {
		t.Fatalf("Seed changed the state it was given from %s to %s", before.String(), st.String())
	}
	m.model.Join(m.policy, m.at(), &st)
}
