package state_test

import (
	"testing"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestWithin: a copy is within one that another policy has been charged to as well, and not within one that was charged since.
func TestWithin(t *testing.T) {
	minute, hour := limit.PerMinute(10).Aligned(), limit.PerHour(10).Aligned()
	charge := func(s state.State, l limit.Limit) state.State {
		s = s.Clone()
		s.Take(&limit.Policy{Limits: []limit.Limit{l}}, at(0), 1)
		return s
	}
	one := charge(state.State{}, minute)
	both, two := charge(one, hour), charge(one, minute)
	for _, test := range []struct {
		name string
		a, b state.State
		want bool
	}{
		{"itself", one, one, true},
		{"nothing in one", state.State{}, one, true},
		{"one in nothing", one, state.State{}, false},
		{"one in both", one, both, true},
		{"both in one", both, one, false},
		{"one in two", one, two, false},
		{"two in one", two, one, false},
	} {
		if got := test.a.Within(&test.b); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
}
