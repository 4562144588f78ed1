package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/ring"
)

// Router sends every key to the group that owns it. Make one with [Open] or [New].
type Router struct {
	snapshot atomic.Pointer[snapshot]
	closed   atomic.Bool
	events   *events

	stop    context.CancelFunc // ends the goroutines that running counts
	running sync.WaitGroup
	closing sync.Once
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
)

// snapshot is what a call routes by. It never changes; a call sees one snapshot from its start to its end.
type snapshot struct {
	ring   *ring.Ring
	groups []*group // in the order given
	byName map[string]*group
}

func newSnapshot(groups []*group, seed uint64) (*snapshot, error) {
	members := make([]ring.Member, len(groups))
	byName := make(map[string]*group, len(groups))
	for i, g := range groups {
		members[i] = ring.Member{Name: g.name, Weight: g.weight}
		byName[g.name] = g
	}
	r, err := ring.New(members, ring.Config{Seed: seed})
	return &snapshot{ring: r, groups: groups, byName: byName}, err
}

func (s *snapshot) owner(key string) *group { return s.byName[s.ring.Owner(key)] }

// nodes returns all nodes, group by group, primaries first.
func (s *snapshot) nodes() []*node {
	var all []*node
	for _, g := range s.groups {
		all = append(all, g.primary)
		all = append(all, g.replicas...)
	}
	return all
}

// start makes a router of groups whose nodes are ready, and lets their hearts beat.
func start(groups []*group, seed uint64, cfg Config, events *events) (*Router, error) {
	s, err := newSnapshot(groups, seed)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Router{events: events, stop: cancel}
	r.snapshot.Store(s)
	if events != nil {
		r.running.Go(func() { events.run(ctx) })
	}
	for _, n := range s.nodes() {
		if n.watched {
			r.running.Go(func() { n.watch(ctx, cfg.Heartbeat, beatTimeout(cfg)) })
		}
	}
	return r, nil
}

// Owner returns the name of the group that owns key, whether or not its nodes are alive.
func (r *Router) Owner(key string) string { return r.snapshot.Load().ring.Owner(key) }

// Take implements [backend.Backend]: one call to the primary of the key's group.
func (r *Router) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	g, err := r.route(&req, req.CheckTake(ctx))
	if err != nil {
		return backend.Result{}, err
	}
	return g.take(ctx, req)
}

// Peek implements [backend.Peeker]. It asks a replica while one is fit to be read.
func (r *Router) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	g, err := r.route(&req, req.CheckTake(ctx))
	if err != nil {
		return backend.Result{}, err
	}
	return g.peek(ctx, req)
}

// Load implements [backend.Loader]. It asks a replica while one is fit to be read, and then the snapshot, whose Source
// is backend.Replica, may lack the latest charges.
func (r *Router) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	g, err := r.route(&req, req.Check(ctx))
	if err != nil {
		return backend.Snapshot{}, err
	}
	return g.load(ctx, req)
}

// Refund implements [backend.Refunder]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Refund(ctx context.Context, req backend.Request, receipt limit.Receipt, amount int64) error {
	g, err := r.route(&req, req.Check(ctx))
	if err != nil {
		return err
	}
	return g.refund(ctx, req, receipt, amount)
}

// Reset implements [backend.Resetter]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Reset(ctx context.Context, req backend.Request) error {
	g, err := r.route(&req, req.Check(ctx))
	if err != nil {
		return err
	}
	return g.reset(ctx, req)
}

// Seed implements [backend.Seeder]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Seed(ctx context.Context, req backend.Request, state limit.State) error {
	g, err := r.route(&req, req.Check(ctx))
	if err != nil {
		return err
	}
	return g.seed(ctx, req, state)
}

// Seal implements [backend.Sealer]; [backend.ErrUnsupported] if the primary can't.
func (r *Router) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	g, err := r.route(&req, req.CheckSeal(ctx))
	if err != nil {
		return backend.Snapshot{}, err
	}
	return g.seal(ctx, req)
}

// route finds the group of a request, unless checking it gave an error. The nodes would refuse it too, but behind the
// breaker, where it would look like the answer of a healthy server.
func (r *Router) route(req *backend.Request, err error) (*group, error) {
	if r.closed.Load() {
		return nil, backend.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	return r.snapshot.Load().owner(req.Key), nil
}

// Ping implements [backend.Pinger]: it asks every node that can be asked, all at once, and joins what they say. It
// goes past the breakers, for the question is how the servers are.
func (r *Router) Ping(ctx context.Context) error {
	if r.closed.Load() {
		return backend.ErrClosed
	}
	if ctx == nil {
		return &limit.Error{Field: "context", Value: "nil", Bound: "must not be nil"}
	}
	return r.each(func(n *node) error {
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
		r.closed.Store(true)
		r.stop()
		r.running.Wait()
		err = r.each(func(n *node) error { return n.backend.Close() })
	})
	return err
}

// each does something with every node at once and joins the errors in the order of the nodes.
func (r *Router) each(do func(*node) error) error {
	nodes := r.snapshot.Load().nodes()
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() { errs[i] = do(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}
