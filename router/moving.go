package router

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// A key that changes its owner is handed over by its first take there: the new owner asks for a floor, the old one is
// sealed, and what it held is the floor (limit/handover.go has the protocol). The version of such a move is the
// topology's epoch: of one epoch, each key has one owner.

// way is the way of one request to where its key is, while keys move. The step of its move says how far it is:
//
//   - Ask: the owner may have adopted the key already. If not, its origins are sealed next.
//   - Adopt: they are sealed, and what they held goes to the owner.
//   - Alone: one of them can't be sealed, and the request goes on without it.
type way struct {
	backend.Request
	router  *Router
	at      *snapshot
	origins []*group     // where the key may come from
	move    state.Move   // the hand-over; zero if the key doesn't move
	known   *state.State // what the origins held, joined with floor; nil before they are sealed
	unmet   error        // why one of them could not be
	floor   *state.State // the caller's own
	foreign bool         // the request acts under a move of the caller's
	change  bool         // the request has no room for counts: they have to be there before it
}

// maxTurns bounds how often a request goes after its key; with each turn the snapshot is newer, or the hand-over has
// come further.
const maxTurns = 8

func (r *Router) way(s *snapshot, req backend.Request) *way {
	w := &way{Request: req, router: r, floor: req.Floor, foreign: req.Move != (state.Move{})}
	w.aim(s)
	return w
}

// aim makes the request go by a snapshot.
func (w *way) aim(s *snapshot) {
	w.at, w.origins = s, s.origins(w.Key, w.router.hold(w.Policy))
	w.handOver(len(w.origins) > 0)
}

// handOver begins with the hand-over, or does without.
func (w *way) handOver(wanted bool) {
	w.move = state.Move{}
	if wanted {
		w.move = state.Move{Mover: state.Topology, Version: w.at.version(), TTL: w.router.hold(w.Policy)}
	}
	w.come(state.Ask, nil, nil)
}

// come notes how far the hand-over has come. A caller's own move stays in the request; the key is handed over beside it.
func (w *way) come(step state.Step, known *state.State, unmet error) {
	w.move.Step, w.known, w.unmet = step, known, unmet
	if w.foreign {
		return
	}
	w.Move, w.Floor = w.move, w.floor
	if known != nil {
		w.Floor = known
	}
}

func (w *way) owner() *group { return w.at.owner(w.Key) }

// left reports whether an error is the answer of a place that the key has left under a topology.
func left(err error) bool { return versionOf(err) > 0 }

// versionOf is the version of the topology under which the key has left a place; 0 if that is not what the error says.
func versionOf(err error) int64 {
	if moved, ok := errors.AsType[*state.MovedError](err); ok && moved.Mover == state.Topology {
		return moved.Version
	}
	return 0
}

func (r *Router) takeMoving(ctx context.Context, s *snapshot, req backend.Request) (result backend.Result, err error) {
	w := r.way(s, req)
	err = w.do(ctx, func(ctx context.Context, g *group, req backend.Request) (err error) {
		result, err = g.take(ctx, req)
		return err
	})
	if err != nil {
		return backend.Result{}, err
	}
	switch w.move.Step {
	case state.Adopt:
		req.Trace.HandOver()
		r.counts.handovers.Add(1)
	case state.WithoutFloor: // it may lack what another group has counted
		r.counts.bounded.Add(1)
		result.Guarantee = max(result.Guarantee, backend.Bounded)
		result.Cause = errors.Join(backend.ErrNotHandedOver, w.unmet, result.Cause)
	}
	for _, g := range w.origins { // what it had lost was not handed over
		result.Lower(g.doubt(req))
	}
	result.State.Unfence(state.Topology)
	return result, nil
}

func (r *Router) updateMoving(ctx context.Context, s *snapshot, req backend.Request, do func(context.Context, *group, backend.Request) error) error {
	w := r.way(s, req)
	w.change = true
	err := w.do(ctx, do)
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

// do makes a call where the key is, and goes after the key as long as the answer is that it, or its counts, are elsewhere. All
// of it takes no longer than one call.
func (w *way) do(ctx context.Context, call func(context.Context, *group, backend.Request) error) error {
	limited, cancel := bounded(ctx, w.owner().timeout)
	defer cancel()
	err := w.pursueKey(limited, call)
	if limited.Err() != nil && ctx.Err() == nil && isContextError(err) {
		return &backend.Error{Op: opMove, Node: w.owner().primary.title(), Kind: backend.Unavailable, Err: err}
	}
	return own(ctx, err)
}

// bounded is a context that ends after a timeout if there is one, and knows the caller's where that allows more: then what a node has too little
// time for is the node's fault.
func bounded(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	inner := ctx
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > timeout {
		inner = context.WithValue(ctx, callerKey{}, ctx)
	}
	return context.WithTimeout(inner, timeout)
}

// share is a context for one of so many parts of the time that is left.
func share(ctx context.Context, parts int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(parts))
}

// isContextError reports whether an error is that of a context that ended before anything was asked.
func isContextError(err error) bool {
	_, typed := errors.AsType[*backend.Error](err)
	return !typed && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled))
}

func (w *way) pursueKey(ctx context.Context, call func(context.Context, *group, backend.Request) error) error {
	for turn := 0; ; turn++ {
		err := w.settle(ctx)
		wanted := errors.Is(err, state.ErrFloorWanted)
		if err == nil {
			err = call(ctx, w.owner(), w.Request)
			wanted = !w.foreign && errors.Is(err, state.ErrFloorWanted) // under the caller's move, they are the caller's to bring
		}
		switch {
		case !wanted && !left(err):
			return err
		case turn == maxTurns:
			return &backend.Error{Op: opMove, Kind: backend.Contended, Err: errRestless}
		case wanted:
			err = w.fetch(ctx)
		default:
			err = w.follow(ctx, err)
		}
		if err != nil {
			return err
		}
	}
}

// settle brings the key to its owner beforehand, if the request has no room for that.
func (w *way) settle(ctx context.Context) error {
	req, st := w.Request, state.State{}
	switch {
	case w.foreign && w.move.Version != 0 && w.move.Step == state.Ask: // the request itself can't ask
	case (w.foreign || w.change) && w.move.Step == state.Adopt:
		st = *w.known
	default:
		return nil
	}
	req.Move, req.Floor = w.move, nil
	err := w.owner().seed(ctx, req, st)
	if err == nil && w.move.Step == state.Adopt {
		w.Trace.HandOver()
		w.router.counts.handovers.Add(1)
		w.come(state.Ask, nil, nil)
	}
	return err
}

// loadMoving is what the key's owner knows, joined with what its origins know unless the key was handed over. All of it takes
// no longer than one look.
func (r *Router) loadMoving(ctx context.Context, s *snapshot, req backend.Request) (backend.Snapshot, error) {
	limited, cancel := context.WithTimeout(ctx, r.cfg.ReadTimeout)
	defer cancel()
	w := r.way(s, req)
	snapshot, err := w.owner().load(limited, w.Request)
	if err != nil {
		return backend.Snapshot{}, w.owner().readError(ctx, "load", err)
	}
	now := state.At{Micros: snapshot.Now}
	if adopted, sealed := snapshot.State.Fence(state.Topology, now); sealed > adopted || adopted < w.move.Version {
		for i, g := range w.origins {
			there, err := w.look(limited, g, len(w.origins)-i)
			if err != nil {
				w.unmet = errors.Join(w.unmet, err)
				continue
			}
			snapshot.State = state.Merge(snapshot.State, there.State, now)
			if there.Source == backend.Replica {
				snapshot.Source = backend.Replica
			}
		}
	}
	snapshot.Lacks = errors.Join(snapshot.Lacks, r.lacks(req.Policy))
	if w.unmet != nil {
		snapshot.Lacks = errors.Join(backend.ErrNotHandedOver, w.unmet, snapshot.Lacks)
	}
	snapshot.State.Unfence(state.Topology)
	return snapshot, nil
}

// look loads what an origin knows, as the first of so many. Each has its part of the time that is left, and so has whoever
// goes on without it.
func (w *way) look(ctx context.Context, g *group, origins int) (backend.Snapshot, error) {
	ctx, cancel := share(ctx, origins+1)
	defer cancel()
	return g.load(ctx, w.Request)
}

// follow does what the owner's answer that the key has left it asks for, so that the request can be made once more.
func (w *way) follow(ctx context.Context, refusal error) error {
	w.router.counts.redirects.Add(1)
	version := versionOf(refusal)
	switch back := version < w.at.version(); {
	case w.advance():
		return nil
	case back && w.move.Version == 0: // it went elsewhere and is to come back
		w.comeBack(version)
		return nil
	case back && w.foreign && w.move.Step == state.WithoutFloor: // the request has no version of a topology to thaw its owner with
		return &backend.Error{
			Op: opMove, Node: w.owner().primary.title(), Kind: backend.Unavailable, Err: errors.Join(backend.ErrNotHandedOver, w.unmet),
		}
	}
	return w.pursue(ctx, w.owner(), version)
}

// pursue makes the request go by a newer topology, under which the key has left a place.
func (w *way) pursue(ctx context.Context, g *group, version int64) error {
	switch {
	case w.advance():
		return nil
	case version > w.at.version():
		return w.learn(ctx, g)
	}
	return w.conflict(g)
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

// comeBack begins the hand-over of a key that left its owner under a former topology. If that isn't known here, nor is where
// its counts are.
func (w *way) comeBack(version int64) {
	w.handOver(true)
	if !w.at.remembers(version) {
		w.come(state.WithoutFloor, nil, ErrTopologyOld)
	}
}

func (w *way) conflict(g *group) error {
	return &backend.Error{Op: opMove, Node: g.primary.title(), Kind: backend.Misconfigured, Err: ErrTopologyConflict}
}

// fetch seals the key at all places that it may come from; what was counted there is known then. If a place is out of reach
// the request goes on without it. If the key turns out to have moved on, so does the request, and nothing is known yet.
func (w *way) fetch(ctx context.Context) error {
	origins := w.origins
	if len(origins) == 0 {
		origins = w.at.others(w.Key)
	}
	var known state.State
	if w.floor != nil {
		known = w.floor.Clone()
	}
	step, unmet := state.Adopt, error(nil)
	for i, g := range origins {
		sealed, err := w.seal(ctx, g, len(origins)-i)
		switch {
		case err == nil:
			known = state.Merge(known, sealed.State, state.At{Micros: sealed.Now})
		case left(err):
			return w.pursue(ctx, g, versionOf(err))
		case errors.Is(err, ErrTopologyConflict): // then the owner is not one that others know
			return w.conflict(g)
		case ctx.Err() != nil:
			return err
		default:
			step, unmet = state.WithoutFloor, errors.Join(unmet, err)
		}
	}
	w.come(step, &known, unmet)
	return nil
}

// seal asks an origin, as the first of so many. Each has its part of the time that is left, and so has going on without it. The
// origin is told of the topology before, so that processes which are refused there can learn of it.
func (w *way) seal(ctx context.Context, g *group, origins int) (backend.Snapshot, error) {
	ctx, cancel := share(ctx, origins+1)
	defer cancel()
	req := w.Request
	req.Move, req.Floor = w.move, nil
	req.Move.Step = state.Ask
	if v := req.Move.Version; g.primary.knows.Load() < v && g.primary.forbids.Load() != v {
		if err := w.router.consult(ctx, g.primary, true); errors.Is(err, ErrTopologyConflict) {
			return backend.Snapshot{}, err
		}
	}
	return g.seal(ctx, req)
}

// hold is how long counts under a policy are handed over after a change. The longest is noted: former topologies are kept
// for that.
func (r *Router) hold(p *limit.Policy) time.Duration {
	hold := min(state.Horizon(p)+r.cfg.Settle, 2*limit.MaxWindow)
	for longest := r.longest.Load(); longest < int64(hold); longest = r.longest.Load() {
		r.longest.CompareAndSwap(longest, int64(hold))
	}
	return hold
}
