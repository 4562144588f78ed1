package backendtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// testHandOver: a key that is sealed here answers nobody until a newer version brings it back, with what was counted
// elsewhere meanwhile; a key that comes here waits for its floor.
func testHandOver(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Sealer); !ok {
		return
	}
	s.eachAlgorithm(t, 5, func(t *testing.T, m *mirror) {
		under := func(version int64, step limit.Step) limit.Move {
			return limit.Move{Version: version, Step: step, Hold: 10 * time.Minute}
		}
		receipt := m.charge(t, 2)
		frozen := m.seal(t, under(2, limit.Ask), "")
		m.compareStates(t, "Seal", frozen)
		m.seal(t, under(2, limit.Ask), "") // again: the mover may have died before it came to the new place
		m.seal(t, under(1, limit.Ask), "moved under 2")
		for _, move := range []limit.Move{{}, under(1, limit.Ask), under(2, limit.Adopt), under(2, limit.Alone)} {
			m.refused(t, move, receipt, "moved under 2")
		}
		if _, ok := s.Backend.(backend.Peeker); ok {
			m.peek(t, 1) // what is frozen may be looked at
		}
		m.compareLoad(t)

		m.refused(t, under(3, limit.Ask), receipt, "floor wanted")
		elsewhere := frozen.Clone() // where 2 more are taken
		elsewhere.Take(m.policy, m.at(), 2)
		m.move(t, under(3, limit.Adopt), &elsewhere, 2) // denied, and adopted all the same
		m.move(t, under(3, limit.Ask), nil, 1)
		m.move(t, under(1, limit.Ask), nil, 1) // whoever is behind, too
		m.move(t, limit.Move{}, nil, 1)
		m.seal(t, under(3, limit.Ask), "moved under 3")
		m.seal(t, under(2, limit.Ask), "moved under 3")
		if refunder, ok := s.Backend.(backend.Refunder); ok {
			req := m.request(0, nil)
			req.Move = under(3, limit.Ask)
			if err := refunder.Refund(context.Background(), req, receipt, 2); err != nil {
				t.Errorf("Refund where the key is: %v", err)
			}
			m.model.Refund(m.at(), &receipt, 2)
		}
		m.compareLoad(t)
		m.move(t, under(4, limit.Alone), nil, 1)

		m.seal(t, under(5, limit.Ask), "")
		m.clock.step(10*time.Minute - time.Microsecond)
		m.refused(t, limit.Move{}, receipt, "moved under 5")
		m.clock.step(2 * time.Millisecond) // a stamp is kept for its Hold, rounded up to a millisecond
		m.move(t, limit.Move{}, nil, 1)
		m.compareLoad(t)
	})
	m := s.mirror("nobody has asked for it", limit.Fixed(5, time.Hour))
	m.seal(t, limit.Move{Version: 2, Hold: time.Minute}, "")
	m.refused(t, limit.Move{}, limit.Receipt{}, "moved under 2")
	m.seal(t, limit.Move{Version: 3, Hold: time.Minute}, "")
}

// seal calls Seal, which must refuse as said.
func (m *mirror) seal(t *testing.T, move limit.Move, refusal string) limit.State {
	t.Helper()
	req := m.request(0, nil)
	req.Move = move
	snapshot, err := m.Backend.(backend.Sealer).Seal(context.Background(), req)
	if got := sayRefusal(err); got != refusal {
		t.Fatalf("Seal under version %d: %q, want %q", move.Version, got, refusal)
	}
	if _, err := m.model.Seal(m.at(), move); sayRefusal(err) != refusal {
		t.Fatalf("package limit seals with %v", err)
	}
	if now := m.clock.micros.Load(); refusal == "" && (snapshot.Now != now || snapshot.Source == backend.Unknown) {
		t.Errorf("sealed at %d us by %s, the clock says %d", snapshot.Now, snapshot.Source, now)
	}
	return snapshot.State
}

// move is a take under a move that is let in.
func (m *mirror) move(t *testing.T, move limit.Move, floor *limit.State, cost int64) {
	t.Helper()
	if _, err := m.model.Enter(m.at(), move); err != nil {
		t.Fatalf("package limit refuses with %v", err)
	}
	m.moving = move
	defer func() { m.moving = limit.Move{} }()
	m.takeFloor(t, cost, floor)
}

// refused checks that everything that charges or gives back is refused under a move, and changes nothing.
func (m *mirror) refused(t *testing.T, move limit.Move, receipt limit.Receipt, refusal string) {
	t.Helper()
	ctx, req := context.Background(), m.request(1, nil)
	req.Move = move
	check := func(op string, err error) {
		t.Helper()
		if got := sayRefusal(err); got != refusal {
			t.Errorf("%s under %+v: %q, want %q", op, move, got, refusal)
		}
	}
	_, err := m.Take(ctx, req)
	check("Take", err)
	if seeder, ok := m.Backend.(backend.Seeder); ok {
		check("Seed", seeder.Seed(ctx, req, limit.State{}))
	}
	if move.Step != limit.Ask { // the others have no floor to adopt with
		return
	}
	if refunder, ok := m.Backend.(backend.Refunder); ok && receipt.Cost > 0 {
		check("Refund", refunder.Refund(ctx, req, receipt, 1))
	}
	if resetter, ok := m.Backend.(backend.Resetter); ok {
		check("Reset", resetter.Reset(ctx, req))
	}
	m.compareLoad(t)
}

func sayRefusal(err error) string {
	var moved *limit.MovedError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, limit.ErrFloorWanted):
		return "floor wanted"
	case errors.As(err, &moved):
		return fmt.Sprintf("moved under %d", moved.Version)
	}
	return err.Error()
}
