package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// Router sends every key to the group that owns it. Make one with [Open] or [New].
type Router struct {
	cfg         Config
	table       atomic.Pointer[routingTable]
	closed      atomic.Bool
	events      *events
	counts      counts
	longest     atomic.Int64              // hand-over of a policy that was met, nanoseconds
	lastDrained atomic.Pointer[time.Time] // when the latest of the topologies that were drained was left; nil if none was

	changing sync.Mutex    // held while the snapshot is replaced, and the leave of nodes and followers is set
	syncSoon chan struct{} // that there is something to tell other processes
	opener   *opener       // nil for a router made by New
	life     context.Context
	stop     context.CancelFunc // ends life, and the goroutines that running counts
	running  sync.WaitGroup
	closing  sync.Once
}

var (
	_ backend.Backend  = (*Router)(nil)
	_ backend.Peeker   = (*Router)(nil)
	_ backend.Refunder = (*Router)(nil)
	_ backend.Resetter = (*Router)(nil)
	_ backend.Pinger   = (*Router)(nil)
	_ backend.Loader   = (*Router)(nil)
	_ backend.Seeder   = (*Router)(nil)
	_ backend.Sealer   = (*Router)(nil)
	_ backend.Doubter  = (*Router)(nil)
)

// newRouter makes a router whose first snapshot is to be put in force.
func newRouter(cfg Config, events *events, opener *opener) *Router {
	r := &Router{cfg: cfg, events: events, opener: opener, syncSoon: make(chan struct{}, 1)}
	r.life, r.stop = context.WithCancel(context.Background())
	if events != nil {
		r.running.Go(func() { events.run(r.life) })
	}
	return r
}

// begin puts the first snapshot in force. Of a follower that it starts, the answer may come at once.
func (r *Router) start(s *routingTable) {
	r.changing.Lock()
	defer r.changing.Unlock()
	r.installLocked(s)
}

// enforceLocked makes calls go by a snapshot from now on, lets the hearts of its nodes beat and its followers run.
func (r *Router) installLocked(s *routingTable) {
	s.assignRoles()
	s.notePromotions(r.table.Load())
	r.table.Store(s)
	for _, f := range s.watchers() {
		if f.stop == nil {
			life, leave := context.WithCancel(r.life)
			f.stop = leave
			r.running.Go(func() { f.run(life) })
		}
	}
	for _, n := range s.nodes() {
		if n.watched && n.stop == nil {
			life, leave := context.WithCancel(r.life)
			n.stop = leave
			r.running.Go(func() { n.runHeartbeats(life, r.cfg.Heartbeat, beatTimeout(r.cfg)) })
		}
	}
}

// Owner returns the name of the group that owns key, whether or not its nodes are alive.
func (r *Router) Owner(key string) string { return r.table.Load().ring.Owner(key) }

// Take implements [backend.Backend]: one call to the primary of the key's group; while keys move, see [Router.Update], two
// more for the first take of a key that does.
func (r *Router) Take(ctx context.Context, req backend.Request) (result backend.Result, err error) {
	s, err := r.admit(req.CheckTake(ctx))
	if err != nil {
		return backend.Result{}, err
	}
	moves := r.moving(s, &req)
	if !moves {
		result, err = s.owner(req.Key).take(ctx, req)
		moves = err != nil && isRedirect(err)
	}
	if moves {
		result, err = r.takeMoving(ctx, s, req)
	}
	if err == nil {
		result.Lower(r.drainedCause(req.Policy))
	}
	return result, err
}

// moves reports whether a key may have counts elsewhere than at its owner.
func (r *Router) moving(s *routingTable, req *backend.Request) bool {
	hold := r.hold(req.Policy) // is noted, although nothing moves
	return len(s.ownedElsewhere) > 0 && len(s.previousOwners(req.Key, hold)) > 0
}

// Peek implements [backend.Peeker]. It asks a replica while one is fit to be read.
func (r *Router) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	s, err := r.admit(req.CheckTake(ctx))
	if err != nil {
		return backend.Result{}, err
	}
	if !r.moving(s, &req) {
		result, err := s.owner(req.Key).peek(ctx, req)
		if err == nil {
			result.Lower(r.drainedCause(req.Policy))
		}
		return result, err
	}
	snapshot, err := r.loadMoving(ctx, s, req)
	if err != nil {
		return backend.Result{}, err
	}
	return snapshot.Peek(&req), nil
}

// Load implements [backend.Loader]. It asks a replica while one is fit to be read, and then the snapshot, whose Source
// is backend.Replica, may lack the latest charges. While the key moves it joins what the groups know that it may come from.
func (r *Router) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	s, err := r.admit(req.Check(ctx))
	if err != nil {
		return backend.Snapshot{}, err
	}
	if r.moving(s, &req) {
		return r.loadMoving(ctx, s, req)
	}
	snapshot, err := s.owner(req.Key).load(ctx, req)
	if err == nil {
		snapshot.Lacks = errors.Join(snapshot.Lacks, r.drainedCause(req.Policy))
	}
	return snapshot, err
}

// Refund implements [backend.Refunder]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Refund(ctx context.Context, req backend.Request, receipt limit.Receipt, amount int64) error {
	return r.change(ctx, req, func(ctx context.Context, g *group, req backend.Request) error {
		return g.refund(ctx, req, receipt, amount)
	})
}

// Reset implements [backend.Resetter]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Reset(ctx context.Context, req backend.Request) error {
	return r.change(ctx, req, func(ctx context.Context, g *group, req backend.Request) error { return g.reset(ctx, req) })
}

// Doubt implements [backend.Doubter], for the group that owns the key and those that it may come from.
func (r *Router) Doubt(req backend.Request) error {
	s := r.table.Load()
	for _, g := range append(s.previousOwners(req.Key, r.hold(req.Policy)), s.owner(req.Key)) {
		if err := g.doubt(req); err != nil {
			return err
		}
	}
	return r.drainedCause(req.Policy)
}

// Seed implements [backend.Seeder]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Seed(ctx context.Context, req backend.Request, state limit.State) error {
	return r.change(ctx, req, func(ctx context.Context, g *group, req backend.Request) error { return g.seed(ctx, req, state) })
}

// update makes a change at the primary of the key's group.
func (r *Router) change(ctx context.Context, req backend.Request, do func(context.Context, *group, backend.Request) error) error {
	s, err := r.admit(req.Check(ctx))
	if err != nil {
		return err
	}
	if !r.moving(s, &req) {
		if err := do(ctx, s.owner(req.Key), req); err == nil || !isRedirect(err) {
			return err
		}
	}
	return r.changeMoving(ctx, s, req, do)
}

// Seal implements [backend.Sealer]; [backend.ErrUnsupported] if the primary can't. It is for a [backend.Dual] that holds
// the router.
func (r *Router) Seal(ctx context.Context, req backend.Request) (snapshot backend.Snapshot, err error) {
	s, err := r.admit(req.CheckSeal(ctx))
	if err != nil {
		return backend.Snapshot{}, err
	}
	w := r.handover(s, req)
	err = w.do(ctx, func(ctx context.Context, g *group, req backend.Request) (err error) {
		snapshot, err = g.seal(ctx, req)
		return err
	})
	if err == nil && w.sealErr != nil { // what is sealed is not all that was counted
		err = w.incomplete()
	}
	if err != nil {
		return backend.Snapshot{}, err
	}
	snapshot.State.Unstamp(limit.Topology)
	return snapshot, nil
}

// enter is the snapshot that a call goes by, unless checking it gave an error. The nodes would refuse bad input too, but
// behind the breaker, where it would look like the answer of a healthy server.
func (r *Router) admit(err error) (*routingTable, error) {
	s := r.table.Load()
	switch {
	case r.closed.Load():
		return nil, backend.ErrClosed
	case err != nil:
		return nil, err
	case s.stopped != nil: // typed, so that callers know that nothing was sent
		return nil, &backend.Error{Op: "route", Kind: backend.Misconfigured, Err: s.stopped}
	}
	return s, nil
}

// Ping implements [backend.Pinger]: it asks every node that can be asked, all at once, and joins what they say. It
// goes past the breakers, for the question is how the servers are. Of a Redis Cluster one of its primaries answers for all. A
// router that a conflicting topology has stopped fails, whatever its servers say.
func (r *Router) Ping(ctx context.Context) error {
	if r.closed.Load() {
		return backend.ErrClosed
	}
	if ctx == nil {
		return &limit.Error{Field: "context", Value: "nil", Bound: "must not be nil"}
	}
	s := r.table.Load()
	if s.stopped != nil {
		return &backend.Error{Op: "ping", Kind: backend.Misconfigured, Err: s.stopped}
	}
	return each(nodesOf(s.groups), func(n *node) error { // those of former topologies may be gone
		if pinger, ok := n.backend.(backend.Pinger); ok {
			return pinger.Ping(ctx)
		}
		return nil
	})
}

// Close stops the heartbeats, waits for them, and closes all nodes, also those that were given to New.
func (r *Router) Close() error {
	var err error
	r.closing.Do(func() {
		r.changing.Lock() // nothing new begins to run after this
		r.closed.Store(true)
		r.changing.Unlock()
		r.shutdown()
		err = each(r.table.Load().nodes(), func(n *node) error { return n.backend.Close() })
	})
	return err
}

// stopAll ends all that runs, and waits for it.
func (r *Router) shutdown() {
	r.stop()
	r.running.Wait()
}

// each does something with every node at once and joins the errors in the order of the nodes.
func each(nodes []*node, do func(*node) error) error {
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() { errs[i] = do(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}
