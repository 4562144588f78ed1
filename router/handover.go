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

// way is the way of one request to where its key is, while keys move. The step of its move says how far it is:
//
//   - Ask: the owner may have adopted the key already. If not, its origins are sealed next.
//   - Adopt: they are sealed, and what they held goes to the owner.
//   - Alone: one of them can't be sealed, and the request goes on without it.
type handover struct {
	backend.Request
	router    *Router
	table     *routingTable
	previous  []*group     // where the key may come from
	move      limit.Move   // the hand-over; zero if the key doesn't move
	fetched   *limit.State // what the origins held, joined with floor; nil before they are sealed
	sealErr   error        // why one of them could not be
	floor     *limit.State // the caller's own
	beside    bool         // the request acts under a move of the caller's
	seedFirst bool         // the request has no room for counts: they have to be there before it
}

// maxTurns bounds how often a request goes after its key; with each turn the snapshot is newer, or the hand-over has
// come further.
const maxRedirects = 8

func (r *Router) handover(s *routingTable, req backend.Request) *handover {
	w := &handover{Request: req, router: r, floor: req.Floor, beside: req.Move != (limit.Move{})}
	w.useTable(s)
	return w
}

// aim makes the request go by a snapshot.
func (w *handover) useTable(s *routingTable) {
	w.table, w.previous = s, s.previousOwners(w.Key, w.router.hold(w.Policy))
	w.begin(len(w.previous) > 0)
}

// handOver begins with the hand-over, or does without.
func (w *handover) begin(wanted bool) {
	w.move = limit.Move{}
	if wanted {
		w.move = limit.Move{Mover: limit.Topology, Version: w.table.version(), Hold: w.router.hold(w.Policy)}
	}
	w.setStep(limit.Ask, nil, nil)
}

// come notes how far the hand-over has come. A caller's own move stays in the request; the key is handed over beside it.
func (w *handover) setStep(step limit.Step, known *limit.State, unmet error) {
	w.move.Step, w.fetched, w.sealErr = step, known, unmet
	if w.beside {
		return
	}
	w.Move, w.Floor = w.move, w.floor
	if known != nil {
		w.Floor = known
	}
}

func (w *handover) owner() *group { return w.table.owner(w.Key) }

// left reports whether an error is the answer of a place that the key has left under a topology.
func isRedirect(err error) bool { return redirectVersion(err) > 0 }

// versionOf is the version of the topology under which the key has left a place; 0 if that is not what the error says.
func redirectVersion(err error) int64 {
	if moved, ok := errors.AsType[*limit.MovedError](err); ok && moved.Mover == limit.Topology {
		return moved.Version
	}
	return 0
}

func (r *Router) takeMoving(ctx context.Context, s *routingTable, req backend.Request) (result backend.Result, err error) {
	w := r.handover(s, req)
	err = w.do(ctx, func(ctx context.Context, g *group, req backend.Request) (err error) {
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
		result.Cause = errors.Join(backend.ErrNotHandedOver, w.sealErr, result.Cause)
	}
	for _, g := range w.previous { // what it had lost was not handed over
		result.Lower(g.doubt(req))
	}
	result.State.Unstamp(limit.Topology)
	return result, nil
}

func (r *Router) changeMoving(ctx context.Context, s *routingTable, req backend.Request, do func(context.Context, *group, backend.Request) error) error {
	w := r.handover(s, req)
	w.seedFirst = true
	err := w.do(ctx, do)
	if err == nil && w.sealErr != nil {
		err = w.incomplete()
	}
	return err
}

// lost is the error of a change, or a seal, that was made at the owner only: what it is about may be in a group that is out
// of reach.
func (w *handover) incomplete() error {
	return &backend.Error{
		Op: opMove, Kind: backend.Unavailable, MayHaveCharged: true, Err: errors.Join(backend.ErrNotHandedOver, w.sealErr),
	}
}

// do makes a call where the key is, and goes after the key as long as the answer is that it, or its counts, are elsewhere. All
// of it takes no longer than one call.
func (w *handover) do(ctx context.Context, call func(context.Context, *group, backend.Request) error) error {
	limited, cancel := bounded(ctx, w.owner().timeout)
	defer cancel()
	err := w.run(limited, call)
	if limited.Err() != nil && ctx.Err() == nil && isContextError(err) {
		return &backend.Error{Op: opMove, Node: w.owner().primary.title(), Kind: backend.Unavailable, Err: err}
	}
	return asTimeout(ctx, err)
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

func (w *handover) run(ctx context.Context, call func(context.Context, *group, backend.Request) error) error {
	for turn := 0; ; turn++ {
		err := w.seedOwner(ctx)
		wanted := errors.Is(err, limit.ErrFloorWanted)
		if err == nil {
			err = call(ctx, w.owner(), w.Request)
			wanted = !w.beside && errors.Is(err, limit.ErrFloorWanted) // under the caller's move, they are the caller's to bring
		}
		switch {
		case !wanted && !isRedirect(err):
			return err
		case turn == maxRedirects:
			return &backend.Error{Op: opMove, Kind: backend.Contended, Err: errTooManyRedirects}
		case wanted:
			err = w.fetch(ctx)
		default:
			err = w.redirect(ctx, err)
		}
		if err != nil {
			return err
		}
	}
}

// settle brings the key to its owner beforehand, if the request has no room for that.
func (w *handover) seedOwner(ctx context.Context) error {
	req, state := w.Request, limit.State{}
	switch {
	case w.beside && w.move.Version != 0 && w.move.Step == limit.Ask: // the request itself can't ask
	case (w.beside || w.seedFirst) && w.move.Step == limit.Adopt:
		state = *w.fetched
	default:
		return nil
	}
	req.Move, req.Floor = w.move, nil
	err := w.owner().seed(ctx, req, state)
	if err == nil && w.move.Step == limit.Adopt {
		w.Trace.HandOver()
		w.router.counts.handovers.Add(1)
		w.setStep(limit.Ask, nil, nil)
	}
	return err
}

// loadMoving is what the key's owner knows, joined with what its origins know unless the key was handed over. All of it takes
// no longer than one look.
func (r *Router) loadMoving(ctx context.Context, s *routingTable, req backend.Request) (backend.Snapshot, error) {
	limited, cancel := context.WithTimeout(ctx, r.cfg.ReadTimeout)
	defer cancel()
	w := r.handover(s, req)
	snapshot, err := w.owner().load(limited, w.Request)
	if err != nil {
		return backend.Snapshot{}, w.owner().readError(ctx, "load", err)
	}
	now := limit.At{Micros: snapshot.Now}
	if adopted, sealed := snapshot.State.Stamp(limit.Topology, now); sealed > adopted || adopted < w.move.Version {
		for i, g := range w.previous {
			there, err := w.loadPrevious(limited, g, len(w.previous)-i)
			if err != nil {
				w.sealErr = errors.Join(w.sealErr, err)
				continue
			}
			snapshot.State = limit.Merge(snapshot.State, there.State, now)
			if there.Source == backend.Replica {
				snapshot.Source = backend.Replica
			}
		}
	}
	snapshot.Lacks = errors.Join(snapshot.Lacks, r.drainedCause(req.Policy))
	if w.sealErr != nil {
		snapshot.Lacks = errors.Join(backend.ErrNotHandedOver, w.sealErr, snapshot.Lacks)
	}
	snapshot.State.Unstamp(limit.Topology)
	return snapshot, nil
}

// look loads what an origin knows, as the first of so many. Each has its part of the time that is left, and so has whoever
// goes on without it.
func (w *handover) loadPrevious(ctx context.Context, g *group, origins int) (backend.Snapshot, error) {
	ctx, cancel := share(ctx, origins+1)
	defer cancel()
	return g.load(ctx, w.Request)
}

// follow does what the owner's answer that the key has left it asks for, so that the request can be made once more.
func (w *handover) redirect(ctx context.Context, refusal error) error {
	w.router.counts.redirects.Add(1)
	version := redirectVersion(refusal)
	switch back := version < w.table.version(); {
	case w.refresh():
		return nil
	case back && w.move.Version == 0: // it went elsewhere and is to come back
		w.bringBack(version)
		return nil
	case back && w.beside && w.move.Step == limit.Alone: // the request has no version of a topology to thaw its owner with
		return &backend.Error{
			Op: opMove, Node: w.owner().primary.title(), Kind: backend.Unavailable, Err: errors.Join(backend.ErrNotHandedOver, w.sealErr),
		}
	}
	return w.redirectTo(ctx, w.owner(), version)
}

// pursue makes the request go by a newer topology, under which the key has left a place.
func (w *handover) redirectTo(ctx context.Context, g *group, version int64) error {
	switch {
	case w.refresh():
		return nil
	case version > w.table.version():
		return w.learnTopology(ctx, g)
	}
	return w.conflict(g)
}

var errTooManyRedirects = errors.New("the key moved again at every turn")

const opMove = "move"

// advance makes the request go by a snapshot that has come into force since, if there is one.
func (w *handover) refresh() bool {
	newer := w.router.table.Load()
	if newer.version() <= w.table.version() {
		return false
	}
	w.useTable(newer)
	return true
}

// learn gets the topology that another process knows, from a node that has met it.
func (w *handover) learnTopology(ctx context.Context, g *group) error {
	err := w.router.syncWith(ctx, g.primary, false)
	if err == nil && w.refresh() {
		return nil
	}
	return &backend.Error{Op: opMove, Node: g.primary.title(), Kind: backend.Unavailable, Err: errors.Join(ErrTopologyOld, err)}
}

// comeBack begins the hand-over of a key that left its owner under a former topology. If that isn't known here, nor is where
// its counts are.
func (w *handover) bringBack(version int64) {
	w.begin(true)
	if !w.table.remembers(version) {
		w.setStep(limit.Alone, nil, ErrTopologyOld)
	}
}

func (w *handover) conflict(g *group) error {
	return &backend.Error{Op: opMove, Node: g.primary.title(), Kind: backend.Misconfigured, Err: ErrTopologyConflict}
}

// fetch seals the key at all places that it may come from; what was counted there is known then. If a place is out of reach
// the request goes on without it. If the key turns out to have moved on, so does the request, and nothing is known yet.
func (w *handover) fetch(ctx context.Context) error {
	origins := w.previous
	if len(origins) == 0 {
		origins = w.table.otherGroups(w.Key)
	}
	var known limit.State
	if w.floor != nil {
		known = w.floor.Clone()
	}
	step, unmet := limit.Adopt, error(nil)
	for i, g := range origins {
		sealed, err := w.seal(ctx, g, len(origins)-i)
		switch {
		case err == nil:
			known = limit.Merge(known, sealed.State, limit.At{Micros: sealed.Now})
		case isRedirect(err):
			return w.redirectTo(ctx, g, redirectVersion(err))
		case errors.Is(err, ErrTopologyConflict): // then the owner is not one that others know
			return w.conflict(g)
		case ctx.Err() != nil:
			return err
		default:
			step, unmet = limit.Alone, errors.Join(unmet, err)
		}
	}
	w.setStep(step, &known, unmet)
	return nil
}

// seal asks an origin, as the first of so many. Each has its part of the time that is left, and so has going on without it. The
// origin is told of the topology before, so that processes which are refused there can learn of it.
func (w *handover) seal(ctx context.Context, g *group, origins int) (backend.Snapshot, error) {
	ctx, cancel := share(ctx, origins+1)
	defer cancel()
	req := w.Request
	req.Move, req.Floor = w.move, nil
	req.Move.Step = limit.Ask
	if v := req.Move.Version; g.primary.syncedEpoch.Load() < v && g.primary.deniedEpoch.Load() != v {
		if err := w.router.syncWith(ctx, g.primary, true); errors.Is(err, ErrTopologyConflict) {
			return backend.Snapshot{}, err
		}
	}
	return g.seal(ctx, req)
}

// hold is how long counts under a policy are handed over after a change. The longest is noted: former topologies are kept
// for that.
func (r *Router) hold(p *limit.Policy) time.Duration {
	hold := min(p.Horizon()+r.cfg.Settle, 2*limit.MaxWindow)
	for longest := r.longest.Load(); longest < int64(hold); longest = r.longest.Load() {
		r.longest.CompareAndSwap(longest, int64(hold))
	}
	return hold
}
