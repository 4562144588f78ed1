package limit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// TestEnter is every case of a request that meets a stamp.
func TestEnter(t *testing.T) {
	type stamp struct{ adopted, sealed int64 }
	wanted := "wanted"
	moved := func(version int64) string { return fmt.Sprintf("moved under %d", version) }
	for _, test := range []struct {
		has     stamp
		version int64
		step    limit.Step
		want    string
		leaves  stamp
	}{
		{stamp{0, 0}, 0, limit.Ask, "", stamp{0, 0}},
		{stamp{0, 0}, 3, limit.Ask, wanted, stamp{0, 0}},
		{stamp{0, 0}, 3, limit.Alone, "", stamp{0, 0}},
		{stamp{0, 0}, 3, limit.Adopt, "", stamp{3, 0}},
		{stamp{2, 0}, 3, limit.Ask, wanted, stamp{2, 0}},
		{stamp{3, 0}, 3, limit.Ask, "", stamp{3, 0}},
		{stamp{4, 0}, 3, limit.Adopt, "", stamp{4, 0}},
		{stamp{4, 0}, 0, limit.Ask, "", stamp{4, 0}},
		{stamp{0, 4}, 0, limit.Ask, moved(4), stamp{0, 4}},
		{stamp{0, 4}, 3, limit.Ask, moved(4), stamp{0, 4}},
		{stamp{0, 4}, 3, limit.Adopt, moved(4), stamp{0, 4}},
		{stamp{0, 4}, 3, limit.Alone, moved(4), stamp{0, 4}},
		{stamp{0, 4}, 4, limit.Adopt, moved(4), stamp{0, 4}},
		{stamp{0, 4}, 5, limit.Ask, wanted, stamp{0, 4}},
		{stamp{0, 4}, 5, limit.Alone, "", stamp{0, 4}},
		{stamp{0, 4}, 5, limit.Adopt, "", stamp{5, 4}},
		{stamp{3, 4}, 3, limit.Ask, moved(4), stamp{3, 4}},
		{stamp{5, 4}, 3, limit.Ask, "", stamp{5, 4}},
		{stamp{5, 4}, 0, limit.Ask, "", stamp{5, 4}},
		{stamp{5, 4}, 6, limit.Ask, wanted, stamp{5, 4}},
	} {
		state := stampedState(t, test.has.adopted, test.has.sealed)
		changed, err := state.Enter(at(0), limit.Move{Version: test.version, Step: test.step, Hold: time.Minute})
		adopted, sealed := state.Stamp(limit.Migration, at(0))
		if got := sayRefusal(err); got != test.want || (stamp{adopted, sealed}) != test.leaves || changed != (test.has != test.leaves) {
			t.Errorf("%+v, version %d, step %d: %q, leaves %d, %d, changed %t; want %q, %+v",
				test.has, test.version, test.step, got, adopted, sealed, changed, test.want, test.leaves)
		}
	}
}

// TestSeal is every case of a seal that meets a stamp.
func TestSeal(t *testing.T) {
	for _, test := range []struct {
		adopted, sealed, version int64
		want                     string
		leaves                   int64 // sealed
	}{
		{0, 0, 3, "", 3},
		{2, 0, 3, "", 3},
		{2, 3, 3, "", 3},
		{4, 3, 5, "", 5},
		{0, 2, 3, "", 3},
		{3, 0, 3, "moved under 3", 0},
		{4, 0, 3, "moved under 4", 0},
		{0, 4, 3, "moved under 4", 4},
		{2, 4, 3, "moved under 4", 4},
		{5, 4, 3, "moved under 5", 4},
	} {
		state := stampedState(t, test.adopted, test.sealed)
		changed, err := state.Seal(at(0), limit.Move{Version: test.version, Hold: time.Minute})
		adopted, sealed := state.Stamp(limit.Migration, at(0))
		if got := sayRefusal(err); got != test.want || adopted != test.adopted || sealed != test.leaves || changed != (sealed != test.sealed) {
			t.Errorf("seal %+v: %q, leaves %d, %d, changed %t", test, got, adopted, sealed, changed)
		}
	}
}

// TestStampEnds: a stamp is kept for as long as the longest Hold of its makers, and keeps the state that long.
func TestStampEnds(t *testing.T) {
	var state limit.State
	for _, step := range []struct {
		after, hold time.Duration
		version     int64
		until       time.Duration
	}{
		{0, time.Minute, 1, time.Minute},
		{time.Second, time.Second, 2, time.Minute},
		{time.Second, time.Minute, 3, time.Minute + time.Second},
		{time.Second + time.Microsecond, time.Minute, 4, time.Minute + time.Second + time.Millisecond}, // whole milliseconds
	} {
		if _, err := state.Seal(at(step.after), limit.Move{Version: step.version, Hold: step.hold}); err != nil {
			t.Fatal(err)
		}
		if want := at(step.until).Micros; state.Until() != want {
			t.Errorf("version %d: kept until %d, want %d", step.version, state.Until(), want)
		}
	}
	end := limit.At{Micros: state.Until()}
	if _, err := state.Enter(limit.At{Micros: end.Micros - 1}, limit.Move{}); sayRefusal(err) != "moved under 4" {
		t.Errorf("just before the end: %v", err)
	}
	if _, err := state.Enter(end, limit.Move{}); err != nil {
		t.Errorf("at the end: %v", err)
	}
	if _, err := state.Seal(end, limit.Move{Version: 1, Hold: time.Second}); err != nil { // the old versions are forgotten
		t.Errorf("a seal after the end: %v", err)
	}
	if adopted, sealed := state.Stamp(limit.Migration, end); adopted != 0 || sealed != 1 {
		t.Errorf("after the end: adopted %d, sealed %d", adopted, sealed)
	}
}

// TestUnstamp: the key's counts stay, and copies are left alone.
func TestUnstamp(t *testing.T) {
	policy := policyOf(limit.PerMinute(5))
	state := stampedState(t, 1, 2)
	state.Take(policy, at(0), 1)
	other := state
	state.Unstamp(limit.Migration)
	if _, sealed := other.Stamp(limit.Migration, at(0)); sealed != 2 {
		t.Errorf("a copy by assignment lost the stamp")
	}
	if adopted, sealed := state.Stamp(limit.Migration, at(0)); adopted != 0 || sealed != 0 || state.String() != "f1m:1767247260000,1;" {
		t.Errorf("left %q", state.String())
	}
	state.Unstamp(limit.Migration)
}

func TestMoveValidate(t *testing.T) {
	for _, m := range []limit.Move{
		{}, {Version: 1}, {Version: limit.MaxCount, Step: limit.Alone, Hold: 2 * limit.MaxWindow},
	} {
		if err := m.Validate(); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	for _, m := range []limit.Move{
		{Version: -1}, {Version: limit.MaxCount + 1}, {Step: limit.Alone + 1}, {Hold: -1}, {Hold: 2*limit.MaxWindow + 1},
	} {
		var bad *limit.Error
		if err := m.Validate(); !errors.As(err, &bad) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

func stampedState(t *testing.T, adopted, sealed int64) limit.State {
	t.Helper()
	if adopted == 0 && sealed == 0 {
		return limit.State{}
	}
	state, err := limit.ParseState(fmt.Sprintf("m:%d,%d,%d;", at(time.Minute).Micros/1000, adopted, sealed))
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func sayRefusal(err error) string {
	var moved *limit.MovedError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, limit.ErrFloorWanted):
		return "wanted"
	case errors.As(err, &moved):
		return fmt.Sprintf("moved under %d", moved.Version)
	}
	return err.Error()
}

// mover is a process that takes from a key which is on its way between two places, one atomic step at a time. Even
// versions have the key at place 0, odd ones at place 1.
type mover struct {
	version int64
	step    limit.Step
	floor   limit.State
	asked   bool // the place wants a floor: the other one is to be sealed next
}

// turn makes the mover's next step. It reports whether a request was admitted, and whether it was denied.
func (m *mover) turn(places *[2]limit.State, policy *limit.Policy, now limit.At) (admitted, denied bool) {
	move := limit.Move{Version: m.version, Step: m.step, Hold: time.Hour}
	here, there := &places[m.version%2], &places[1-m.version%2]
	var moved *limit.MovedError
	if m.asked {
		_, err := there.Seal(now, move)
		if errors.As(err, &moved) {
			*m = mover{version: moved.Version}
			return false, false
		}
		m.floor, m.step, m.asked = there.Clone(), limit.Adopt, false
		return false, false
	}
	_, err := here.Enter(now, move)
	switch {
	case errors.Is(err, limit.ErrFloorWanted):
		m.asked = true
		return false, false
	case errors.As(err, &moved):
		*m = mover{version: moved.Version}
		return false, false
	}
	if m.step == limit.Adopt {
		here.Join(policy, now, &m.floor)
	}
	v := here.Take(policy, now, 1)
	*m = mover{version: m.version}
	return v.Allowed, !v.Allowed
}

// TestHandOverIsExact is promise P10 in pure form: processes that act under different versions, see new ones at
// different times, go back, and die between two steps never admit more than Max in a window, and lose nothing of it.
func TestHandOverIsExact(t *testing.T) {
	const most = 12
	for name, l := range map[string]limit.Limit{
		"fixed": limit.Fixed(most, time.Minute), "aligned": limit.Fixed(most, time.Minute).Aligned(),
		"sliding": limit.Sliding(most, time.Minute, time.Second), "bucket": limit.TokenBucket(1, 9*time.Hour, most),
	} {
		t.Run(name, func(t *testing.T) {
			policy, moves := policyOf(l), 0
			for seed := range uint64(3000) {
				r := rand.New(rand.NewPCG(seed, 1))
				var places [2]limit.State
				movers := make([]mover, 2+r.IntN(4))
				for i := range movers {
					movers[i].version = 2 + r.Int64N(2)
				}
				newest, admitted, denied := int64(3), 0, 0
				now := at(0)
				for turns := 0; denied < 3; turns++ {
					if turns == 10_000 {
						t.Fatalf("seed %d: no progress: %s | %s", seed, places[0].String(), places[1].String())
					}
					now.Micros += r.Int64N(100)
					m := &movers[r.IntN(len(movers))]
					if r.IntN(12) == 0 && turns < 200 { // a process sees a newer version, or dies and begins again
						newest += r.Int64N(2)
						*m = mover{version: max(m.version, newest-r.Int64N(2))}
					}
					before := m.version
					yes, no := m.turn(&places, policy, now)
					if yes {
						admitted++
					}
					if no {
						denied++
					}
					if m.version != before {
						moves++
					}
				}
				if admitted != most {
					t.Fatalf("seed %d: admitted %d of %d: %s | %s", seed, admitted, most, places[0].String(), places[1].String())
				}
			}
			if moves == 0 {
				t.Error("nobody met a seal")
			}
		})
	}
}
