package router

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// A key that changes its owner is handed over by its first take there: the new owner asks for a floor, the old one is
// sealed, and what it held is the floor (limit/handover.go has the protocol). The version of such a move is the
// topology's epoch: of one epoch, each key has one owner.

// way is the way of one request to where its key is, while keys move.
type way struct {
	backend.Request
	router  *Router
	at      *snapshot
	origins []*group     // where the key may come from
	move    limit.Move   // the hand-over; zero if the key doesn't move
	floor   *limit.State // the caller's own
	foreign bool         // the request acts under a move of the caller's
	asked   bool         // whether the origins have been sealed
	unmet   error        // why one could not be
	turns   int
}

// maxTurns bounds how often a request goes after its key; with each turn the snapshot is newer, or the hand-over has
// come further.
const maxTurns = 8

func (r *Router) way(s *snapshot, req backend.Request) *way {
	w := &way{Request: req, router: r, floor: req.Floor, foreign: req.Move != (limit.Move{})}
	w.aim(s)
	return w
}

// aim makes the request go by a snapshot.
func (w *way) aim(s *snapshot) {
	hold := w.router.hold(w.Policy)
	w.at, w.origins = s, s.origins(w.Key, hold)
	w.asked, w.unmet = false, nil
	w.handOver(len(w.origins) > 0)
}

// handOver begins with the hand-over, or does without.
func (w *way) handOver(wanted bool) {
	w.move = limit.Move{}
	if wanted {
		w.move = limit.Move{Mover: limit.Topology, Version: w.at.version(), Hold: w.router.hold(w.Policy)}
	}
	w.carry(w.floor)
}

// carry is what the request takes along. A caller's own move stays in it; the key is handed over beside it.
func (w *way) carry(floor *limit.State) {
	if !w.foreign {
		w.Move, w.Floor = w.move, floor
	}
}

func (w *way) owner() *group { return w.at.owner(w.Key) }

// refuses reports whether an error is the answer of a place that the key is not in.
func (w *way) refuses(err error) bool {
	return left(err) || !w.foreign && errors.Is(err, limit.ErrFloorWanted)
}

// left reports whether an error is the answer of a place that the key has left under a topology.
func left(err error) bool {
	moved, ok := errors.AsType[*limit.MovedError](err)
	return ok && moved.Mover == limit.Topology
}

func (r *Router) takeMoving(ctx context.Context, s *snapshot, req backend.Request) (result backend.Result, err error) {
	w := r.way(s, req)
	err = w.do(ctx, func(g *group, req backend.Request) (err error) {
		result, err = g.take(ctx, req)
		return err
	})
	if err != nil {
		return backend.Result{}, err
	}
	switch w.move.Step {
	case limit.Adopt:
		req.Trace.HandOver()
		r.counts.handovers.Add(1)
	case limit.Alone: // it may lack what another group has counted
		r.counts.bounded.Add(1)
		result.Guarantee = max(result.Guarantee, backend.Bounded)
		result.Cause = errors.Join(backend.ErrNotHandedOver, w.unmet, result.Cause)
	}
	result.State.Unstamp(limit.Topology)
	return result, nil
}

func (r *Router) updateMoving(ctx context.Context, s *snapshot, req backend.Request, do func(*group, backend.Request) error) error {
	w := r.way(s, req)
	err := w.do(ctx, func(g *group, req backend.Request) error {
		if req.Move.Step == limit.Adopt && !w.foreign { // what is to be changed has to be there
			if err := g.seed(ctx, req, *req.Floor); err != nil {
				return err
			}
			r.counts.handovers.Add(1)
			req.Move.Step, req.Floor = limit.Ask, w.floor
		}
		return do(g, req)
	})
	if err == nil && w.unmet != nil {
		err = w.lost()
	}
	return err
}

// lost is the error of a change, or a seal, that was made at the owner only: what it is about may be in a group that is out
// of reach.
func (w *way) lost() error {
	return &backend.Error{
		Op: opMove, Kind: backend.Unavailable, MayHaveCharged: true, Err: errors.Join(backend.ErrNotHandedOver, w.unmet),
	}
}

// do makes a call where the key is, and goes after the key as long as the answer is that it is elsewhere.
func (w *way) do(ctx context.Context, call func(*group, backend.Request) error) error {
	for {
		err := w.settle(ctx)
		if err == nil {
			err = call(w.owner(), w.Request)
		}
		if err == nil || !w.refuses(err) {
			return err
		}
		if err = w.follow(ctx, err); err != nil {
			return err
		}
	}
}

// settle brings the key to its owner beforehand, if the request has no room for that.
func (w *way) settle(ctx context.Context) error {
	if !w.foreign || w.move.Version == 0 || w.move.Step == limit.Alone {
		return nil
	}
	req := w.Request
	req.Move, req.Floor = w.move, nil
	err := w.owner().seed(ctx, req, limit.State{})
	if !errors.Is(err, limit.ErrFloorWanted) {
		return err
	}
	known, err := w.fetch(ctx)
	if err != nil || w.move.Step == limit.Alone || w.move.Version == 0 {
		return err
	}
	req.Move = w.move
	err = w.owner().seed(ctx, req, *known)
	if err == nil {
		w.Trace.HandOver()
		w.router.counts.handovers.Add(1)
	}
	w.move.Step = limit.Ask
	return err
}

// loadMoving is what the key's owner knows, joined with what its origins know unless the key was handed over.
func (r *Router) loadMoving(ctx context.Context, s *snapshot, req backend.Request) (backend.Snapshot, error) {
	w := r.way(s, req)
	snapshot, err := w.owner().load(ctx, w.Request)
	if err != nil {
		return backend.Snapshot{}, err
	}
	now := limit.At{Micros: snapshot.Now}
	if adopted, sealed := snapshot.State.Stamp(limit.Topology, now); sealed > adopted || adopted < w.move.Version {
		for _, g := range w.origins {
			there, err := g.load(ctx, w.Request)
			if err != nil {
				continue // a look is no promise
			}
			snapshot.State = limit.Merge(snapshot.State, there.State, now)
			if there.Source == backend.Replica {
				snapshot.Source = backend.Replica
			}
		}
	}
	snapshot.State.Unstamp(limit.Topology)
	return snapshot, nil
}

// follow does what a place's answer asks for, so that the request can be made once more. It fails if that can't be done.
func (w *way) follow(ctx context.Context, refusal error) error {
	if w.turns++; w.turns > maxTurns {
		return &backend.Error{Op: opMove, Kind: backend.Contended, Err: errRestless}
	}
	moved, elsewhere := errors.AsType[*limit.MovedError](refusal)
	if elsewhere {
		w.router.counts.redirects.Add(1)
	}
	switch {
	case !elsewhere:
		known, err := w.fetch(ctx)
		if err == nil && known != nil {
			w.carry(known)
		}
		return err
	case w.advance():
		return nil
	case moved.Version > w.at.version():
		return w.learn(ctx, w.owner())
	case moved.Version < w.at.version() && w.move.Version == 0: // it went elsewhere and is to come back
		w.recall(ctx, moved.Version)
		return nil
	case w.foreign && w.move.Step == limit.Alone: // the request has no version of a topology to thaw its owner with
		return &backend.Error{
			Op: opMove, Node: w.owner().primary.title(), Kind: backend.Unavailable, Err: errors.Join(backend.ErrNotHandedOver, w.unmet),
		}
	}
	return w.conflict(w.owner())
}

var errRestless = errors.New("the key moved again at every turn")

const opMove = "move"

// advance makes the request go by a snapshot that has come into force since, if there is one.
func (w *way) advance() bool {
	newer := w.router.snapshot.Load()
	if newer.version() <= w.at.version() {
		return false
	}
	w.aim(newer)
	return true
}

// learn gets the topology that another process knows, from a node that has met it.
func (w *way) learn(ctx context.Context, g *group) error {
	err := w.router.consult(ctx, g.primary, false)
	if err == nil && w.advance() {
		return nil
	}
	return &backend.Error{Op: opMove, Node: g.primary.title(), Kind: backend.Unavailable, Err: errors.Join(ErrTopologyOld, err)}
}

// recall begins the hand-over of a key that left its owner under a former topology. If that isn't known here, a node that
// was told of it may say which it was.
func (w *way) recall(ctx context.Context, version int64) {
	if !w.at.remembers(version) {
		w.router.recall(ctx, w.owner().primary)
		w.at = w.router.snapshot.Load()
	}
	w.handOver(true)
	if !w.at.remembers(version) {
		w.move.Step, w.unmet = limit.Alone, ErrTopologyOld
		w.carry(w.floor)
	}
}

func (w *way) conflict(g *group) error {
	return &backend.Error{Op: opMove, Node: g.primary.title(), Kind: backend.Misconfigured, Err: ErrTopologyConflict}
}

// fetch seals the key at all places that it may come from, and returns what was counted there, joined with the caller's
// own floor; nil if it found that the key moves on. If a place is out of reach the request goes on without it.
func (w *way) fetch(ctx context.Context) (*limit.State, error) {
	origins := w.origins
	if len(origins) == 0 || w.asked {
		origins = w.at.others(w.Key)
	}
	w.asked, w.unmet, w.move.Step = true, nil, limit.Adopt
	var known limit.State
	if w.floor != nil {
		known = w.floor.Clone()
	}
	for _, g := range origins {
		sealed, err := w.seal(ctx, g)
		moved, elsewhere := errors.AsType[*limit.MovedError](err)
		switch {
		case err == nil:
			known = limit.Merge(known, sealed.State, limit.At{Micros: sealed.Now})
		case elsewhere && w.advance():
			return nil, nil
		case elsewhere && moved.Version > w.at.version():
			return nil, w.learn(ctx, g)
		case elsewhere:
			return nil, w.conflict(g)
		case ctx.Err() != nil:
			return nil, err
		default:
			w.move.Step, w.unmet = limit.Alone, errors.Join(w.unmet, err)
		}
	}
	return &known, nil
}

// seal asks an origin within half of the caller's time, so that there is some left to go on without it. The origin is told of
// the topology before, so that whoever is refused there can learn of it.
func (w *way) seal(ctx context.Context, g *group) (backend.Snapshot, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	req := w.Request
	req.Move, req.Floor = w.move, nil
	req.Move.Step = limit.Ask
	if w.at.gap { // the key may have been elsewhere under a topology that isn't known here: the stamp would tell
		held, err := g.primary.load(ctx, req)
		if err != nil {
			return backend.Snapshot{}, err
		}
		_, sealed := held.State.Stamp(limit.Topology, limit.At{Micros: held.Now})
		if sealed > 0 && sealed < w.at.version() && !w.at.remembers(sealed) {
			return backend.Snapshot{}, ErrTopologyOld
		}
	}
	if g.primary.knows.Load() < req.Move.Version {
		if err := w.router.consult(ctx, g.primary, true); errors.Is(err, ErrTopologyConflict) {
			return backend.Snapshot{}, err
		}
	}
	return g.seal(ctx, req)
}
