package router

import (
	"cmp"
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// A key that changes its owner is handed over by its first take there: the new owner asks for a floor, the previous one is
// sealed, and what it held is the floor (limit/handover.go has the protocol). The version of such a move is the topology's
// epoch: under one epoch each key has one owner.

// handover is one request while its key may have counts at several groups, or its owner is not known yet. The step of its move says
// how far it has come:
//
//   - Ask: the owner may have adopted the key already. If not, the previous owners are sealed next.
//   - Adopt: they are sealed, and what they held goes to the owner.
//   - Alone: one of them can't be sealed, and the request goes on without it.
type handover struct {
	route
	backend.Request // as it goes to the owner
	router          *Router

	move    limit.Move   // zero if the key doesn't move
	fetched *limit.State // what the previous owners held, joined with floor; nil before they are sealed
	sealErr error        // why one of them could not be sealed
	floor   *limit.State // the caller's own

	beside    bool // the request acts under a move of the caller's: the key is handed over by requests beside it
	seedFirst bool // the request can't carry counts: they have to be at the owner before it
}

// maxRedirects bounds the attempts of one request; with each the table is newer, or the handover has come further.
const maxRedirects = 8

func (r *Router) handover(rt *route, req backend.Request) *handover {
	h := &handover{route: *rt, Request: req, router: r, floor: req.Floor, beside: req.Move != (limit.Move{})}
	h.begin(len(h.previous) > 0)
	return h
}

// begin starts with a move, or without one.
func (h *handover) begin(moves bool) {
	h.move = limit.Move{}
	if moves {
		h.move = limit.Move{Mover: limit.Topology, Version: h.table.version(), Hold: h.router.hold(h.Policy)}
	}
	h.setStep(limit.Ask, nil, nil)
}

// setStep notes how far the handover has come. A caller's own move stays in the request.
func (h *handover) setStep(step limit.Step, fetched *limit.State, sealErr error) {
	h.move.Step, h.fetched, h.sealErr = step, fetched, sealErr
	if !h.beside {
		h.Move, h.Floor = h.move, cmp.Or(fetched, h.floor)
	}
}

// isRedirect reports whether an error says that the key has left a place under a topology.
func isRedirect(err error) bool { return redirectVersion(err) > 0 }

// redirectVersion is the version of the topology under which the key has left a place; 0 if the error doesn't say that.
func redirectVersion(err error) int64 {
	if moved, ok := errors.AsType[*limit.MovedError](err); ok && moved.Mover == limit.Topology {
		return moved.Version
	}
	return 0
}

func (r *Router) takeMoving(ctx context.Context, rt *route, req backend.Request) (result backend.Result, err error) {
	h := r.handover(rt, req)
	err = h.do(ctx, func(ctx context.Context, g *group, req backend.Request) (err error) {
		result, err = g.take(ctx, req)
		return err
	})
	if err != nil {
		return backend.Result{}, err
	}
	switch h.move.Step {
	case limit.Adopt:
		h.noteHandover()
	case limit.Alone: // counts of another group may be missing
		r.counts.bounded.Add(1)
		result.Guarantee = max(result.Guarantee, backend.Bounded)
		result.Cause = errors.Join(backend.ErrNotHandedOver, h.sealErr, result.Cause)
	}
	for _, g := range h.previous { // counts that it had lost were not handed over
		result.Lower(g.doubt(req))
	}
	result.State.Unstamp(limit.Topology)
	return result, nil
}

func (r *Router) changeMoving(ctx context.Context, rt *route, req backend.Request, do groupCall) error {
	h := r.handover(rt, req)
	h.seedFirst = true
	if err := h.do(ctx, do); err != nil {
		return err
	}
	return h.incomplete()
}

// incomplete is the error of a change or a seal that was made at the owner only, because another group that may have counts of the key
// is unreachable; otherwise nil.
func (h *handover) incomplete() error {
	if h.sealErr == nil {
		return nil
	}
	return &backend.Error{
		Op: opMove, Kind: backend.Unavailable, MayHaveCharged: true, Err: errors.Join(backend.ErrNotHandedOver, h.sealErr),
	}
}

func (h *handover) noteHandover() {
	h.Trace.HandOver()
	h.router.counts.handovers.Add(1)
}

// groupCall makes a request to a group.
type groupCall func(context.Context, *group, backend.Request) error

// do makes a call where the key is. It hands the key over or follows it first, if the answer demands that. All of it takes no longer
// than one call.
func (h *handover) do(ctx context.Context, call groupCall) error {
	limited, cancel := bounded(ctx, h.owner.timeout)
	defer cancel()
	err := h.run(limited, call)
	return h.owner.primary.asTimeout(ctx, opMove, err)
}

func (h *handover) run(ctx context.Context, call groupCall) error {
	for attempt := 0; ; attempt++ {
		owner, err := h.owner.ready(ctx, opMove)
		if err != nil {
			return err
		}
		h.owner = owner
		err = h.seedOwner(ctx)
		wanted := errors.Is(err, limit.ErrFloorWanted)
		if err == nil {
			err = call(ctx, h.owner, h.Request)
			wanted = !h.beside && errors.Is(err, limit.ErrFloorWanted) // under the caller's move, the caller brings the floor
		}
		switch {
		case !wanted && !isRedirect(err):
			return err
		case attempt == maxRedirects:
			return &backend.Error{Op: opMove, Kind: backend.Contended, Err: errTooManyRedirects}
		case wanted:
			err = h.fetch(ctx)
		default:
			h.router.counts.redirects.Add(1)
			err = h.redirect(ctx, h.owner, redirectVersion(err))
		}
		if err != nil {
			return err
		}
	}
}

// seedOwner makes a step of the handover in a separate request, if the caller's request can't.
func (h *handover) seedOwner(ctx context.Context) error {
	req, state := h.Request, limit.State{}
	switch {
	case h.beside && h.move.Version != 0 && h.move.Step == limit.Ask:
	case (h.beside || h.seedFirst) && h.move.Step == limit.Adopt:
		state = *h.fetched
	default:
		return nil
	}
	req.Move, req.Floor = h.move, nil
	err := h.owner.seed(ctx, req, state)
	if err == nil && h.move.Step == limit.Adopt {
		h.noteHandover()
		h.setStep(limit.Ask, nil, nil)
	}
	return err
}

// fetch seals the key at all groups that may have counts of it, and makes those the floor. The request goes on without a group that is
// unreachable. If the key has moved on, the request follows it.
func (h *handover) fetch(ctx context.Context) error {
	from := h.previous
	if len(from) == 0 {
		from = h.table.others(h.owner.name)
	}
	var fetched limit.State
	if h.floor != nil {
		fetched = h.floor.Clone()
	}
	step, sealErr := limit.Adopt, error(nil)
	for i, g := range from {
		sealed, err := h.seal(ctx, g, len(from)-i)
		switch {
		case err == nil:
			fetched = limit.Merge(fetched, sealed.State, limit.At{Micros: sealed.Now})
		case isRedirect(err):
			return h.redirect(ctx, g, redirectVersion(err))
		case errors.Is(err, ErrTopologyConflict): // other processes have another owner
			return h.fail(g, backend.Misconfigured, ErrTopologyConflict)
		case ctx.Err() != nil:
			return err
		default:
			step, sealErr = limit.Alone, errors.Join(sealErr, err)
		}
	}
	h.setStep(step, &fetched, sealErr)
	return nil
}

// seal seals the key at the first of several groups. Each gets an equal part of the time that is left, and so does the request after
// them. The topology is published there before, so that processes which are redirected from there can learn of it.
func (h *handover) seal(ctx context.Context, g *group, groups int) (backend.Snapshot, error) {
	ctx, cancel := share(ctx, groups+1)
	defer cancel()
	g, err := g.ready(ctx, "seal")
	if err != nil {
		return backend.Snapshot{}, err
	}
	req := h.Request
	req.Move, req.Floor = h.move, nil
	req.Move.Step = limit.Ask
	if v := req.Move.Version; g.primary.syncedEpoch.Load() < v && g.primary.deniedEpoch.Load() != v {
		if err := h.router.syncWith(ctx, g.primary, true); errors.Is(err, ErrTopologyConflict) {
			return backend.Snapshot{}, err
		}
	}
	return g.seal(ctx, req)
}

// redirect prepares another attempt of the request after a group answered that the key has left it under a version.
func (h *handover) redirect(ctx context.Context, g *group, version int64) error {
	switch mine := h.table.version(); {
	case h.refresh():
		return nil
	case version > mine:
		err := h.router.syncWith(ctx, g.primary, false) // the group holds the newer topology
		if err == nil && h.refresh() {
			return nil
		}
		return h.fail(g, backend.Unavailable, errors.Join(ErrTopologyOld, err))
	case version < mine && h.move.Version == 0: // the key left under an earlier topology, and has to come back
		h.begin(true)
		if !h.table.history.contains(version) { // its counts may be in a group that isn't known
			h.setStep(limit.Alone, nil, ErrTopologyOld)
		}
		return nil
	case version < mine && h.beside && h.move.Step == limit.Alone: // a request under the caller's move can't lift the owner's seal
		return h.fail(g, backend.Unavailable, errors.Join(backend.ErrNotHandedOver, h.sealErr))
	}
	return h.fail(g, backend.Misconfigured, ErrTopologyConflict)
}

// refresh starts afresh by the table in force, if that is newer.
func (h *handover) refresh() bool {
	newer := h.router.table.Load()
	if newer.version() <= h.table.version() {
		return false
	}
	h.router.resolveBy(&h.route, newer, &h.Request)
	h.begin(len(h.previous) > 0)
	return true
}

func (h *handover) fail(g *group, kind backend.Kind, err error) error {
	return &backend.Error{Op: opMove, Node: g.primary.title(), Kind: kind, Err: err}
}

var errTooManyRedirects = errors.New("the key moved again at every attempt")

const opMove = "move"

// loadMoving loads what the key's owner knows, joined with what previous owners know unless the key was handed over. All of it takes
// no longer than one read.
func (r *Router) loadMoving(ctx context.Context, rt *route, req backend.Request) (backend.Snapshot, error) {
	limited, cancel := bounded(ctx, r.cfg.ReadTimeout)
	defer cancel()
	h := r.handover(rt, req)
	loaded, err := loadReady(limited, h.owner, h.Request)
	if err != nil {
		return backend.Snapshot{}, h.owner.primary.asTimeout(ctx, "load", err)
	}
	now := limit.At{Micros: loaded.Now}
	if adopted, sealed := loaded.State.Stamp(limit.Topology, now); sealed > adopted || adopted < h.move.Version {
		for i, g := range h.previous {
			part, cancel := share(limited, len(h.previous)-i+1) // as in seal
			there, err := loadReady(part, g, h.Request)
			cancel()
			if err != nil {
				h.sealErr = errors.Join(h.sealErr, err)
				continue
			}
			loaded.State = limit.Merge(loaded.State, there.State, now)
			if there.Source == backend.Replica {
				loaded.Source = backend.Replica
			}
		}
	}
	loaded.Lacks = errors.Join(loaded.Lacks, r.drainedCause(req.Policy))
	if h.sealErr != nil {
		loaded.Lacks = errors.Join(backend.ErrNotHandedOver, h.sealErr, loaded.Lacks)
	}
	loaded.State.Unstamp(limit.Topology)
	return loaded, nil
}

func loadReady(ctx context.Context, g *group, req backend.Request) (backend.Snapshot, error) {
	g, err := g.ready(ctx, "load")
	if err != nil {
		return backend.Snapshot{}, err
	}
	return g.load(ctx, req)
}
