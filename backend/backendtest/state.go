package backendtest

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// What follows is about what is remembered: peeks, refunds, resets, loads, seeds and floors. Parts for an optional
// interface do nothing for a backend without it; Require is what fails then.

// eachAlgorithm runs a subtest for each algorithm on a policy and a key of its own.
func (s *subject) eachAlgorithm(t *testing.T, max int64, run func(*testing.T, *mirror)) {
	for _, l := range everyAlgorithm(max, time.Hour) {
		t.Run(l.name, func(t *testing.T) {
			s.clock.set(0)
			m := s.mirror("alice", l.Limit)
			m.policy.Name = l.name
			run(t, m)
		})
	}
}

func testPeek(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Peeker); !ok {
		return
	}
	s.clock.set(0)
	fresh := s.mirror("alice", limit.Fixed(4, time.Hour), limit.Sliding(5, time.Hour, time.Minute), limit.TokenBucket(6, time.Hour, 6))
	for range 3 { // a key without a window: the quota, and the reset that a take would choose
		v := fresh.peek(t, 4)
		if got := say(&v.Verdict); got != "ok 4@1h0m0s 5@1h0m0s 6@10m0s" {
			t.Errorf("an unknown key: %s", got)
		}
		s.clock.step(0)
	}
	if l, ok := s.Backend.(backend.Loader); ok {
		if snapshot, err := l.Load(context.Background(), fresh.request(1, nil)); err != nil || !snapshot.State.Empty() {
			t.Errorf("peeks have stored %q, %v", snapshot.State.String(), err)
		}
	}
	s.eachAlgorithm(t, 5, func(t *testing.T, m *mirror) {
		m.take(t, 3)
		for range 3 {
			if v := m.peek(t, 2); !v.Allowed {
				t.Errorf("2 of 5 are left, but a peek denies: %s", say(&v.Verdict))
			}
			if v := m.peek(t, 3); v.Allowed {
				t.Errorf("2 of 5 are left, but a peek admits 3: %s", say(&v.Verdict))
			}
		}
		if v := m.take(t, 2); !v.Allowed && s.withheld == 0 {
			t.Errorf("peeks have used quota up: %s", say(&v.Verdict))
		}
		m.peek(t, 1)
		m.compareLoad(t)
	})
}

func testRefund(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Refunder); !ok {
		return
	}
	s.clock.set(0)
	m := s.mirror("bob", limit.Fixed(10, time.Hour), limit.Sliding(10, time.Hour, time.Minute), limit.TokenBucket(10, time.Hour, 10))
	first := m.charge(t, 6)
	m.refund(t, first, 4) // a part
	m.play(t, step{0, 1, "ok 7@1h0m0s 7@1h0m0s 7@18m0s"}, step{0, 8, "no 7@1h0m0s+1h0m0s 7@1h0m0s+1h0m0s 7@18m0s+6m0s"})
	second := m.charge(t, 7)
	for _, amount := range []int64{100, 0, -1, -1 << 63} { // more than was charged is what was charged
		m.refund(t, second, amount)
	}
	m.play(t, step{0, 8, "no 7@1h0m0s+1h0m0s 7@1h0m0s+1h0m0s 7@18m0s+6m0s"}, step{0, 7, "ok 0@1h0m0s 0@1h0m0s 0@1h0m0s"})
	m.refund(t, state.Receipt{}, 5)
	m.refund(t, state.Receipt{Cost: 5}, 5) // of no take
	denied := m.take(t, 1)
	m.refund(t, denied.Receipt(), 1)
	m.play(t, step{0, 1, "no 0@1h0m0s+1h0m0s 0@1h0m0s+1h0m0s 0@1h0m0s+6m0s"})

	s.eachAlgorithm(t, 10, func(t *testing.T, m *mirror) {
		a := m.charge(t, 4)
		b := m.charge(t, 5)
		m.refund(t, b, 2)
		m.compareLoad(t)
		m.refund(t, a, 4)
		m.compareLoad(t)
		v := m.take(t, 7)
		if m.policy.Limits[0].Algorithm != limit.Bucket && s.withheld == 0 && (!v.Allowed || v.Binding().Remaining != 0) {
			t.Errorf("9 taken, 6 given back, 7 more of 10: %s", say(&v.Verdict))
		}
		for range 5 { // a receipt used again may give back another's charge, but no more than is charged
			m.refund(t, a, 4)
			m.refund(t, b, 5)
			m.compareLoad(t)
		}
		if v := m.take(t, 10); v.Binding().Remaining != 0 && v.Allowed {
			t.Errorf("refunds made %d of a quota of 10", 10+v.Binding().Remaining)
		}

		s.clock.set(2 * time.Hour)
		old := m.charge(t, 6)
		end := 5 * time.Hour // all of them are over
		s.clock.set(end)
		m.refund(t, old, 6)
		m.take(t, 9)
		m.refund(t, old, 6) // the window that it names is over, and another runs
		m.compareLoad(t)
		if v := m.take(t, 2); v.Allowed {
			t.Errorf("a refund for a window that is over gave something back: %s", say(&v.Verdict))
		}
		m.compareLoad(t)
		if s.withheld > 0 {
			return
		}
		s.clock.set(2 * end)
		raised := m.charge(t, 6)
		raised.Cost = math.MaxInt64
		m.refund(t, raised, math.MaxInt64)
		m.compareLoad(t)
		m.take(t, 10)
		if v := m.take(t, 1); v.Allowed {
			t.Errorf("a receipt whose cost was raised gave more back than was charged: %s", say(&v.Verdict))
		}
	})

	stranger := s.mirror("stranger", limit.Fixed(10, time.Hour))
	stranger.refund(t, first, 6) // of a key that nothing is known of
	stranger.compareLoad(t)
	stranger.play(t, step{5 * time.Hour, 10, "ok 0@6h0m0s"}, step{5 * time.Hour, 1, "no 0@6h0m0s+1h0m0s"})
}

// testBucketLives lets requests that have read the clock before the bucket was full, one with a floor and one with a
// receipt from then, come after a take that has read it later.
func testBucketLives(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Refunder); !ok || s.withheld > 0 {
		return
	}
	s.clock.set(0)
	m := s.mirror("alice", limit.TokenBucket(10, time.Hour, 10))
	var old state.Receipt
	for range 5 {
		old = m.charge(t, 10)
		m.refund(t, old, 10)
	}
	again := m.charge(t, 10)
	floor := m.model.Clone()
	s.clock.set(time.Hour) // full
	if v := m.take(t, 10); !v.Allowed {
		t.Fatalf("a full bucket denies: %s", say(&v.Verdict))
	}
	for _, read := range []time.Duration{time.Hour - time.Microsecond, 59 * time.Minute, 30 * time.Minute, 0} {
		s.clock.set(read)
		m.refund(t, old, 10)
		m.refund(t, again, 10)
		if v := m.takeFloor(t, 1, &floor); v.Allowed {
			t.Errorf("10 of 10 were taken at 1h, and then one at %s: %s", read, say(&v.Verdict))
		}
		m.compareLoad(t)
	}
	s.clock.set(time.Hour)
	if v := m.takeFloor(t, 1, &floor); v.Allowed {
		t.Errorf("11 of 10 taken at 1h: %s", say(&v.Verdict))
	}
}

func testReset(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Resetter); !ok {
		return
	}
	s.eachAlgorithm(t, 10, func(t *testing.T, m *mirror) {
		m.reset(t) // nothing is known
		m.compareLoad(t)
		v := m.take(t, 10)
		full := m.model.Clone()
		m.reset(t)
		m.compareLoad(t)
		m.reset(t)
		m.compareLoad(t)
		s.clock.step(time.Minute)
		again := m.takeFloor(t, 10, &full) // what an old copy knows can't undo it
		if !again.Allowed {
			t.Errorf("denied after a reset: %s", say(&again.Verdict))
		}
		if l := m.policy.Limits[0]; l.Algorithm == limit.FixedWindow && !again.Binding().ResetAt.Equal(v.Binding().ResetAt) {
			t.Errorf("a reset moved the end of the window from %s to %s", v.Binding().ResetAt, again.Binding().ResetAt)
		}
		if v := m.take(t, 1); v.Allowed {
			t.Errorf("admitted above the quota after a reset: %s", say(&v.Verdict))
		}
	})
	s.clock.set(0)
	one, two := s.mirror("one", limit.Fixed(2, time.Hour)), s.mirror("two", limit.Fixed(2, time.Hour))
	one.take(t, 2)
	two.take(t, 2)
	one.reset(t)
	two.play(t, step{0, 1, "no 0@1h0m0s+1h0m0s"})
	one.play(t, step{0, 1, "ok 1@1h0m0s"})
}

// testGrant: a grant gives back up to extra of what is used, at once and for good, and leaves receipts and windows as they are.
func testGrant(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Granter); !ok {
		return
	}
	s.eachAlgorithm(t, 10, func(t *testing.T, m *mirror) {
		m.grant(t, 3) // nothing is known
		m.compareLoad(t)
		v := m.take(t, 10)
		receipt := v.Receipt()
		full := m.model.Clone()
		m.grant(t, 3)
		m.compareLoad(t)
		if v := m.takeFloor(t, 4, &full); v.Allowed { // what an old copy knows can't undo it
			t.Errorf("3 were granted, 4 admitted: %s", say(&v.Verdict))
		}
		v = m.takeFloor(t, 3, &full)
		if !v.Allowed {
			t.Errorf("denied after a grant: %s", say(&v.Verdict))
		}
		if v := m.take(t, 1); v.Allowed {
			t.Errorf("3 were granted, 4 admitted: %s", say(&v.Verdict))
		}
		m.refund(t, receipt, 10)
		m.compareLoad(t)
		m.grant(t, limit.MaxCount) // no more than is used
		m.compareLoad(t)
		if v := m.take(t, 10); !v.Allowed {
			t.Errorf("denied after everything was given back: %s", say(&v.Verdict))
		}
		if v := m.take(t, 1); v.Allowed {
			t.Errorf("admitted above the quota after a grant: %s", say(&v.Verdict))
		}
		s.clock.set(10 * time.Hour)
		m.grant(t, 3) // what was used is over
		if v := m.take(t, 10); !v.Allowed {
			t.Errorf("a grant after the end of the window: %s", say(&v.Verdict))
		}
		m.compareLoad(t)
	})
}

func testLoad(t *testing.T, s *subject) {
	loader, ok := s.Backend.(backend.Loader)
	if !ok || s.withheld > 0 {
		return
	}
	s.eachAlgorithm(t, 10, func(t *testing.T, m *mirror) {
		snapshot, err := loader.Load(context.Background(), m.request(1, nil))
		if err != nil || !snapshot.State.Empty() {
			t.Fatalf("a key that nothing is known of: %q, %v", snapshot.State.String(), err)
		}
		for i := range 20 {
			s.clock.set(time.Duration(i) * 4 * time.Minute)
			m.take(t, int64(1+i%3))
			m.compareLoad(t)
		}
		if snapshot, err = loader.Load(context.Background(), m.request(1, nil)); err != nil {
			t.Fatal(err)
		}
		mine := snapshot.State.String()
		snapshot.State.Reset(m.policy, m.at()) // it is the caller's own
		if again, err := loader.Load(context.Background(), m.request(1, nil)); err != nil || again.State.String() != mine {
			t.Errorf("a change of a loaded state changed what is stored from %q to %q, %v", mine, again.State.String(), err)
		}
	})
}

func testSeed(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Seeder); !ok {
		return
	}
	s.eachAlgorithm(t, 10, func(t *testing.T, m *mirror) {
		m.seed(t, state.State{})
		m.compareLoad(t)
		other := m.model.Clone()
		other.Take(m.policy, m.at(), 6)
		m.seed(t, other)
		m.compareLoad(t)
		if v := m.take(t, 5); v.Allowed {
			t.Errorf("6 of 10 were seeded, 5 more admitted: %s", say(&v.Verdict))
		}
		if v := m.take(t, 3); (!v.Allowed || v.Binding().Remaining != 1) && s.withheld == 0 {
			t.Errorf("6 of 10 were seeded, 3 more: %s", say(&v.Verdict))
		}
		m.seed(t, other) // older than what is stored
		m.compareLoad(t)
		if v := m.take(t, 1); !v.Allowed && s.withheld == 0 {
			t.Errorf("seeded twice, charged twice: %s", say(&v.Verdict))
		}
		s.clock.set(10 * time.Hour)
		m.seed(t, other) // what it knows is over
		m.compareLoad(t)
		if v := m.take(t, 10); !v.Allowed && s.withheld == 0 {
			t.Errorf("a state that is over counts: %s", say(&v.Verdict))
		}
		m.seed(t, state.State{})
		m.compareLoad(t)
	})
}

func testFloor(t *testing.T, s *subject) {
	s.eachAlgorithm(t, 10, func(t *testing.T, m *mirror) {
		empty := state.State{}
		m.takeFloor(t, 2, &empty)
		older := m.model.Clone()
		m.takeFloor(t, 2, &older) // its own last state
		m.takeFloor(t, 1, &older) // one that it has outgrown
		m.compareLoad(t)
		if v := m.takeFloor(t, 6, &older); v.Allowed {
			t.Errorf("admitted 6 with 5 used of 10: %s", say(&v.Verdict))
		}
		m.compareLoad(t)

		lost := m.model.Clone() // what another holder went on with: 4 more
		s.clock.step(time.Second)
		lost.Take(m.policy, m.at(), 4)
		if v := m.takeFloor(t, 2, &lost); v.Allowed {
			t.Errorf("admitted 2 though the floor knows of 9 used of 10: %s", say(&v.Verdict))
		}
		if v := m.take(t, 2); v.Allowed { // the denial has kept what the floor knew
			t.Errorf("admitted 2 though an earlier floor knew of 9 used of 10: %s", say(&v.Verdict))
		}
		m.compareLoad(t)
		if v := m.takeFloor(t, 1, &lost); (!v.Allowed || v.Binding().Remaining != 0) && s.withheld == 0 {
			t.Errorf("1 more of 10 with 9 used: %s", say(&v.Verdict))
		}
		m.compareLoad(t)
	})
	s.eachAlgorithm(t, 10, func(t *testing.T, m *mirror) {
		m.policy.Name += "-over"
		old := state.State{}
		old.Take(m.policy, m.at(), 10)
		s.clock.set(3 * time.Hour)
		if v := m.takeFloor(t, 10, &old); !v.Allowed && s.withheld == 0 {
			t.Errorf("a floor that is over counts: %s", say(&v.Verdict))
		}
		foreign := state.State{}
		foreign.Take(&limit.Policy{Limits: []limit.Limit{limit.Fixed(9, 7*time.Hour)}}, m.at(), 9)
		s.clock.set(6 * time.Hour)
		m.takeFloor(t, 3, &foreign) // it knows nothing of this policy's limits
		m.compareLoad(t)
	})
	s.clock.set(0)
	// A floor may know one limit of the policy and not the others; and a later window wins over an earlier one.
	minute, hour := limit.Fixed(5, time.Minute), limit.Sliding(9, time.Hour, time.Minute)
	m := s.mirror("partly", minute, hour)
	m.take(t, 1)
	half := state.State{}
	s.clock.set(30 * time.Second)
	half.Take(&limit.Policy{Limits: []limit.Limit{minute}}, m.at(), 4)
	v := m.takeFloor(t, 2, &half)
	if got, want := say(&v.Verdict), "no 1@1m30s+1m0s 8@1h0m0s"; got != want && s.withheld == 0 {
		t.Errorf("with a floor of one limit: %s, want %s", got, want)
	}
	m.compareLoad(t)
	m.play(t, step{30 * time.Second, 1, "ok 0@1m30s 7@1h0m0s"})
}

// testFloorKept: floors of copies that went apart are joined whatever their order, and the join survives.
func testFloorKept(t *testing.T, s *subject) {
	s.eachAlgorithm(t, 100, func(t *testing.T, m *mirror) {
		m.take(t, 10)
		copies := make([]state.State, 3)
		for i := range copies {
			copies[i] = m.model.Clone()
			for j := range 3 {
				at := m.at()
				at.Micros += int64(i*j) * 70_000_000
				copies[i].Take(m.policy, at, int64(5+7*i))
			}
		}
		s.clock.set(5 * time.Minute)
		for _, i := range []int{2, 0, 1, 0, 2, 2, 1} {
			m.takeFloor(t, 1, &copies[i])
			m.compareLoad(t)
		}
		if !slices.ContainsFunc(copies, func(c state.State) bool { return !c.Equal(&m.model) }) {
			t.Error("the copies don't differ")
		}
		m.takeFloor(t, 100, &copies[0])
		m.compareLoad(t)
	})
}
