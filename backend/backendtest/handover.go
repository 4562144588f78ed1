package backendtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// testHandOver: a key that is sealed here rejects requests until a newer version brings it back, with what was counted
// elsewhere meanwhile; a key that comes here waits for its floor.
func testHandOver(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Sealer); !ok {
		return
	}
	for _, mover := range []state.Mover{state.Migration, state.Topology} {
		if mover != state.Topology || !s.routes {
			t.Run(mover.String(), func(t *testing.T) { testHandOverBy(t, s, mover) })
		}
	}
}

func testHandOverBy(t *testing.T, s *subject, mover state.Mover) {
	s.eachAlgorithm(t, 5, func(t *testing.T, m *mirror) {
		m.policy = &limit.Policy{Name: m.policy.Name + "-" + mover.String(), Limits: m.policy.Limits}
		under := func(version int64, step state.Step) state.Move {
			return state.Move{Mover: mover, Version: version, Step: step, TTL: 10 * time.Minute}
		}
		moved := func(version int) string { return fmt.Sprintf("moved under %d of a %s", version, mover) }
		receipt := m.charge(t, 2)
		frozen := m.seal(t, under(2, state.Ask), "")
		m.compareStates(t, "Seal", frozen)
		m.seal(t, under(2, state.Ask), "") // again: the mover may have died before it came to the new place
		m.seal(t, under(1, state.Ask), moved(2))
		for _, move := range []state.Move{{}, under(1, state.Ask), under(2, state.Adopt), under(2, state.WithoutFloor)} {
			m.refused(t, move, receipt, moved(2))
		}
		m.peekFrozen(t)
		m.compareLoad(t)

		m.refused(t, under(3, state.Ask), receipt, "floor wanted")
		elsewhere := frozen.Clone() // where 2 more are taken
		elsewhere.Take(m.policy, m.at(), 2)
		m.move(t, under(3, state.Adopt), &elsewhere, 2) // denied, and adopted all the same
		m.move(t, under(3, state.Ask), nil, 1)
		m.move(t, under(1, state.Ask), nil, 1) // an older version, too
		m.move(t, state.Move{}, nil, 1)
		m.seal(t, under(3, state.Ask), moved(3))
		m.seal(t, under(2, state.Ask), moved(3))
		if refunder, ok := s.Backend.(backend.Refunder); ok {
			req := m.request(0, nil)
			req.Move = under(3, state.Ask)
			if err := refunder.Refund(context.Background(), req, receipt, 2); err != nil {
				t.Errorf("Refund where the key is: %v", err)
			}
			m.model.Refund(m.at(), &receipt, 2)
		}
		m.compareLoad(t)
		m.move(t, under(4, state.WithoutFloor), nil, 1)
		if _, ok := s.Backend.(backend.Charger); ok {
			m.moving = under(3, state.Ask)
			m.spend(t, state.Mark{}, 2, nil)
			m.moving = state.Move{}
		}

		m.seal(t, under(5, state.Ask), "")
		m.clock.step(10*time.Minute - time.Microsecond)
		m.refused(t, state.Move{}, receipt, moved(5))
		m.clock.step(2 * time.Millisecond) // a fence is kept for its TTL, rounded up to a millisecond
		m.move(t, state.Move{}, nil, 1)
		m.compareLoad(t)
	})
	m := s.mirror("not requested yet", limit.Fixed(5, time.Hour))
	m.policy.Name = mover.String()
	m.seal(t, state.Move{Mover: mover, Version: 2, TTL: time.Minute}, "")
	m.refused(t, state.Move{}, state.Receipt{}, fmt.Sprintf("moved under 2 of a %s", mover))
	m.seal(t, state.Move{Mover: mover, Version: 3, TTL: time.Minute}, "")
}

// peekFrozen peeks at a key that has left: what the place still has of it may be looked at, and is out of date.
func (m *mirror) peekFrozen(t *testing.T) {
	t.Helper()
	p, ok := m.subject.Backend.(backend.Peeker)
	if !ok {
		return
	}
	looked := m.model.Clone()
	want := looked.Peek(m.policy, m.at(), 1)
	for deadline := time.Now().Add(5 * time.Second); ; {
		got, err := p.Peek(context.Background(), m.request(1, nil))
		switch stale := got.Guarantee == backend.Bounded && state.IsRedirect(got.Cause); {
		case err == nil && stale:
			m.compare(t, "Peek", &got.Verdict, &want)
			return
		case err != nil, !m.lags, time.Now().After(deadline):
			t.Fatalf("Peek: %s because of %v, %v; want bounded, because the key has moved", got.Guarantee, got.Cause, err)
		}
	}
}

// testTwoMovers: a migration and a topology move the same key. Each has stamps of its own; what a topology brings from group
// to group keeps those of the migration.
func testTwoMovers(t *testing.T, s *subject) {
	if _, ok := s.Backend.(backend.Sealer); !ok || s.routes {
		return
	}
	under := func(mover state.Mover) func(int64, state.Step) state.Move {
		return func(version int64, step state.Step) state.Move {
			return state.Move{Mover: mover, Version: version, Step: step, TTL: 10 * time.Minute}
		}
	}
	migration, topology := under(state.Migration), under(state.Topology)
	s.eachAlgorithm(t, 5, func(t *testing.T, m *mirror) {
		receipt := m.charge(t, 1)
		// Frozen by a migration: a take under a topology is refused, a seed brings what another group held.
		m.seal(t, migration(4, state.Ask), "")
		for _, move := range []state.Move{{}, topology(1, state.Ask), topology(9, state.Adopt), topology(9, state.WithoutFloor)} {
			m.refused(t, move, receipt, "moved under 4 of a migration")
		}
		elsewhere := m.model.Clone()
		elsewhere.Take(m.policy, m.at(), 1)
		m.bring(t, topology(1, state.Adopt), elsewhere, "")
		m.refused(t, topology(1, state.Ask), receipt, "moved under 4 of a migration")
		// The migration brings the key back. Its versions and the topology's say nothing of each other.
		m.refused(t, migration(5, state.Ask), receipt, "floor wanted")
		m.move(t, migration(5, state.Adopt), &elsewhere, 1)
		m.move(t, topology(1, state.Ask), nil, 1)
		m.refused(t, topology(2, state.Ask), receipt, "floor wanted")

		// Left under a topology: only a newer topology is let in, and a migration finds nothing to seal.
		frozen := m.seal(t, topology(2, state.Ask), "")
		m.compareStates(t, "Seal", frozen)
		for _, move := range []state.Move{{}, migration(9, state.Ask), migration(9, state.Adopt), migration(9, state.WithoutFloor), topology(2, state.Adopt)} {
			m.refused(t, move, receipt, "moved under 2 of a topology")
		}
		m.seal(t, migration(9, state.Ask), "moved under 2 of a topology")

		// Back under a topology, once a migration has taken the key away from the other group: a take is refused, although
		// nothing has frozen this place but what comes along; a seed brings that.
		gone := frozen.Clone()
		if _, err := gone.Seal(m.at(), migration(6, state.Ask)); err == nil {
			t.Fatal("package limit/state seals for a migration where the key has left")
		}
		gone.Unfence(state.Topology)
		if _, err := gone.Seal(m.at(), migration(6, state.Ask)); err != nil {
			t.Fatal(err)
		}
		m.moving = topology(3, state.Adopt)
		req := m.request(1, &gone)
		m.moving = state.Move{}
		if _, err := m.Take(context.Background(), req); sayRefusal(err) != "moved under 6 of a migration" {
			t.Errorf("a take that brings a seal along: %v", err)
		}
		m.compareLoad(t)
		m.bring(t, topology(3, state.Adopt), gone, "")
		m.refused(t, state.Move{}, receipt, "moved under 6 of a migration")
		m.refused(t, topology(3, state.Ask), receipt, "moved under 6 of a migration")
		m.seal(t, migration(5, state.Ask), "moved under 6 of a migration")
		m.move(t, migration(7, state.Adopt), &gone, 1)
		m.move(t, topology(3, state.Ask), nil, 1)

		// What a migration brings has no stamps that would count here.
		strange := gone.Clone()
		if _, err := strange.Seal(m.at(), topology(8, state.Ask)); err != nil {
			t.Fatal(err)
		}
		m.move(t, migration(11, state.Adopt), &strange, 1)
		m.move(t, topology(3, state.Ask), nil, 1)
		m.compareLoad(t)
		// And what a topology brings under a take thaws, if the key has come back elsewhere.
		m.seal(t, topology(4, state.Ask), "")
		back := m.model.Clone()
		back.Unfence(state.Topology)
		if _, err := back.Enter(m.at(), migration(13, state.Adopt)); err != nil {
			t.Fatal(err)
		}
		m.move(t, topology(5, state.Adopt), &back, 1)
		m.seal(t, migration(13, state.Ask), "moved under 13 of a migration")
	})
}

// bring calls Seed under a move.
func (m *mirror) bring(t *testing.T, move state.Move, st state.State, refusal string) {
	t.Helper()
	seeder, ok := m.Backend.(backend.Seeder)
	if !ok {
		t.Fatalf("%T is a Sealer but no Seeder", m.Backend)
	}
	req := m.request(0, nil)
	req.Move = move
	if got := sayRefusal(seeder.Seed(context.Background(), req, st)); got != refusal {
		t.Errorf("Seed under %+v: %q, want %q", move, got, refusal)
	}
	if _, err := m.model.Arrive(m.policy, m.at(), move, &st, false); sayRefusal(err) != refusal {
		t.Fatalf("package limit/state answers a seed with %v", err)
	}
	m.compareLoad(t)
}

// seal calls Seal, which must refuse as said.
func (m *mirror) seal(t *testing.T, move state.Move, refusal string) state.State {
	t.Helper()
	req := m.request(0, nil)
	req.Move = move
	snapshot, err := m.Backend.(backend.Sealer).Seal(context.Background(), req)
	if got := sayRefusal(err); got != refusal {
		t.Fatalf("Seal under version %d: %q, want %q", move.Version, got, refusal)
	}
	if _, err := m.model.Seal(m.at(), move); sayRefusal(err) != refusal {
		t.Fatalf("package limit/state seals with %v", err)
	}
	if now := m.clock.micros.Load(); refusal == "" && (snapshot.Now != now || snapshot.Source == backend.Unknown) {
		t.Errorf("sealed at %d us by %s, the clock says %d", snapshot.Now, snapshot.Source, now)
	}
	return snapshot.State
}

// move is a take under a move that is let in.
func (m *mirror) move(t *testing.T, move state.Move, floor *state.State, cost int64) {
	t.Helper()
	m.moving = move
	defer func() { m.moving = state.Move{} }()
	m.takeFloor(t, cost, floor)
}

// refused checks that everything that charges or gives back is refused under a move, and changes nothing.
func (m *mirror) refused(t *testing.T, move state.Move, receipt state.Receipt, refusal string) {
	t.Helper()
	ctx, req := context.Background(), m.request(1, nil)
	req.Move = move
	check := func(op string, err error, refusal string) {
		t.Helper()
		if got := sayRefusal(err); got != refusal {
			t.Errorf("%s under %+v: %q, want %q", op, move, got, refusal)
		}
	}
	_, err := m.Take(ctx, req)
	check("Take", err, refusal)
	if charger, ok := m.Backend.(backend.Charger); ok {
		_, err := charger.Charge(ctx, req, receipt.Mark())
		check("Charge", err, refusal)
	}
	if seeder, ok := m.Backend.(backend.Seeder); ok {
		if want := m.seedRefusal(move, refusal); want != "" {
			check("Seed", seeder.Seed(ctx, req, state.State{}), want)
		}
	}
	if move.Step != state.Ask { // the others have no floor to adopt with
		return
	}
	if refunder, ok := m.Backend.(backend.Refunder); ok && receipt.Cost > 0 {
		check("Refund", refunder.Refund(ctx, req, receipt, 1), refusal)
	}
	if resetter, ok := m.Backend.(backend.Resetter); ok {
		check("Reset", resetter.Reset(ctx, req), refusal)
	}
	if granter, ok := m.Backend.(backend.Granter); ok {
		check("Grant", granter.Grant(ctx, req, 1), refusal)
	}
	m.compareLoad(t)
}

// seedRefusal is the refusal of a seed where a take is refused: the same, but that a topology may bring what a migration
// froze. It is empty if the seed is let in.
func (m *mirror) seedRefusal(move state.Move, refusal string) string {
	if move.Mover != state.Topology {
		return refusal
	}
	st := m.model.Clone()
	_, err := st.Arrive(m.policy, m.at(), move, nil, false)
	return sayRefusal(err)
}

func sayRefusal(err error) string {
	var moved *state.MovedError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, state.ErrFloorWanted):
		return "floor wanted"
	case errors.As(err, &moved):
		return fmt.Sprintf("moved under %d of a %s", moved.Version, moved.Mover)
	}
	return err.Error()
}
