package lease

import (
	"context"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/outcome"
	"github.com/sluice-go/sluice/limit/state"
)

// Lease answers most requests without a call. For each key in use it keeps a local view, in bounded memory:
//
//   - the last known state. A request that it denies is denied locally: within a window counts only grow, so the view, like
//     a replica, may lag but is never too high. Each forwarded take carries the state as its floor;
//   - a lease: a batch that was charged in advance, from which requests are admitted locally.
//
// A lease is charged before any of it is spent. It is spent only within the window, or the sub-bucket, that it was charged
// to, so leases never exceed a window's Max. A token bucket has no windows: its bound grows by the leases on it, each of at
// most a second, and their decisions are [backend.Bounded] with the cause [backend.ErrBucketLeased]. The unspent part of a
// lease is unavailable to other processes: at most the batch less one for each process. A lease lives to the end of its
// window, or until half of what remained of the limit is used up at the rate so far, but not less than Config.Life. The rest
// is returned then, unless it counts for moments only, and on Close. A return that certainly was not sent is retried for as
// long as it counts; a return of unknown outcome is not. The unspent leases of a process that dies count until their windows
// end.
//
// A lease ends early by as much as the server's clock may be ahead of its known reading ([backend.Result.Behind]). A lease
// that spans a suspension of the host is not spent. When a reply for any key reports lost counts, leases on keys that the
// loss may concern are spent as Bounded.
//
// The successor of a batch that is spent fast is prefetched, so that no request waits for it; both together are at most one
// batch. A request that doesn't fit into a batch is forwarded, as are requests for keys not recently used. Keys longer than
// 200 bytes are not leased: their views keep a digest, which suffices to deny. After a Reset other processes may still spend
// the leases that they hold.
//
// Put the Lease outermost: it may hold a Router or a Dual, but neither may hold it. The Lease owns its inner backend: Close
// closes both. Local batches with one fetch at a time are Rockset's idea ("How we improved the concurrency and scalability
// of our Redis rate limiting system").
type Lease struct {
	cfg    Config
	inner  backend.Backend
	clock  func() int64 // nanoseconds since an arbitrary time
	jumped func() int64 // nanoseconds of that which the wall clock jumped forward: a step, or a suspension
	seed   maphash.Seed
	shift  int // a hash shifted right by this is the index of its shard
	shards []shard

	bound *BoundError // of what is on credit
	cause error       // the bound if Config.Slack is set: no admission is exact

	lostAt    atomic.Int64    // when a reply last reported that counts of some keys may be missing
	uncharged atomic.Bool     // the inner backend is closed: nothing more is admitted on credit
	flushing  context.Context // of flushes
	flushes   *callSlots
	abandon   context.CancelFunc
	closed    atomic.Bool
	stop      chan struct{}
	wake      chan struct{}  // signals a pending return
	running   sync.WaitGroup // fetches, flushes, and the goroutines that send returns and flushes
}

var (
	_ backend.Backend  = (*Lease)(nil)
	_ backend.Peeker   = (*Lease)(nil)
	_ backend.Refunder = (*Lease)(nil)
	_ backend.Charger  = (*Lease)(nil)
	_ backend.Resetter = (*Lease)(nil)
	_ backend.Granter  = (*Lease)(nil)
	_ backend.Pinger   = (*Lease)(nil)
	_ backend.Loader   = (*Lease)(nil)
	_ backend.Seeder   = (*Lease)(nil)
	_ backend.Doubter  = (*Lease)(nil)
)

// New returns a Lease over inner, and owns inner from then on.
func New(inner backend.Backend, cfg Config) (*Lease, error) {
	if err := cfg.validate(inner); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	width, most := hashtable.Shards(cfg.MaxKeys)
	l := &Lease{
		cfg: cfg, inner: inner, seed: maphash.MakeSeed(), shift: 64 - width, shards: make([]shard, 1<<width),
		stop: make(chan struct{}), wake: make(chan struct{}, 1), flushes: newCallSlots(maxFlushes),
	}
	for i := range l.shards {
		l.shards[i].lease, l.shards[i].max = l, most
		l.shards[i].steady, l.shards[i].wake = cfg.Steady, l.wake
	}
	l.bound = &BoundError{Slack: cfg.Slack, Processes: cfg.Processes, Least: cfg.Least}
	if cfg.Slack > 0 {
		l.cause = l.bound
	}
	l.flushing, l.abandon = context.WithCancel(context.Background())
	l.lostAt.Store(math.MinInt64)
	span := newSpanClock()
	l.clock, l.jumped = span.now, span.extra.Load
	if cfg.Now != nil {
		l.clock = func() int64 { return cfg.Now().UnixNano() }
		l.jumped = func() int64 { return 0 }
	}
	l.running.Go(l.sweep)
	if cfg.Slack > 0 {
		l.running.Go(l.flushLoop)
	}
	return l, nil
}

// Take implements [backend.Backend].
func (l *Lease) Take(ctx context.Context, req backend.Request) (result backend.Result, err error) {
	if err := l.checkOpen(req.CheckTake(ctx)); err != nil {
		return result, err
	}
	s, hash, name := l.shardOf(&req)
	now := l.clock()
	s.mu.Lock()
	c := s.cells.Find(hash, name.Policy.Name, name.Key)
	if c == nil || req.Floor != nil || req.Move != (state.Move{}) { // the caller may know more than the view
		return l.forwardLocked(ctx, s, hash, name, &req, req.Floor)
	}
	v := &c.Value
	idle := now - v.lastUse
	v.lastUse, v.referenced = now, true
	if s.spendLocked(c, &req, now, &result) {
		if v.batch.left < v.batch.prefetchBelow {
			l.prefetchLocked(ctx, s, c, now)
		}
		s.mu.Unlock()
		return result, nil
	}
	if s.oweLocked(c, &req, now, &result) {
		l.flushAheadLocked(s, c, req.Cost, now)
		s.mu.Unlock()
		return result, nil
	}
	denied := l.cfg.Recheck >= 0 && v.wouldDenyLocked(&req, now, &result)
	if denied && !v.doubt && now < v.recheck {
		s.stats.Denied++
		s.mu.Unlock()
		return result, nil
	}
	if l.cfg.Slack > 0 && !denied && s.renewLocked(c, &req, now) && s.oweLocked(c, &req, now, &result) {
		s.mu.Unlock()
		return result, nil
	}
	v.recheck = now + int64(l.cfg.Recheck)
	var forwarded backend.Result
	if denied && !v.doubt { // only this request is forwarded
		forwarded, err = l.forwardLocked(ctx, s, hash, name, &req, v.floorLocked())
	} else {
		forwarded, err = l.fetchOrForwardLocked(ctx, s, c, hash, name, &req, idle, now)
	}
	if err != nil && denied {
		return result, nil // the local denial is better than a failure policy
	}
	return forwarded, err
}

// Peek implements [backend.Peeker]; it fails with [backend.ErrUnsupported] if the inner backend can't peek. Leases of
// other processes count as used.
func (l *Lease) Peek(ctx context.Context, req backend.Request) (result backend.Result, err error) {
	if err := l.checkOpen(req.CheckTake(ctx)); err != nil {
		return result, err
	}
	s, hash, name := l.shardOf(&req)
	s.mu.Lock()
	if c, now := s.cells.Find(hash, name.Policy.Name, name.Key), l.clock(); c != nil && l.peekLocked(s, c, &req, now, &result) {
		s.mu.Unlock()
		return result, nil
	}
	s.mu.Unlock()
	if result, err = backend.Peek(ctx, l.inner, req); err == nil && result.Allowed {
		result.Lower(l.cause)
	}
	return result, err
}

// peekLocked answers from the view if a take would.
func (l *Lease) peekLocked(s *shard, c *hashtable.Cell[view], req *backend.Request, now int64, result *backend.Result) bool {
	v := &c.Value
	if s.canSpendLocked(c, req, now) {
		result.Verdict = v.batch.charged.Offer(v.batch.left)
		s.fillResultLocked(v, req, now, result)
		return true
	}
	if d := v.debt; d != nil && d.coversLocked(req, now) {
		g := &d.segments[d.current]
		result.Verdict, result.Now, result.Behind = g.offer.Offer(1-d.owed), v.serverAt(now), time.Duration(v.serverBehind)
		result.Source, result.Guarantee, result.Cause = backend.OnCredit, backend.Bounded, g.cause
		return true
	}
	return l.cfg.Recheck >= 0 && now < v.recheck && v.denyLocked(req, now, result)
}

// Charge implements [backend.Charger]; it fails with [backend.ErrUnsupported] if the inner backend can't charge. Leases stay: they
// are charged already.
func (l *Lease) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	if err := l.checkOpen(req.CheckCharge(ctx)); err != nil {
		return backend.Result{}, err
	}
	if _, ok := l.inner.(backend.Charger); !ok {
		return backend.Result{}, backend.ErrUnsupported
	}
	s, hash, name := l.shardOf(&req)
	if req.Floor == nil && req.Move == (state.Move{}) {
		s.mu.Lock()
		if c := s.cells.Find(hash, name.Policy.Name, name.Key); c != nil {
			req.Floor = c.Value.floorLocked()
		}
		s.mu.Unlock()
	}
	sentAt := l.clock()
	result, err := backend.Charge(ctx, l.inner, req, mark)
	if err != nil {
		return result, err
	}
	result.Lower(l.cause)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.clock()
	l.recordLoss(&result, now)
	if c := s.cells.Find(hash, name.Policy.Name, name.Key); c != nil {
		s.mergeChargeLocked(&c.Value, &req, &result, sentAt)
	}
	return result, nil
}

// Ping implements [backend.Pinger].
func (l *Lease) Ping(ctx context.Context) error {
	if l.closed.Load() {
		return backend.ErrClosed
	}
	if ctx == nil {
		return fielderrors.ErrNilContext
	}
	return backend.Ping(ctx, l.inner)
}

// Load implements [backend.Loader]; it fails with [backend.ErrUnsupported] if the inner backend can't load.
func (l *Lease) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := l.checkOpen(req.Check(ctx)); err != nil {
		return backend.Snapshot{}, err
	}
	return backend.Load(ctx, l.inner, req)
}

// Seed implements [backend.Seeder]; it fails with [backend.ErrUnsupported] if the inner backend can't seed.
func (l *Lease) Seed(ctx context.Context, req backend.Request, st state.State) error {
	if err := l.checkOpen(req.Check(ctx)); err != nil {
		return err
	}
	s, hash, name := l.shardOf(&req)
	err := backend.Seed(ctx, l.inner, req, st)
	l.recheck(s, hash, name, err)
	l.learn(s, hash, name, &req, &st, err)
	return err
}

// learn merges a state that was seeded, as err tells, into the view: otherwise the key would be on credit as if nothing had
// been.
func (l *Lease) learn(s *shard, hash uint64, name, req *backend.Request, st *state.State, err error) {
	if err != nil && outcome.NothingExecuted(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.cells.Find(hash, name.Policy.Name, name.Key); c != nil && c.Value.serverMicros != 0 && !c.Value.stateless {
		v := &c.Value
		v.state.Join(req.Policy, v.at(req, l.clock()), st)
		if v.debt != nil {
			v.debt.stale = true
		}
	}
}

// Doubt implements [backend.Doubter].
func (l *Lease) Doubt(req backend.Request) error { return backend.Doubt(l.inner, req) }

// Close returns unspent leases and charges what is owed, for at most 5 s, and closes the inner backend. What could not be charged
// is in Stats.LostCharges.
func (l *Lease) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	for i := range l.shards { // no fetch begins after this
		s := &l.shards[i]
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	}
	close(l.stop)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	context.AfterFunc(ctx, l.abandon)
	l.running.Wait()
	var busy sync.WaitGroup
	busy.Go(func() { l.flushAtClose(ctx) })
	l.returnAll(ctx)
	busy.Wait()
	return l.inner.Close()
}

// checkOpen returns ErrClosed if the Lease is closed, and otherwise err.
func (l *Lease) checkOpen(err error) error {
	if l.closed.Load() {
		return backend.ErrClosed
	}
	return err
}

// shardOf also returns the request that names the key's cell: for a long key, one with its digest.
func (l *Lease) shardOf(req *backend.Request) (s *shard, hash uint64, name *backend.Request) {
	if name = req; len(req.Key) > keyhash.Longest {
		name = &backend.Request{Key: keyhash.Kept(req.Key), Policy: req.Policy}
	}
	hash = maphash.String(l.seed, name.Key)
	return &l.shards[hash>>l.shift], hash, name
}
