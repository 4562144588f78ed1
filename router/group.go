package router

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/internal/tracing"
	"github.com/sluice-go/sluice/limit/state"
)

// group is one primary and its replicas.
type group struct {
	name     string
	weight   int
	primary  *node
	replicas []*node

	watcher *sentinelWatcher // of a group with sentinels
	pending bool             // whether none of them has named the primary yet: calls go to what ready returns

	maxLag      time.Duration
	readTimeout time.Duration
	timeout     time.Duration // of a call that waits for a primary, or hands over a key; 0 for the nodes' own
}

func newGroup(name string, weight int, primary *node, replicas []*node, cfg Config) *group {
	return &group{
		name: name, weight: weight, primary: primary, replicas: replicas,
		maxLag: cfg.MaxLag, readTimeout: cfg.ReadTimeout, timeout: cmp.Or(cfg.Backend.Timeout, defaultReadTimeout),
	}
}

// doubt says why the group may lack counts of a request's key.
func (g *group) doubt(req backend.Request) error {
	if err := g.primary.promotionDoubt(req.Policy); err != nil {
		return err
	}
	return backend.Doubt(g.primary.backend, req)
}

// Writes go to the primary, once.

func (g *group) write(ctx context.Context, op string, do func() error) error {
	err := g.primary.call(ctx, write, op, do)
	if err != nil && g.watcher != nil {
		if reply, ok := errors.AsType[redis.Error](err); ok && strings.Contains(reply.Error(), "READONLY") { // Redis 6 has the script before it
			g.watcher.pollSoon() // the sentinels may know the new primary
		}
	}
	return err
}

func (g *group) take(ctx context.Context, req backend.Request) (result backend.Result, err error) {
	tracing.Visit(req.Trace, g.name, g.primary.name, backend.Primary)
	err = g.write(ctx, "take", func() (err error) {
		if result, err = g.primary.backend.Take(ctx, req); err == nil && !result.Allowed {
			return errNothingWritten
		}
		return err
	})
	return g.decided(&req, result, err)
}

// decided is the outcome of a call that the primary decided.
func (g *group) decided(req *backend.Request, result backend.Result, err error) (backend.Result, error) {
	if err != nil {
		return backend.Result{}, err
	}
	result.Source = asPrimary(result.Source)
	result.Lower(g.primary.promotionDoubt(req.Policy))
	return result, nil
}

// change makes a write by a capability that the primary may not have.
func change[C any](ctx context.Context, g *group, op string, do func(C) error) error {
	able, ok := g.primary.backend.(C)
	if !ok {
		return backend.ErrUnsupported // it says nothing about the node
	}
	return g.write(ctx, op, func() error { return do(able) })
}

func (g *group) refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	return change(ctx, g, "refund", func(b backend.Refunder) error { return b.Refund(ctx, req, receipt, amount) })
}

func (g *group) charge(ctx context.Context, req backend.Request, mark state.Mark) (result backend.Result, err error) {
	tracing.Visit(req.Trace, g.name, g.primary.name, backend.Primary)
	err = change(ctx, g, "charge", func(b backend.Charger) (err error) {
		if result, err = b.Charge(ctx, req, mark); err == nil && countsNothing(result.Receipt()) {
			return errNothingWritten
		}
		return err
	})
	return g.decided(&req, result, err)
}

// countsNothing reports whether all windows of a charge are over.
func countsNothing(r state.Receipt) bool {
	if r.Cost == 0 { // it met a bound
		return false
	}
	for i := range r.Policy().Limits {
		if _, position, fraction := r.Charge(i); position != 0 || fraction != 0 {
			return false
		}
	}
	return true
}

func (g *group) reset(ctx context.Context, req backend.Request) error {
	return change(ctx, g, "reset", func(b backend.Resetter) error { return b.Reset(ctx, req) })
}

func (g *group) grant(ctx context.Context, req backend.Request, extra int64) error {
	return change(ctx, g, "grant", func(b backend.Granter) error { return b.Grant(ctx, req, extra) })
}

func (g *group) seed(ctx context.Context, req backend.Request, st state.State) error {
	return change(ctx, g, "seed", func(b backend.Seeder) error { return b.Seed(ctx, req, st) })
}

func (g *group) seal(ctx context.Context, req backend.Request) (sealed backend.Snapshot, err error) {
	err = change(ctx, g, "seal", func(b backend.Sealer) (err error) {
		sealed, err = b.Seal(ctx, req)
		return err
	})
	if err != nil {
		return backend.Snapshot{}, err
	}
	sealed.Source = asPrimary(sealed.Source)
	return sealed, nil
}

// asPrimary says what a memory is here: the primary of a group. Other backends name their source themselves.
func asPrimary(s backend.Source) backend.Source {
	if s == backend.Local || s == backend.Unknown {
		return backend.Primary
	}
	return s
}

// Reads go to a replica, another one, then the primary.

func (g *group) peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	limited, cancel := context.WithTimeout(ctx, g.readTimeout)
	defer cancel()
	if loaded, ok := g.loadFromReplica(limited, req); ok {
		return loaded.Peek(&req), nil
	}
	switch g.primary.backend.(type) {
	case backend.Peeker, backend.Loader:
	default:
		return backend.Result{}, backend.ErrUnsupported
	}
	var result backend.Result
	tracing.Visit(req.Trace, g.name, g.primary.name, backend.Primary)
	err := g.primary.call(limited, read, "peek", func() (err error) {
		result, err = backend.Peek(limited, g.primary.backend, req)
		return err
	})
	if err != nil {
		return backend.Result{}, g.primary.asTimeout(ctx, "peek", err)
	}
	result.Source = asPrimary(result.Source)
	result.Lower(g.primary.promotionDoubt(req.Policy))
	if g.primary.demoted() {
		result.Source = backend.Replica
		if result.Allowed {
			result.Lower(backend.ErrReplicaMayLag)
		}
	}
	return result, nil
}

func (g *group) load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	limited, cancel := context.WithTimeout(ctx, g.readTimeout)
	defer cancel()
	if loaded, ok := g.loadFromReplica(limited, req); ok {
		return loaded, nil
	}
	return g.loadFromPrimary(ctx, limited, req)
}

func (g *group) loadFromPrimary(ctx, limited context.Context, req backend.Request) (backend.Snapshot, error) {
	tracing.Visit(req.Trace, g.name, g.primary.name, backend.Primary)
	loaded, err := g.primary.load(limited, req)
	if err != nil {
		return backend.Snapshot{}, g.primary.asTimeout(ctx, "load", err)
	}
	loaded.Source = asPrimary(loaded.Source)
	loaded.Lacks = errors.Join(loaded.Lacks, g.primary.promotionDoubt(req.Policy))
	if g.primary.demoted() {
		loaded.Source = backend.Replica
	}
	return loaded, nil
}

// loadFromReplica tries up to two replicas. It is not ok if none answered; their breakers know why.
func (g *group) loadFromReplica(ctx context.Context, req backend.Request) (backend.Snapshot, bool) {
	for _, n := range g.pickReplicas() {
		if n == nil || ctx.Err() != nil {
			break
		}
		tracing.Visit(req.Trace, g.name, n.name, backend.Replica)
		deadline, _ := ctx.Deadline()
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2) // leaves time for another node
		loaded, err := n.load(half, req)
		cancel()
		if err != nil {
			continue
		}
		loaded.Source = backend.Replica
		if now := control.NowMicros(g.primary.backend); now != 0 { // the clock by which the primary charges
			loaded.Now = now
		}
		return loaded, true
	}
	return backend.Snapshot{}, false
}

// pickReplicas returns the replica to read and the one to try next, or nil: of two random ones the one that is expected to
// answer sooner, then the other. Two choices spread load nearly as well as a comparison of all, and don't send every caller to the
// same replica (Mitzenmacher: The Power of Two Choices in Randomized Load Balancing, 2001).
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
