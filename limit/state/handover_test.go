package state_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestEnter is every case of a request that meets a fence.
func TestEnter(t *testing.T) {
	type fence struct{ adopted, sealed int64 }
	wanted := "wanted"
	moved := func(version int64) string { return fmt.Sprintf("moved under %d", version) }
	for _, test := range []struct {
		has     fence
		version int64
		step    state.Step
		want    string
		leaves  fence
	}{
		{fence{0, 0}, 0, state.Ask, "", fence{0, 0}},
		{fence{0, 0}, 3, state.Ask, wanted, fence{0, 0}},
		{fence{0, 0}, 3, state.WithoutFloor, "", fence{0, 0}},
		{fence{0, 0}, 3, state.Adopt, "", fence{3, 0}},
		{fence{2, 0}, 3, state.Ask, wanted, fence{2, 0}},
		{fence{3, 0}, 3, state.Ask, "", fence{3, 0}},
		{fence{4, 0}, 3, state.Adopt, "", fence{4, 0}},
		{fence{4, 0}, 0, state.Ask, "", fence{4, 0}},
		{fence{0, 4}, 0, state.Ask, moved(4), fence{0, 4}},
		{fence{0, 4}, 3, state.Ask, moved(4), fence{0, 4}},
		{fence{0, 4}, 3, state.Adopt, moved(4), fence{0, 4}},
		{fence{0, 4}, 3, state.WithoutFloor, moved(4), fence{0, 4}},
		{fence{0, 4}, 4, state.Adopt, moved(4), fence{0, 4}},
		{fence{0, 4}, 5, state.Ask, wanted, fence{0, 4}},
		{fence{0, 4}, 5, state.WithoutFloor, "", fence{0, 4}},
		{fence{0, 4}, 5, state.Adopt, "", fence{5, 4}},
		{fence{3, 4}, 3, state.Ask, moved(4), fence{3, 4}},
		{fence{5, 4}, 3, state.Ask, "", fence{5, 4}},
		{fence{5, 4}, 0, state.Ask, "", fence{5, 4}},
		{fence{5, 4}, 6, state.Ask, wanted, fence{5, 4}},
	} {
		st := fenceedState(t, test.has.adopted, test.has.sealed)
		changed, err := st.Enter(at(0), state.Move{Version: test.version, Step: test.step, TTL: time.Minute})
		adopted, sealed := st.Fence(state.Migration, at(0))
		if got := sayRefusal(err); got != test.want || (fence{adopted, sealed}) != test.leaves || changed != (test.has != test.leaves) {
			t.Errorf("%+v, version %d, step %d: %q, leaves %d, %d, changed %t; want %q, %+v",
				test.has, test.version, test.step, got, adopted, sealed, changed, test.want, test.leaves)
		}
	}
}

// TestSeal is every case of a seal that meets a fence.
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
		st := fenceedState(t, test.adopted, test.sealed)
		changed, err := st.Seal(at(0), state.Move{Version: test.version, TTL: time.Minute})
		adopted, sealed := st.Fence(state.Migration, at(0))
		if got := sayRefusal(err); got != test.want || adopted != test.adopted || sealed != test.leaves || changed != (sealed != test.sealed) {
			t.Errorf("seal %+v: %q, leaves %d, %d, changed %t", test, got, adopted, sealed, changed)
		}
	}
}

// TestFenceEnds: a fence is kept for as long as the longest TTL of its makers, and keeps the state that long.
func TestFenceEnds(t *testing.T) {
	var st state.State
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
		if _, err := st.Seal(at(step.after), state.Move{Version: step.version, TTL: step.hold}); err != nil {
			t.Fatal(err)
		}
		if want := at(step.until).Micros; st.Until() != want {
			t.Errorf("version %d: kept until %d, want %d", step.version, st.Until(), want)
		}
	}
	end := state.At{Micros: st.Until()}
	if _, err := st.Enter(state.At{Micros: end.Micros - 1}, state.Move{}); sayRefusal(err) != "moved under 4" {
		t.Errorf("just before the end: %v", err)
	}
	if _, err := st.Enter(end, state.Move{}); err != nil {
		t.Errorf("at the end: %v", err)
	}
	if _, err := st.Seal(end, state.Move{Version: 1, TTL: time.Second}); err != nil { // the old versions are forgotten
		t.Errorf("a seal after the end: %v", err)
	}
	if adopted, sealed := st.Fence(state.Migration, end); adopted != 0 || sealed != 1 {
		t.Errorf("after the end: adopted %d, sealed %d", adopted, sealed)
	}
}

// TestUnfence: the key's counts stay, and copies are left alone.
func TestUnfence(t *testing.T) {
	policy := policyOf(limit.PerMinute(5))
	st := fenceedState(t, 1, 2)
	st.Take(policy, at(0), 1)
	other := st
	st.Unfence(state.Migration)
	if _, sealed := other.Fence(state.Migration, at(0)); sealed != 2 {
		t.Errorf("a copy by assignment lost the fence")
	}
	if adopted, sealed := st.Fence(state.Migration, at(0)); adopted != 0 || sealed != 0 || st.String() != "f1m:1767247260000,1;" {
		t.Errorf("left %q", st.String())
	}
	st.Unfence(state.Migration)
}

func TestMoveValidate(t *testing.T) {
	for _, m := range []state.Move{
		{}, {Version: 1}, {Version: limit.MaxCount, Step: state.WithoutFloor, TTL: 2 * limit.MaxWindow},
	} {
		if err := m.Validate(); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	for _, m := range []state.Move{
		{Version: -1}, {Version: limit.MaxCount + 1}, {Step: state.WithoutFloor + 1}, {TTL: -1}, {TTL: 2*limit.MaxWindow + 1},
	} {
		var bad *limit.Error
		if err := m.Validate(); !errors.As(err, &bad) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

func fenceedState(t *testing.T, adopted, sealed int64) state.State {
	t.Helper()
	if adopted == 0 && sealed == 0 {
		return state.State{}
	}
	st, err := state.ParseState(fmt.Sprintf("m:%d,%d,%d;", at(time.Minute).Micros/1000, adopted, sealed))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func sayRefusal(err error) string {
	var moved *state.MovedError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, state.ErrFloorWanted):
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
	step    state.Step
	floor   state.State
	asked   bool // the place wants a floor: the other one is to be sealed next
}

// turn makes the mover's next step. It reports whether a request was admitted, and whether it was denied.
func (m *mover) turn(places *[2]state.State, policy *limit.Policy, now state.At) (admitted, denied bool) {
	move := state.Move{Version: m.version, Step: m.step, TTL: time.Hour}
	here, there := &places[m.version%2], &places[1-m.version%2]
	var moved *state.MovedError
	if m.asked {
		_, err := there.Seal(now, move)
		if errors.As(err, &moved) {
			*m = mover{version: moved.Version}
			return false, false
		}
		m.floor, m.step, m.asked = there.Clone(), state.Adopt, false
		return false, false
	}
	_, err := here.Enter(now, move)
	switch {
	case errors.Is(err, state.ErrFloorWanted):
		m.asked = true
		return false, false
	case errors.As(err, &moved):
		*m = mover{version: moved.Version}
		return false, false
	}
	if m.step == state.Adopt {
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
				var places [2]state.State
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
