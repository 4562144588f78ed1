package backendtest

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// spend makes a charge, which must give what package limit/state says.
func (m *mirror) spend(t reporter, mark state.Mark, cost int64, floor *state.State) backend.Result {
	t.Helper()
	var before state.State
	if floor != nil {
		before = floor.Clone()
	}
	var got backend.Result
	err := m.again(func() (err error) {
		got, err = m.Backend.(backend.Charger).Charge(context.Background(), m.request(cost, floor), mark)
		return err
	})
	if err != nil {
		t.Fatalf("Charge: %v", err)
	}
	if floor != nil && !floor.Equal(&before) {
		t.Fatalf("Charge changed the floor from %s to %s", before.String(), floor.String())
	}
	req := m.request(cost, floor)
	m.checkResult(t, &req, &got)
	if _, err := m.model.Arrive(m.policy, m.at(), m.moving, floor, true); err != nil {
		t.Fatalf("package limit/state refuses with %v", err)
	}
	want := m.model.Charge(m.policy, m.at(), mark, cost)
	if m.withheld == 0 {
		m.compare(t, "Charge", &got.Verdict, &want)
		m.compareReceipts(t, got.Receipt(), want.Receipt())
		if !got.State.Empty() {
			m.compareStates(t, "Charge's result", got.State)
		}
		return got
	}
	if !got.Allowed || got.Receipt().Cost != want.Receipt().Cost {
		t.Errorf("a charge of %d: allowed %t, a receipt for %d", cost, got.Allowed, got.Receipt().Cost)
	}
	m.receipts = append(m.receipts, [2]state.Receipt{got.Receipt(), want.Receipt()})
	return got
}

// testCharge: what was spent counts in full, whether or not there is room; later takes wait; it can be given back.
func testCharge(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Charger); !ok {
		return
	}
	s.eachAlgorithm(t, 10, func(t *testing.T, m *mirror) {
		m.spend(t, state.Mark{}, 3, nil) // of a key that nothing is known of
		m.compareLoad(t)
		receipt := m.charge(t, 4)
		more := m.spend(t, receipt.Mark(), 30, nil)
		if left := more.Binding().Remaining; left != 0 {
			t.Errorf("%d left of 10 after 37", left)
		}
		m.compareLoad(t)
		if v := m.take(t, 1); v.Allowed && s.withheld == 0 {
			t.Errorf("37 of 10 are used, and a take is admitted: %s", say(&v.Verdict))
		}
		if _, ok := s.Backend.(backend.Refunder); ok {
			m.refund(t, more.Receipt(), 30)
			m.compareLoad(t)
			if v := m.take(t, 3); !v.Allowed && s.withheld == 0 {
				t.Errorf("7 of 10 are used, and 3 are denied: %s", say(&v.Verdict))
			}
		}
		m.spend(t, state.Mark{}, 1000, nil)
		floor := m.model.Clone()
		floor.Charge(m.policy, m.at(), state.Mark{}, 1)
		m.spend(t, state.Mark{}, 1, &floor)
		m.compareLoad(t)
		s.clock.step(time.Minute)
		if v := m.take(t, 1); v.Allowed && s.withheld == 0 {
			t.Errorf("admitted after a charge far above: %s", say(&v.Verdict))
		}
		if _, ok := s.Backend.(backend.Resetter); ok {
			m.reset(t)
			m.compareLoad(t)
			if v := m.take(t, 10); !v.Allowed {
				t.Errorf("denied after a reset: %s", say(&v.Verdict))
			}
		}
		s.clock.step(200 * time.Hour)
		if v := m.take(t, 10); !v.Allowed {
			t.Errorf("denied long after: %s", say(&v.Verdict))
		}
	})
	huge := s.mirror("huge", limit.Fixed(10, time.Hour), limit.Sliding(10, time.Hour, time.Minute), limit.TokenBucket(10, time.Hour, 10))
	for range 3 {
		huge.spend(t, state.Mark{}, limit.MaxCount, nil)
		huge.compareLoad(t)
	}
	huge.take(t, 1)
}

// testChargeMarks: a charge counts where its mark says, of each limit by itself, and nothing where that is over.
func testChargeMarks(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Charger); !ok {
		return
	}
	s.clock.set(30 * time.Second)
	m := s.mirror("alice", limit.Fixed(10, time.Minute).Aligned(), limit.Fixed(20, time.Hour), limit.Fixed(30, time.Hour).Staggered(),
		limit.Sliding(40, time.Hour, time.Minute))
	receipt := m.charge(t, 5)
	mark, ok := state.MarkAt(m.policy, m.at())
	if ok {
		t.Error("the window of a first request has a mark")
	}
	for _, at := range []time.Duration{40 * time.Second, 90 * time.Second, 20 * time.Minute, time.Hour, 2 * time.Hour} {
		s.clock.set(at)
		m.spend(t, receipt.Mark(), 2, nil)
		m.compareLoad(t)
		m.spend(t, mark, 1, nil)
		m.compareLoad(t)
		m.take(t, 1)
	}
	bucket := s.mirror("carol", limit.TokenBucket(10, time.Hour, 50)) // that is not full meanwhile: not every place remembers one that was
	for _, step := range [][2]time.Duration{{1, 1}, {2, 1}, {4, 3}, {5, 5}, {5, 9}, {6, 1}} {
		s.clock.set(step[0] * time.Minute)
		now := bucket.at()
		now.Micros += int64(step[1]-step[0]) * time.Minute.Microseconds()
		mark, _ := state.MarkAt(bucket.policy, now)
		bucket.spend(t, mark, 2, nil)
		bucket.compareLoad(t)
		bucket.take(t, 1)
	}
	older := s.mirror("bob", limit.Sliding(40, 10*time.Minute, time.Minute), limit.Fixed(40, 10*time.Minute).Aligned())
	for _, step := range [][2]time.Duration{{5, 5}, {5, 3}, {6, 1}, {8, 7}, {12, 3}, {12, 2}, {13, 20}, {30, 21}, {30, 20}} {
		s.clock.set(step[0] * time.Minute)
		now := older.at()
		now.Micros += int64(step[1]-step[0]) * time.Minute.Microseconds() // also of a clock that is ahead
		mark, _ := state.MarkAt(older.policy, now)
		older.spend(t, mark, 1, nil)
		older.compareLoad(t)
		older.take(t, 1)
	}
}
