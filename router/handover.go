package router

import (
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/handover"
	"github.com/sluice-go/sluice/internal/tracing"
	"github.com/sluice-go/sluice/limit/state"
)

// A key that changes its owner is handed over by its first take there: the new owner asks for a floor, the previous ones are
// sealed, and what they held is the floor. The version of such a move is the topology's epoch: under one epoch each key has one
// owner.

// moving is one request while its key may have counts at several groups, or its owner is not known yet.
type moving struct {
	*handover.Handover[place]
	router *Router
	table  *routingTable
	req    backend.Request
}

func (r *Router) moving(rt *route, req backend.Request, change bool) *moving {
	m := &moving{router: r, req: req}
	m.Handover = handover.New(m, state.Topology, m.use(rt), req, change)
	return m
}

// use makes the request go by a route.
func (m *moving) use(rt *route) handover.Route[place] {
	m.table = rt.table
	next := handover.Route[place]{Owner: place{rt.owner, m.router}, Previous: m.places(rt.previous)}
	if len(rt.previous) > 0 {
		next.Move = m.move()
	}
	return next
}

func (m *moving) move() state.Move {
	return state.Move{Mover: state.Topology, Version: m.table.version(), TTL: m.router.hold(m.req.Policy)}
}

func (m *moving) places(groups []*group) []place {
	all := make([]place, len(groups))
	for i, g := range groups {
		all[i] = place{g, m.router}
	}
	return all
}

// isRedirect reports whether an error says that the key has left a place under a topology.
func isRedirect(err error) bool {
	moved, ok := errors.AsType[*state.MovedError](err)
	return ok && moved.Mover == state.Topology
}

func (r *Router) countMoving(
	ctx context.Context, rt *route, req backend.Request, answer error, call countCall,
) (result backend.Result, err error) {
	m := r.moving(rt, req, false)
	err = m.do(ctx, answer, func(ctx context.Context, g *group, req backend.Request) (err error) {
		result, err = call(g, ctx, req)
		return err
	})
	if err != nil {
		return backend.Result{}, err
	}
	if m.Err != nil {
		r.counts.bounded.Add(1)
	}
	m.Finish(&result)
	return result, nil
}

func (r *Router) changeMoving(ctx context.Context, rt *route, req backend.Request, answer error, do groupCall) error {
	m := r.moving(rt, req, true)
	if err := m.do(ctx, answer, do); err != nil {
		return err
	}
	return m.Incomplete()
}

// loadMoving takes no longer than one read, with all previous owners.
func (r *Router) loadMoving(ctx context.Context, rt *route, req backend.Request) (backend.Snapshot, error) {
	limited, cancel := bounded(ctx, r.cfg.ReadTimeout)
	defer cancel()
	m := r.moving(rt, req, false)
	loaded, err := m.Load(limited)
	if err != nil {
		return backend.Snapshot{}, m.Owner.current().primary.asTimeout(ctx, "load", err)
	}
	loaded.Lacks = errors.Join(loaded.Lacks, r.drainedCause(req.Policy))
	return loaded, nil
}

// groupCall makes a request to a group.
type groupCall func(context.Context, *group, backend.Request) error

// do makes a call where the key is. The handover and the call together take no longer than one call. Answer is that of a first
// attempt, see [handover.Handover.Do].
func (m *moving) do(ctx context.Context, answer error, call groupCall) error {
	limited, cancel := bounded(ctx, m.Owner.timeout)
	defer cancel()
	err := m.Do(limited, answer, func(ctx context.Context, p place, req backend.Request) error {
		g, err := p.ready(ctx, handover.Op)
		if err != nil {
			return err
		}
		return call(ctx, g, req)
	})
	if m.HandedOver {
		tracing.HandOver(m.req.Trace)
		m.router.counts.handovers.Add(1)
	}
	return m.Owner.current().primary.asTimeout(ctx, handover.Op, err)
}

// Redirect implements [handover.Mover].
func (m *moving) Redirect(ctx context.Context, from place, version int64) (handover.Route[place], error) {
	m.router.counts.redirects.Add(1)
	mine, beside := m.table.version(), m.req.Move != (state.Move{})
	next, newer := m.refresh()
	switch {
	case newer:
		return next, nil
	case version > mine:
		err := m.router.syncWith(ctx, from.current().primary, false) // the group holds the newer topology
		if next, newer := m.refresh(); err == nil && newer {
			return next, nil
		}
		return next, from.fail(backend.Unavailable, errors.Join(ErrTopologyOld, err))
	case version < mine && m.Move.Version == 0: // the key left under an earlier topology, and has to come back
		next = m.Route
		next.Move = m.move()
		if next.Previous = m.places(m.table.others(m.Owner.name)); !m.table.history.contains(version) {
			next.Move.Step, next.Err = state.WithoutFloor, ErrTopologyOld // its counts may be in a group that isn't known
		}
		return next, nil
	case version < mine && beside && m.Move.Step == state.WithoutFloor: // a request under the caller's move can't lift the owner's seal
		return next, from.fail(backend.Unavailable, errors.Join(backend.ErrNotHandedOver, m.Err))
	}
	return next, from.fail(backend.Misconfigured, ErrTopologyConflict)
}

// refresh returns the route by the table in force, if that is newer.
func (m *moving) refresh() (next handover.Route[place], newer bool) {
	t := m.router.table.Load()
	if t.version() <= m.table.version() {
		return next, false
	}
	var rt route
	m.router.resolveBy(&rt, t, &m.req)
	return m.use(&rt), true
}

// Unreachable implements [handover.Mover]. After a conflict the owner is one for this process only.
func (m *moving) Unreachable(err error) bool { return !errors.Is(err, ErrTopologyConflict) }

// place is a group between which and others keys move.
type place struct {
	*group
	router *Router
}

func (p place) fail(kind backend.Kind, err error) error {
	return &backend.Error{Op: handover.Op, Node: p.current().primary.title(), Kind: kind, Err: err}
}

// Seal implements [handover.Place]. The topology is published there before, so that processes which are redirected from there can
// learn of it.
func (p place) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	g, err := p.ready(ctx, "seal")
	if err != nil {
		return backend.Snapshot{}, err
	}
	if v := req.Move.Version; g.primary.syncedEpoch.Load() < v && g.primary.deniedEpoch.Load() != v {
		if err := p.router.syncWith(ctx, g.primary, true); errors.Is(err, ErrTopologyConflict) {
			return backend.Snapshot{}, p.fail(backend.Misconfigured, ErrTopologyConflict)
		}
	}
	return g.seal(ctx, req)
}

// Seed implements [handover.Place].
func (p place) Seed(ctx context.Context, req backend.Request, st state.State) error {
	g, err := p.ready(ctx, "seed")
	if err != nil {
		return err
	}
	return g.seed(ctx, req, st)
}

// Load implements [handover.Place].
func (p place) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	g, err := p.ready(ctx, "load")
	if err != nil {
		return backend.Snapshot{}, err
	}
	return g.load(ctx, req)
}

// Doubt implements [handover.Place].
func (p place) Doubt(req backend.Request) error { return p.current().doubt(req) }
