package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit/state"
)

// Router sends every key to the group that owns it. Make one with [Open] or [New].
type Router struct {
	cfg         Config
	table       atomic.Pointer[routingTable]
	closed      atomic.Bool
	events      *events
	counts      counts
	longest     atomic.Int64              // the longest hold of a policy so far, nanoseconds
	lastDrained atomic.Pointer[time.Time] // when the latest of the drained placements was left; nil if none was

	changing sync.Mutex    // held while the table is replaced; guards stop of nodes and watchers
	syncSoon chan struct{} // asks syncLoop for a round
	opener   *opener       // nil for a router made by New
	life     context.Context
	end      context.CancelFunc // ends life, and the goroutines that running counts
	running  sync.WaitGroup
	closing  sync.Once
}

var (
	_ backend.Backend  = (*Router)(nil)
	_ backend.Peeker   = (*Router)(nil)
	_ backend.Refunder = (*Router)(nil)
	_ backend.Charger  = (*Router)(nil)
	_ backend.Resetter = (*Router)(nil)
	_ backend.Granter  = (*Router)(nil)
	_ backend.Pinger   = (*Router)(nil)
	_ backend.Loader   = (*Router)(nil)
	_ backend.Seeder   = (*Router)(nil)
	_ backend.Sealer   = (*Router)(nil)
	_ backend.Doubter  = (*Router)(nil)
)

func newRouter(cfg Config, events *events, opener *opener) *Router {
	r := &Router{cfg: cfg, events: events, opener: opener, syncSoon: make(chan struct{}, 1)}
	r.life, r.end = context.WithCancel(context.Background())
	if events != nil {
		r.running.Go(func() { events.run(r.life) })
	}
	return r
}

// start puts the first table in force.
func (r *Router) start(t *routingTable) {
	r.changing.Lock() // a watcher that starts may have a view at once
	defer r.changing.Unlock()
	r.installLocked(t)
}

// installLocked puts a table in force, and starts the heartbeats of its nodes and its watchers.
func (r *Router) installLocked(t *routingTable) {
	t.assignRoles()
	t.notePromotions(r.table.Load())
	r.table.Store(t)
	for _, w := range t.watchers() {
		if w.stop == nil {
			life, stop := context.WithCancel(r.life)
			w.stop = stop
			r.running.Go(func() { w.run(life) })
		}
	}
	for _, n := range t.nodes() {
		if n.watched && n.stop == nil {
			life, stop := context.WithCancel(r.life)
			n.stop = stop
			r.running.Go(func() { n.runHeartbeats(life, r.cfg.Heartbeat, beatTimeout(r.cfg)) })
		}
	}
}

// route is where one request goes under one routing table. It is filled in place: copies of it would take longer than the ring.
type route struct {
	table    *routingTable
	owner    *group
	previous []*group // that may have counts of the key, too
}

// resolve fills in the route of a request, unless checking that gave an error. The nodes would refuse bad input, too, but
// behind the breaker, where it would look like the answer of a healthy server.
func (r *Router) resolve(rt *route, req *backend.Request, checked error) error {
	t := r.table.Load()
	switch {
	case r.closed.Load():
		return backend.ErrClosed
	case checked != nil:
		return checked
	case t.stopped != nil: // typed, so that callers know that nothing was sent
		return &backend.Error{Op: "route", Kind: backend.Misconfigured, Err: t.stopped}
	}
	r.resolveBy(rt, t, req)
	return nil
}

func (r *Router) resolveBy(rt *route, t *routingTable, req *backend.Request) {
	hold := r.hold(req.Policy) // is noted, although nothing moves
	rt.table, rt.owner, rt.previous = t, t.owner(req.Key), nil
	if len(t.history.moved) > 0 {
		rt.previous = t.previousOwners(req.Key, rt.owner.name, hold)
	}
}

// direct reports whether the owner alone answers, as far as is known.
func (rt *route) direct() bool { return len(rt.previous) == 0 && !rt.owner.pending }

// Owner returns the name of the group that owns key, whether or not its nodes are up.
func (r *Router) Owner(key string) string { return r.table.Load().ring.Owner(key) }

// Take implements [backend.Backend]: one call to the primary of the key's group; while keys move, see [Router.Update], two
// more for the first take of a key that does, or three if it has a floor.
func (r *Router) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	return r.count(ctx, req, req.CheckTake(ctx), (*group).take)
}

// Charge implements [backend.Charger], as a take; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	return r.count(ctx, req, req.CheckCharge(ctx), func(g *group, ctx context.Context, req backend.Request) (backend.Result, error) {
		return g.charge(ctx, req, mark)
	})
}

// countCall takes or charges at a group.
type countCall func(*group, context.Context, backend.Request) (backend.Result, error)

// count makes a call that counts, at the primary of the key's group, unless the request is bad.
func (r *Router) count(ctx context.Context, req backend.Request, bad error, call countCall) (result backend.Result, err error) {
	var rt route
	if err := r.resolve(&rt, &req, bad); err != nil {
		return backend.Result{}, err
	}
	direct := rt.direct()
	if direct {
		result, err = call(rt.owner, ctx, req)
	}
	if !direct || err != nil && isRedirect(err) {
		result, err = r.countMoving(ctx, &rt, req, err, call)
	}
	if err == nil {
		result.Lower(r.drainedCause(req.Policy))
	}
	return result, err
}

// Peek implements [backend.Peeker]. It reads a replica while one is fit for it. It is Bounded, with the causes
// [backend.ErrNotHandedOver] and [ErrTopologyOld], if the key has left its group under a topology that can't be learned.
func (r *Router) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	var rt route
	if err := r.resolve(&rt, &req, req.CheckTake(ctx)); err != nil {
		return backend.Result{}, err
	}
	if rt.direct() {
		result, err := rt.owner.peek(ctx, req)
		if err != nil {
			return backend.Result{}, err
		}
		if !isRedirect(result.Cause) {
			result.Lower(r.drainedCause(req.Policy))
			return result, nil
		}
	}
	loaded, err := r.loadMoving(ctx, &rt, req)
	if err != nil {
		return backend.Result{}, err
	}
	return loaded.Peek(&req), nil
}

// Load implements [backend.Loader]. It reads a replica while one is fit for it, and then the snapshot, whose Source is
// backend.Replica, may lack the latest charges. While the key moves it joins what its owner and previous owners know; Lacks says
// what [Router.Peek] says of a key that has left.
func (r *Router) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	var rt route
	if err := r.resolve(&rt, &req, req.Check(ctx)); err != nil {
		return backend.Snapshot{}, err
	}
	if rt.direct() {
		loaded, err := rt.owner.load(ctx, req)
		if err != nil {
			return backend.Snapshot{}, err
		}
		if !isRedirect(loaded.Moved()) {
			loaded.Lacks = errors.Join(loaded.Lacks, r.drainedCause(req.Policy))
			return loaded, nil
		}
	}
	return r.loadMoving(ctx, &rt, req)
}

// Refund implements [backend.Refunder]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	return r.change(ctx, req, func(ctx context.Context, g *group, req backend.Request) error {
		return g.refund(ctx, req, receipt, amount)
	})
}

// Reset implements [backend.Resetter]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Reset(ctx context.Context, req backend.Request) error {
	return r.change(ctx, req, func(ctx context.Context, g *group, req backend.Request) error { return g.reset(ctx, req) })
}

// Grant implements [backend.Granter]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if err := req.CheckGrant(ctx, extra); err != nil && !r.closed.Load() {
		return err
	}
	return r.change(ctx, req, func(ctx context.Context, g *group, req backend.Request) error { return g.grant(ctx, req, extra) })
}

// Seed implements [backend.Seeder]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Seed(ctx context.Context, req backend.Request, state state.State) error {
	return r.change(ctx, req, func(ctx context.Context, g *group, req backend.Request) error { return g.seed(ctx, req, state) })
}

// change makes a change at the primary of the key's group.
func (r *Router) change(ctx context.Context, req backend.Request, do groupCall) error {
	var rt route
	if err := r.resolve(&rt, &req, req.Check(ctx)); err != nil {
		return err
	}
	var answer error
	if rt.direct() {
		if answer = do(ctx, rt.owner, req); answer == nil || !isRedirect(answer) {
			return answer
		}
	}
	return r.changeMoving(ctx, &rt, req, answer, do)
}

// Seal implements [backend.Sealer]; [backend.ErrUnsupported] if the primary can't. It is for a [dual.Dual] that holds
// the router.
func (r *Router) Seal(ctx context.Context, req backend.Request) (sealed backend.Snapshot, err error) {
	var rt route
	if err := r.resolve(&rt, &req, req.CheckSeal(ctx)); err != nil {
		return backend.Snapshot{}, err
	}
	m := r.moving(&rt, req, false)
	err = m.do(ctx, nil, func(ctx context.Context, g *group, req backend.Request) (err error) {
		sealed, err = g.seal(ctx, req)
		return err
	})
	if err == nil {
		err = m.Incomplete() // what is sealed is not all that was counted
	}
	if err != nil {
		return backend.Snapshot{}, err
	}
	sealed.State.Unfence(state.Topology)
	return sealed, nil
}

// Doubt implements [backend.Doubter], for the group that owns the key and those that may have counts of it.
func (r *Router) Doubt(req backend.Request) error {
	var rt route
	r.resolveBy(&rt, r.table.Load(), &req)
	for _, g := range append(rt.previous, rt.owner) {
		if err := g.current().doubt(req); err != nil {
			return err
		}
	}
	return r.drainedCause(req.Policy)
}

// Ping implements [backend.Pinger]: it pings all nodes at once that can be pinged, whatever their breakers say, and joins their
// errors. One primary answers for a whole Redis Cluster. A router that a conflicting topology has stopped fails, whatever its
// servers answer.
func (r *Router) Ping(ctx context.Context) error {
	if r.closed.Load() {
		return backend.ErrClosed
	}
	if ctx == nil {
		return fielderrors.ErrNilContext
	}
	t := r.table.Load()
	if t.stopped != nil {
		return &backend.Error{Op: "ping", Kind: backend.Misconfigured, Err: t.stopped}
	}
	return each(nodesOf(t.groups), func(n *node) error { return backend.Ping(ctx, n.backend) }) // those of previous topologies may be shut down
}

// Close stops the heartbeats, waits for them, and closes all nodes, those that were given to New, too.
func (r *Router) Close() error {
	var err error
	r.closing.Do(func() {
		r.changing.Lock() // no goroutine starts after this
		r.closed.Store(true)
		r.changing.Unlock()
		r.shutdown()
		err = each(r.table.Load().nodes(), func(n *node) error { return n.backend.Close() })
	})
	return err
}

// shutdown ends all goroutines, and waits for them.
func (r *Router) shutdown() {
	r.end()
	r.running.Wait()
}

// each does something with every node at once, and joins the errors in the order of the nodes.
func each(nodes []*node, do func(*node) error) error {
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() { errs[i] = do(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}
