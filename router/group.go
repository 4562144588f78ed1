package router

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// group is one primary and its replicas.
type group struct {
	name     string
	weight   int
	primary  *node
	replicas []*node

	watcher *sentinelWatcher // of a group with sentinels
	pending bool             // whether it has not named the primary yet

	clock       backend.Clock // the primary's; nil if it has none
	maxLag      time.Duration
	readTimeout time.Duration
	timeout     time.Duration // of other calls that wait for a primary, or go after a key; 0 for the nodes' own
}

func newGroup(name string, weight int, primary *node, replicas []*node, cfg Config) *group {
	g := &group{
		name: name, weight: weight, primary: primary, replicas: replicas,
		maxLag: cfg.MaxLag, readTimeout: cfg.ReadTimeout, timeout: cmp.Or(cfg.Backend.Timeout, defaultReadTimeout),
	}
	if primary != nil {
		g.clock, _ = primary.backend.(backend.Clock)
	}
	return g
}

// The write path: the primary, once.

func (g *group) take(ctx context.Context, req backend.Request) (result backend.Result, err error) {
	if g.pending {
		return whenReady(ctx, g, g.timeout, "take", func(ctx context.Context, g *group) (backend.Result, error) { return g.take(ctx, req) })
	}
	req.Trace.Visit(g.name, g.primary.name, backend.Primary)
	err = g.primary.write("take", func() (err error) {
		result, err = g.primary.backend.Take(ctx, req)
		if err == nil && !result.Allowed && g.primary.writesBlocked() {
			return errUnchanged
		}
		return g.primary.typeTimeout(ctx, err)
	})
	if err != nil && err != errUnchanged {
		return backend.Result{}, g.checkReadOnly(err)
	}
	result.Source = asPrimary(result.Source)
	result.Lower(g.primary.doubt(req.Policy))
	return result, nil
}

// doubt says why the group may lack counts of a request's key.
func (g *group) doubt(req backend.Request) error {
	if err := g.primary.doubt(req.Policy); err != nil {
		return err
	}
	return backend.DoubtOf(g.primary.backend, req)
}

func (g *group) refund(ctx context.Context, req backend.Request, receipt limit.Receipt, amount int64) error {
	if g.pending {
		return g.whenReadyDo(ctx, "refund", func(ctx context.Context, g *group) error { return g.refund(ctx, req, receipt, amount) })
	}
	refunder, ok := g.primary.backend.(backend.Refunder)
	if !ok {
		return backend.ErrUnsupported
	}
	return g.checkReadOnly(g.primary.write("refund", func() error { return g.primary.typeTimeout(ctx, refunder.Refund(ctx, req, receipt, amount)) }))
}

func (g *group) reset(ctx context.Context, req backend.Request) error {
	if g.pending {
		return g.whenReadyDo(ctx, "reset", func(ctx context.Context, g *group) error { return g.reset(ctx, req) })
	}
	resetter, ok := g.primary.backend.(backend.Resetter)
	if !ok {
		return backend.ErrUnsupported
	}
	return g.checkReadOnly(g.primary.write("reset", func() error { return g.primary.typeTimeout(ctx, resetter.Reset(ctx, req)) }))
}

func (g *group) seed(ctx context.Context, req backend.Request, state limit.State) error {
	if g.pending {
		return g.whenReadyDo(ctx, "seed", func(ctx context.Context, g *group) error { return g.seed(ctx, req, state) })
	}
	seeder, ok := g.primary.backend.(backend.Seeder)
	if !ok {
		return backend.ErrUnsupported
	}
	return g.checkReadOnly(g.primary.write("seed", func() error { return g.primary.typeTimeout(ctx, seeder.Seed(ctx, req, state)) }))
}

func (g *group) seal(ctx context.Context, req backend.Request) (snapshot backend.Snapshot, err error) {
	if g.pending {
		return whenReady(ctx, g, g.timeout, "seal", func(ctx context.Context, g *group) (backend.Snapshot, error) { return g.seal(ctx, req) })
	}
	sealer, ok := g.primary.backend.(backend.Sealer)
	if !ok {
		return backend.Snapshot{}, backend.ErrUnsupported
	}
	err = g.primary.write("seal", func() (err error) {
		snapshot, err = sealer.Seal(ctx, req)
		return g.primary.typeTimeout(ctx, err)
	})
	if err != nil {
		return backend.Snapshot{}, g.checkReadOnly(err)
	}
	snapshot.Source = asPrimary(snapshot.Source)
	return snapshot, nil
}

// laterDo is later for calls that return nothing.
func (g *group) whenReadyDo(ctx context.Context, op string, call func(context.Context, *group) error) error {
	_, err := whenReady(ctx, g, g.timeout, op, func(ctx context.Context, g *group) (struct{}, error) { return struct{}{}, call(ctx, g) })
	return err
}

// ofPrimary says what a memory is here: the primary of a group. Anything else knows better who decided.
func asPrimary(s backend.Source) backend.Source {
	if s == backend.Local || s == backend.Unknown {
		return backend.Primary
	}
	return s
}

// The read path: a replica, another one, the primary.

func (g *group) peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if g.pending {
		return whenReady(ctx, g, g.readTimeout, "peek", func(ctx context.Context, g *group) (backend.Result, error) { return g.peek(ctx, req) })
	}
	limited, cancel := context.WithTimeout(ctx, g.readTimeout)
	defer cancel()
	if snapshot, ok := g.loadFromReplica(limited, req); ok {
		return snapshot.Peek(&req), nil
	}
	peeker, ok := g.primary.backend.(backend.Peeker)
	if !ok {
		snapshot, err := g.loadFromPrimary(ctx, limited, req)
		if err != nil {
			return backend.Result{}, err
		}
		return snapshot.Peek(&req), nil
	}
	var result backend.Result
	req.Trace.Visit(g.name, g.primary.name, backend.Primary)
	err := g.primary.read("peek", func() (err error) {
		result, err = peeker.Peek(limited, req)
		return err
	})
	if err != nil {
		return backend.Result{}, g.readError(ctx, "peek", err)
	}
	result.Source = asPrimary(result.Source)
	result.Lower(g.primary.doubt(req.Policy))
	if g.primary.demoted() {
		result.Source = backend.Replica
		if result.Allowed && result.Guarantee == backend.Exact {
			result.Guarantee, result.Cause = backend.Bounded, backend.ErrReplicaMayLag
		}
	}
	return result, nil
}

func (g *group) load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if g.pending {
		return whenReady(ctx, g, g.readTimeout, "load", func(ctx context.Context, g *group) (backend.Snapshot, error) { return g.load(ctx, req) })
	}
	limited, cancel := context.WithTimeout(ctx, g.readTimeout)
	defer cancel()
	if snapshot, ok := g.loadFromReplica(limited, req); ok {
		return snapshot, nil
	}
	return g.loadFromPrimary(ctx, limited, req)
}

func (g *group) loadFromPrimary(ctx, limited context.Context, req backend.Request) (backend.Snapshot, error) {
	req.Trace.Visit(g.name, g.primary.name, backend.Primary)
	snapshot, err := g.primary.load(limited, req)
	if err != nil {
		return backend.Snapshot{}, g.readError(ctx, "load", err)
	}
	snapshot.Source = asPrimary(snapshot.Source)
	if doubt := g.primary.doubt(req.Policy); doubt != nil {
		snapshot.Lacks = doubt
	}
	if g.primary.demoted() {
		snapshot.Source = backend.Replica
	}
	return snapshot, nil
}

// loadFromReplica tries up to two replicas. It is not ok if none gave an answer; why not is known to their breakers.
func (g *group) loadFromReplica(ctx context.Context, req backend.Request) (backend.Snapshot, bool) {
	for _, n := range g.pickReplicas() {
		if n == nil || ctx.Err() != nil {
			break
		}
		req.Trace.Visit(g.name, n.name, backend.Replica)
		deadline, _ := ctx.Deadline()
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2) // a node that hangs leaves time for another
		snapshot, err := n.load(half, req)
		cancel()
		if err != nil {
			continue
		}
		snapshot.Source = backend.Replica
		if g.clock != nil {
			if now := g.clock.NowMicros(); now != 0 { // the clock by which the primary charges
				snapshot.Now = now
			}
		}
		return snapshot, true
	}
	return backend.Snapshot{}, false
}

// choose returns the replica to read and the one to try next, nil for none: of two random ones the one that is
// expected to answer sooner, then the other. Two choices spread load nearly as well as looking at all of them, without
// sending every caller to the same one (Mitzenmacher: The Power of Two Choices in Randomized Load Balancing, 2001).
func (g *group) pickReplicas() [2]*node {
	var few [8]*node // more replicas than these cost an allocation
	fit := few[:0]
	for _, n := range g.replicas {
		if n.readable(g.maxLag) {
			fit = append(fit, n)
		}
	}
	switch len(fit) {
	case 0:
		return [2]*node{}
	case 1:
		return [2]*node{fit[0]}
	}
	i, j := rand.IntN(len(fit)), rand.IntN(len(fit)-1)
	if j >= i {
		j++
	}
	if fit[j].expected() < fit[i].expected() {
		i, j = j, i
	}
	return [2]*node{fit[i], fit[j]}
}

// readError types the end of the read timeout, which the node took for the caller's own.
func (g *group) readError(ctx context.Context, op string, err error) error {
	if kindOf(err) == backend.Interrupted && ctx.Err() == nil {
		return &backend.Error{Op: op, Node: g.primary.title(), Kind: backend.Unavailable, Err: err}
	}
	return err
}
