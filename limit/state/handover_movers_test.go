package state_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// fenceEnd is when the fences of [fencesOf] end, and those of moves with a TTL of a minute.
var fenceEnd = at(time.Minute).Micros / 1000

// fencesOf reads fences such as "m1,2 t3,0": the mover, and the versions adopted and sealed.
func fencesOf(t *testing.T, text string) state.State {
	t.Helper()
	var b strings.Builder
	for fence := range strings.FieldsSeq(text) {
		fmt.Fprintf(&b, "%c:%d,%s;", fence[0], fenceEnd, fence[1:])
	}
	if b.Len() == 0 {
		return state.State{}
	}
	st, err := state.ParseState(b.String())
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return st
}

// sayFences is the inverse of fencesOf.
func sayFences(s *state.State, now state.At) string {
	var fences []string
	for _, mover := range []state.Mover{state.Migration, state.Topology} {
		if adopted, sealed := s.Fence(mover, now); adopted+sealed > 0 {
			fences = append(fences, fmt.Sprintf("%s%d,%d", mover.FenceID(), adopted, sealed))
		}
	}
	return strings.Join(fences, " ")
}

// sayWho is sayRefusal with the mover.
func sayWho(err error) string {
	if moved, ok := errors.AsType[*state.MovedError](err); ok {
		return fmt.Sprintf("%s %d", moved.Mover, moved.Version)
	}
	return sayRefusal(err)
}

// migrating and reshaping are moves of the two movers.
func migrating(version int64, step state.Step) state.Move {
	return state.Move{Mover: state.Migration, Version: version, Step: step, TTL: time.Minute}
}

func reshaping(version int64, step state.Step) state.Move {
	return state.Move{Mover: state.Topology, Version: version, Step: step, TTL: time.Minute}
}

// TestEnterOfTwoMovers is every case of a request that meets the fence of another mover than its own, beside its own.
func TestEnterOfTwoMovers(t *testing.T) {
	const ask, adopt, alone = state.Ask, state.Adopt, state.WithoutFloor
	for _, test := range []struct {
		has    string
		move   state.Move
		want   string
		leaves string // if changed
	}{
		{"m1,2", state.Move{}, "migration 2", ""},
		{"t1,2", state.Move{}, "topology 2", ""},
		{"m2,1 t2,1", state.Move{}, "", ""},
		{"m1,2 t3,4", state.Move{}, "topology 4", ""}, // where the key is now knows where the migration has it

		{"t1,2", migrating(1, ask), "topology 2", ""},
		{"t1,2", migrating(9, ask), "topology 2", ""}, // versions of two movers say nothing of each other
		{"t1,2", migrating(9, adopt), "topology 2", ""},
		{"t1,2", migrating(9, alone), "topology 2", ""},
		{"m8,9 t1,2", migrating(7, ask), "topology 2", ""},
		{"m8,9 t2,1", migrating(7, ask), "migration 9", ""},
		{"t2,1", migrating(1, ask), "wanted", ""},
		{"t2,1", migrating(1, adopt), "", "m1,0 t2,1"},
		{"m3,4 t2,1", migrating(5, adopt), "", "m5,4 t2,1"},
		{"m5,4 t2,1", migrating(5, ask), "", ""},

		{"m1,2", reshaping(1, ask), "migration 2", ""},
		{"m1,2", reshaping(9, ask), "migration 2", ""},
		{"m1,2", reshaping(9, adopt), "migration 2", ""},
		{"m1,2", reshaping(9, alone), "migration 2", ""},
		{"m1,2 t8,9", reshaping(7, ask), "topology 9", ""},
		{"m1,2 t8,9", reshaping(9, adopt), "topology 9", ""},
		{"m1,2 t8,9", reshaping(10, adopt), "migration 2", ""},
		{"m2,1 t8,9", reshaping(10, ask), "wanted", ""},
		{"m2,1 t8,9", reshaping(10, alone), "", ""},
		{"m2,1 t8,9", reshaping(10, adopt), "", "m2,1 t10,9"},
		{"m2,1", reshaping(1, adopt), "", "m2,1 t1,0"},
	} {
		st := fencesOf(t, test.has)
		changed, err := st.Enter(at(0), test.move)
		want := test.has
		if test.leaves != "" {
			want = test.leaves
		}
		if got := sayFences(&st, at(0)); sayWho(err) != test.want || got != want || changed != (test.leaves != "") {
			t.Errorf("%s at %q: %q, leaves %q, changed %t; want %q, %q", sayMove(test.move), test.has, sayWho(err), got, changed, test.want, want)
		}
	}
}

func sayMove(m state.Move) string {
	return fmt.Sprintf("%s%d, step %d", m.Mover.FenceID(), m.Version, m.Step)
}

// TestSealOfTwoMovers: a topology seals whatever a migration has done; a migration finds the key elsewhere.
func TestSealOfTwoMovers(t *testing.T) {
	for _, test := range []struct {
		has    string
		move   state.Move
		want   string
		leaves string // if changed
	}{
		{"t1,2", migrating(1, state.Ask), "topology 2", ""},
		{"m0,1 t1,2", migrating(1, state.Ask), "topology 2", ""}, // even if it did so before
		{"m9,0 t1,2", migrating(1, state.Ask), "topology 2", ""},
		{"t2,1", migrating(1, state.Ask), "", "m0,1 t2,1"},
		{"m9,0 t2,1", migrating(1, state.Ask), "migration 9", ""},
		{"t2,0", migrating(1, state.Ask), "", "m0,1 t2,0"},

		{"m1,2", reshaping(1, state.Ask), "", "m1,2 t0,1"},
		{"m2,1", reshaping(1, state.Ask), "", "m2,1 t0,1"},
		{"m1,2 t0,1", reshaping(1, state.Ask), "", ""},
		{"m1,2 t1,0", reshaping(1, state.Ask), "topology 1", ""},
		{"m9,0 t1,0", reshaping(2, state.Ask), "", "m9,0 t1,2"},
	} {
		st := fencesOf(t, test.has)
		changed, err := st.Seal(at(0), test.move)
		want := test.has
		if test.leaves != "" {
			want = test.leaves
		}
		if got := sayFences(&st, at(0)); sayWho(err) != test.want || got != want || changed != (test.leaves != "") {
			t.Errorf("a seal of %s at %q: %q, leaves %q, changed %t; want %q, %q",
				sayMove(test.move), test.has, sayWho(err), got, changed, test.want, want)
		}
	}
}

// TestArriveWithFences: which fences come along with a floor. Take is what a request that charges is told, seed what one
// that doesn't; what a refused one leaves is what was there.
func TestArriveWithFences(t *testing.T) {
	const ask, adopt, alone = state.Ask, state.Adopt, state.WithoutFloor
	for _, test := range []struct {
		has, floor string
		move       state.Move
		take, seed string
		leaves     string
	}{
		// From group to group the fence of a migration comes along, each version by itself.
		{"", "m3,2", reshaping(1, adopt), "", "", "m3,2 t1,0"},
		{"m1,0", "m3,2", reshaping(1, adopt), "", "", "m3,2 t1,0"},
		{"m5,4", "m3,2", reshaping(1, adopt), "", "", "m5,4 t1,0"},
		{"m5,2", "m1,4", reshaping(1, adopt), "", "", "m5,4 t1,0"},
		{"m3,0", "", reshaping(1, adopt), "", "", "m3,0 t1,0"},
		{"t1,2", "m3,2", reshaping(3, adopt), "", "", "m3,2 t3,2"},
		// It may freeze the place it comes to, which a take learns at once, and a seed when it asks next.
		{"", "m1,2", reshaping(1, adopt), "migration 2", "", "m1,2 t1,0"},
		{"m1,0", "m0,2", reshaping(1, adopt), "migration 2", "", "m1,2 t1,0"},
		{"m3,0", "m0,4", reshaping(1, adopt), "migration 4", "", "m3,4 t1,0"},
		{"t0,2", "m1,2", reshaping(3, adopt), "migration 2", "", "m1,2 t3,2"},
		// Or lift what froze that.
		{"m1,2", "m3,2", reshaping(1, adopt), "migration 2", "", "m3,2 t1,0"},
		{"m1,2", "", reshaping(1, adopt), "migration 2", "", "m1,2 t1,0"},
		// The floor's own fence of a topology belongs to the other group.
		{"", "t0,1", reshaping(1, adopt), "", "", "t1,0"},
		{"", "t8,9", reshaping(1, adopt), "", "", "t1,0"},
		{"", "m3,2 t0,1", reshaping(1, adopt), "", "", "m3,2 t1,0"},
		// Nothing comes along where nothing is adopted.
		{"t1,0", "m1,2", reshaping(1, adopt), "", "", "t1,0"},
		{"t1,0", "m1,2", reshaping(1, ask), "", "", "t1,0"},
		{"", "m1,2", reshaping(1, alone), "", "", ""},
		{"", "m1,2", state.Move{}, "", "", ""},
		{"", "m1,2", reshaping(1, ask), "wanted", "wanted", ""},
		{"t1,2", "m1,2", reshaping(1, adopt), "topology 2", "topology 2", "t1,2"},
		// From one backend to another no fence does: neither side knows of the groups of the other.
		{"", "m0,1 t5,6", migrating(1, adopt), "", "", "m1,0"},
		{"t2,1", "m0,1 t5,6", migrating(1, adopt), "", "", "m1,0 t2,1"},
		{"m0,1", "m9,0 t5,6", migrating(1, adopt), "migration 1", "migration 1", "m0,1"},
		{"t1,2", "m0,1", migrating(1, adopt), "topology 2", "topology 2", "t1,2"},
		// What a topology only brings may be frozen by a migration; what a migration brings may not be by a topology.
		{"m1,2", "t0,3", reshaping(4, adopt), "migration 2", "", "m1,2 t4,0"},
		{"m1,2 t1,0", "", reshaping(1, ask), "migration 2", "", "m1,2 t1,0"},
		{"m1,2 t1,0", "", reshaping(1, alone), "migration 2", "", "m1,2 t1,0"},
		{"m1,2", "", reshaping(1, ask), "migration 2", "wanted", "m1,2"},
		{"m1,2", "", migrating(1, ask), "migration 2", "migration 2", "m1,2"},
		{"m1,2", "", state.Move{}, "migration 2", "migration 2", "m1,2"},
	} {
		policy := policyOf(limit.PerHour(9))
		for _, charges := range []bool{true, false} {
			st, floor, want, leaves := fencesOf(t, test.has), fencesOf(t, test.floor), test.take, test.leaves
			if !charges {
				want = test.seed
			}
			if want != "" {
				leaves = sayFences(&st, at(0))
			}
			floor.Take(policy, at(0), 4)
			before := st.Clone()
			changed, err := st.Arrive(policy, at(0), test.move, &floor, charges)
			if got := sayFences(&st, at(0)); sayWho(err) != want || got != leaves {
				t.Errorf("%s from %q to %q, charges %t: %q, leaves %q; want %q, %q",
					sayMove(test.move), test.floor, test.has, charges, sayWho(err), got, want, leaves)
			}
			if err != nil && (changed || !st.Equal(&before)) {
				t.Errorf("%s from %q to %q, charges %t: refused, and left %s", sayMove(test.move), test.floor, test.has, charges, st.String())
			}
			if v := st.Peek(policy, at(0), 1); err == nil && (!changed || v.Binding().Remaining != 5) {
				t.Errorf("%s from %q to %q, charges %t: left %s, changed %t", sayMove(test.move), test.floor, test.has, charges, st.String(), changed)
			}
		}
	}
}

// TestArriveWithoutFloor is an adoption of nothing: it changes this mover's fence only.
func TestArriveWithoutFloor(t *testing.T) {
	policy := policyOf(limit.PerHour(9))
	for _, charges := range []bool{true, false} {
		st := fencesOf(t, "m2,1")
		if changed, err := st.Arrive(policy, at(0), reshaping(1, state.Adopt), nil, charges); err != nil || !changed {
			t.Errorf("changed %t, %v", changed, err)
		}
		if got := sayFences(&st, at(0)); got != "m2,1 t1,0" {
			t.Errorf("left %s", got)
		}
	}
}

// TestFencesOver: fences that are over freeze nothing and don't come along, on either side; a fence that came along lives as
// long as the longer of both.
func TestFencesOver(t *testing.T) {
	policy := policyOf(limit.PerHour(9))
	later := state.At{Micros: fenceEnd * 1000} // both are over
	frozen := fencesOf(t, "m1,2 t1,2")
	if _, err := frozen.Enter(later, state.Move{}); err != nil {
		t.Error(err)
	}
	if _, err := frozen.Seal(later, migrating(1, state.Ask)); err != nil || sayFences(&frozen, later) != "m0,1" {
		t.Errorf("%v, left %s", err, frozen.String())
	}
	st, floor := fencesOf(t, "m5,0"), fencesOf(t, "m1,9")
	if _, err := st.Arrive(policy, later, reshaping(1, state.Adopt), &floor, true); err != nil || sayFences(&st, later) != "t1,0" {
		t.Errorf("%v, left %s", err, st.String())
	}
	young, err := state.ParseState(fmt.Sprintf("m:%d,3,2;", fenceEnd+5))
	if err != nil {
		t.Fatal(err)
	}
	for _, states := range [][2]state.State{{fencesOf(t, "m1,0"), young.Clone()}, {young.Clone(), fencesOf(t, "m1,0")}} {
		if _, err := states[0].Arrive(policy, at(0), reshaping(1, state.Adopt), &states[1], true); err != nil {
			t.Fatal(err)
		}
		if got := sayFences(&states[0], later); got != "m3,2" {
			t.Errorf("once the shorter one would be over: %q", got)
		}
	}
	st, floor = fencesOf(t, "m5,0"), young.Clone() // what was known here is over: it adds nothing
	if _, err := st.Arrive(policy, later, reshaping(1, state.Adopt), &floor, true); err != nil || sayFences(&st, later) != "m3,2 t1,0" {
		t.Errorf("%v, left %s", err, st.String())
	}
}

// TestUnfenceOfOne: a mover forgets its own fence, not the other's.
func TestUnfenceOfOne(t *testing.T) {
	for mover, left := range map[state.Mover]string{state.Migration: "t3,4", state.Topology: "m1,2"} {
		st := fencesOf(t, "m1,2 t3,4")
		st.Take(policyOf(limit.PerMinute(5)), at(0), 1)
		copied := st
		st.Unfence(mover)
		if got := sayFences(&st, at(0)); got != left || !strings.Contains(st.String(), "f1m:") {
			t.Errorf("without the fence of a %s: %s", mover, st.String())
		}
		if got := sayFences(&copied, at(0)); got != "m1,2 t3,4" {
			t.Errorf("a copy has %s", got)
		}
	}
}

func TestMoverText(t *testing.T) {
	for mover, want := range map[state.Mover][2]string{state.Migration: {"m", "migration"}, state.Topology: {"t", "topology"}} {
		if got := [2]string{mover.FenceID(), mover.String()}; got != want {
			t.Errorf("%d: %q", mover, got)
		}
		e := &state.MovedError{Mover: mover, Version: 7}
		if got := e.Error(); got != "sluice: the key has moved under version 7 of a "+want[1] {
			t.Error(got)
		}
	}
	var bad *limit.Error
	if err := (state.Move{Mover: state.Topology + 1}).Validate(); !errors.As(err, &bad) || bad.Field != "move: mover" {
		t.Errorf("an unknown mover: %v", err)
	}
}
