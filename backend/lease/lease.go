package lease

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// LeaseConfig configures a Lease. The zero value of each field is a documented default.
type Config struct {
	// Processes is how many processes hold leases on the same keys: a batch is at most half of what remains of a limit,
	// divided by it. Zero: 10.
	Processes int

	// Batch is the first size of a key's batches, which then follow the demand. Zero: a thousandth of the smallest limit
	// of the key's policy, at least 1. Negative: no leases, only the local view.
	Batch int64

	// Steady keeps batches at their first size; near the end of a limit they shrink all the same.
	Steady bool

	// Life is how long a lease is held at most, and how recently a key must have been asked for to be given one. What is
	// left then goes back. On a token bucket no lease lives longer than state.MaxBucketLease. Zero: 5 s.
	Life time.Duration

	// Recheck is how often, in spite of a denial that the local view can tell, one request is sent all the same: a refund
	// or a reset by another process may have made room. Zero: 1 s. Negative: no denials by the local view.
	Recheck time.Duration

	// MaxKeys bounds of how many keys a view is kept, about; one takes some 700 bytes, and at most some 900. Zero: 65,536.
	MaxKeys int

	// Now replaces the clock, for tests. It measures spans of time only. Nil: the monotonic clock of the process, and the
	// wall clock to notice that the host was suspended.
	Now func() time.Time
}

const (
	defaultLeaseProcesses = 10
	defaultLeaseLife      = 5 * time.Second
	defaultLeaseRecheck   = time.Second
	defaultLeaseKeys      = 1 << 16
	firstShare            = 1000 // of the smallest limit is the first batch
)

func (c Config) withDefaults() Config {
	if c.Processes == 0 {
		c.Processes = defaultLeaseProcesses
	}
	if c.Life == 0 {
		c.Life = defaultLeaseLife
	}
	if c.Recheck == 0 {
		c.Recheck = defaultLeaseRecheck
	}
	if c.MaxKeys == 0 {
		c.MaxKeys = defaultLeaseKeys
	}
	return c
}

func (c Config) validate(inner backend.Backend) error {
	errs := fielderrors.List{Prefix: "lease: "}
	if typednil.Is(inner) {
		errs.Add("inner", typednil.Name(inner), "must not be nil")
	} else if _, refunds := inner.(backend.Refunder); !refunds && c.Batch >= 0 {
		errs.Add("inner", reflect.TypeOf(inner), "must be a Refunder, to take back what is left of a lease")
	}
	fielderrors.NotNegative(&errs, "Processes", c.Processes)
	if c.Batch > limit.MaxCount {
		errs.Add("Batch", c.Batch, fmt.Sprintf("must be at most %d", limit.MaxCount))
	}
	if c.Life < 0 || c.Life > limit.MaxWindow {
		errs.Add("Life", c.Life, fmt.Sprintf("must be from 0 to %s", limit.MaxWindow))
	}
	if c.Recheck > limit.MaxWindow {
		errs.Add("Recheck", c.Recheck, fmt.Sprintf("must be at most %s", limit.MaxWindow))
	}
	fielderrors.NotNegative(&errs, "MaxKeys", c.MaxKeys)
	return errs.Err()
}

// Lease answers most requests without a call. Of keys that are in use it keeps, in bounded memory, a local view:
//
//   - what is known of the key. A request that this denies is denied here: in a window counts only grow, so that the
//     view, like a replica, may be behind but not wrong. Each take that goes on carries it as its floor;
//   - a lease: a batch that was charged in advance, from which requests are admitted here.
//
// A lease is charged before any of it is spent, and is spent only within the window, or the sub-bucket, that it was
// charged to, so that no window holds more than its Max. A token bucket has no windows: its bound grows by the leases on
// it, each of at most a second; such decisions are [backend.Bounded], with the cause [backend.ErrBucketLeased]. What a process has
// leased and not spent, others are denied: at most the batch less one for each process. It goes back after
// LeaseConfig.Life and on Close; a return that certainly was not sent is tried again for as long as it counts, one of unknown
// outcome never. A process that dies takes it along until the window ends.
//
// A lease ends early by what the decider's clock may be ahead of what is known of it ([Result.Behind]), and a host that was
// suspended meanwhile spends none of it. What is left of it when a reply, of any key, tells that counts were lost is spent as
// Bounded if they may be this key's.
//
// A batch that is spent fast has its successor fetched before it is used up, so that nobody waits for that; both together
// are no more than a batch. A request that doesn't fit into a batch goes straight on, as do those of keys that aren't in
// use. Keys of more than 200 bytes are not leased: a view keeps a digest of them, which is enough to deny. After a Reset, which gives everything back, other processes may still spend the leases that they hold.
//
// Put the Lease outermost: it may hold a Router or a Dual, but neither may hold it. It owns what it holds: Close closes
// it. Batches held locally, and one fetch at a time, are Rockset's ideas ("How we improved the concurrency and
// scalability of our Redis rate limiting system").
type Lease struct {
	cfg    Config
	inner  backend.Backend
	clock  func() int64 // nanoseconds since whenever
	seed   maphash.Seed
	shift  int // the shard is what remains of a hash after this shift
	shards []shard

	lostAt  atomic.Int64 // when a reply said last that counts may be missing, if not of which keys
	closed  atomic.Bool
	stop    chan struct{}
	wake    chan struct{}  // that something is to be given back
	running sync.WaitGroup // fetches, and the goroutine that gives back
}

var (
	_ backend.Backend  = (*Lease)(nil)
	_ backend.Peeker   = (*Lease)(nil)
	_ backend.Refunder = (*Lease)(nil)
	_ backend.Resetter = (*Lease)(nil)
	_ backend.Pinger   = (*Lease)(nil)
	_ backend.Loader   = (*Lease)(nil)
	_ backend.Seeder   = (*Lease)(nil)
	_ backend.Doubter  = (*Lease)(nil)
)

// LeaseStats is what a Lease has done so far, and what it holds.
type Stats struct {
	Leased   int64 // takes admitted from a lease, without a call of their own
	Denied   int64 // takes denied by the local view, without a call
	Straight int64 // takes that went on
	Fetches  int64 // batches asked for
	Returned int64 // cost of leases that went back
	Lost     int64 // cost of batches that was charged, perhaps, and is in no lease nor back: it counts until its windows end
	Stranded int64 // cost that is leased now and not spent, or waits to go back
	Keys     int   // of which a view is kept
}

// NewLease returns a Lease over inner, which it owns from then on.
func New(inner backend.Backend, cfg Config) (*Lease, error) {
	if err := cfg.validate(inner); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	width := hashtable.ShardBits(cfg.MaxKeys)
	l := &Lease{
		cfg: cfg, inner: inner, seed: maphash.MakeSeed(), shift: 64 - width, shards: make([]shard, 1<<width),
		stop: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	for i := range l.shards {
		l.shards[i].lease = l
		l.shards[i].steady, l.shards[i].wake = cfg.Steady, l.wake
		l.shards[i].max = (cfg.MaxKeys + len(l.shards) - 1) / len(l.shards)
	}
	l.lostAt.Store(math.MinInt64)
	l.clock = newSpanClock().now
	if cfg.Now != nil {
		l.clock = func() int64 { return cfg.Now().UnixNano() }
	}
	l.running.Go(l.sweep)
	return l, nil
}

// Take implements [backend.Backend].
func (l *Lease) Take(ctx context.Context, req backend.Request) (result backend.Result, err error) {
	if err := l.refuse(req.CheckTake(ctx)); err != nil {
		return result, err
	}
	s, hash, name := l.shardOf(&req)
	now := l.clock()
	s.mu.Lock()
	c := s.cells.Find(hash, name.Policy.Name, name.Key)
	if c == nil || req.Floor != nil || req.Move != (state.Move{}) { // who asks may know more than the view
		return l.askLocked(ctx, s, hash, name, &req, req.Floor)
	}
	v := &c.Value
	hot := now-v.seen < int64(l.cfg.Life)
	v.seen, v.used = now, true
	if s.spendLocked(c, &req, now, &result) {
		if v.batch.left < v.batch.low {
			l.fetchAheadLocked(ctx, s, c, now)
		}
		s.mu.Unlock()
		return result, nil
	}
	denied := l.cfg.Recheck >= 0 && v.wouldDenyLocked(&req, now, &result)
	if denied && !v.doubt && now < v.recheck {
		s.stats.Denied++
		s.mu.Unlock()
		return result, nil
	}
	v.recheck = now + int64(l.cfg.Recheck)
	var asked backend.Result
	if denied && !v.doubt { // this one asks, the others need not
		asked, err = l.askLocked(ctx, s, hash, name, &req, v.floorLocked())
	} else {
		asked, err = l.sendLocked(ctx, s, c, hash, name, &req, hot, now)
	}
	if err != nil && denied {
		return result, nil // no failure policy knows better
	}
	return asked, err
}

// Peek implements [backend.Peeker]; [backend.ErrUnsupported] if what the Lease holds can't. What others have leased counts as used.
func (l *Lease) Peek(ctx context.Context, req backend.Request) (result backend.Result, err error) {
	peeker, ok := l.inner.(backend.Peeker)
	if err := l.refuse(req.CheckTake(ctx)); err != nil {
		return result, err
	}
	if !ok {
		return result, backend.ErrUnsupported
	}
	s, hash, name := l.shardOf(&req)
	s.mu.Lock()
	if c, now := s.cells.Find(hash, name.Policy.Name, name.Key), l.clock(); c != nil && l.knowsLocked(s, c, &req, now, &result) {
		s.mu.Unlock()
		return result, nil
	}
	s.mu.Unlock()
	return peeker.Peek(ctx, req)
}

// knowsLocked looks without a call, where a take would need none.
func (l *Lease) knowsLocked(s *shard, c *hashtable.Cell[view], req *backend.Request, now int64, result *backend.Result) bool {
	v := &c.Value
	if s.readyLocked(c, req, now) {
		result.Verdict = v.batch.charged.Offer(v.batch.left)
		s.vouchLocked(v, req, now, result)
		return true
	}
	return l.cfg.Recheck >= 0 && now < v.recheck && v.denyLocked(req, now, result)
}

// Refund implements [backend.Refunder].
func (l *Lease) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	refunder, ok := l.inner.(backend.Refunder)
	if err := l.refuse(req.Check(ctx)); err != nil {
		return err
	}
	if !ok {
		return backend.ErrUnsupported
	}
	if amount = receipt.Refundable(amount); amount < 1 {
		return nil
	}
	s, hash, name := l.shardOf(&req)
	s.mu.Lock()
	c := s.cells.Find(hash, name.Policy.Name, name.Key)
	unspent := c != nil && c.Value.unspendLocked(&receipt, amount, l.clock())
	s.mu.Unlock()
	if unspent {
		return nil
	}
	err := refunder.Refund(ctx, req, receipt, amount)
	l.recheck(s, hash, name, err)
	return err
}

// recheck is for what has been given back, or may have been, as its error tells: it lets requests be sent in spite of what the view denies, because room was made, until an answer comes. The view itself learns of
// it by an answer only: its state is changed by joining others, never by doing to it what was done elsewhere, for one that
// has been joined since may have it already.
func (l *Lease) recheck(s *shard, hash uint64, name *backend.Request, err error) {
	if err != nil && nothingDone(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.cells.Find(hash, name.Policy.Name, name.Key); c != nil {
		c.Value.recheck, c.Value.resets, c.Value.doubt = 0, 0, true
	}
}

// Reset implements [backend.Resetter]; [backend.ErrUnsupported] if what the Lease holds can't. It drops this process's lease on the key.
func (l *Lease) Reset(ctx context.Context, req backend.Request) error {
	resetter, ok := l.inner.(backend.Resetter)
	if err := l.refuse(req.Check(ctx)); err != nil {
		return err
	}
	if !ok {
		return backend.ErrUnsupported
	}
	s, hash, name := l.shardOf(&req)
	s.mu.Lock()
	if c := s.cells.Find(hash, name.Policy.Name, name.Key); c != nil {
		s.endAllLocked(c, l.clock())
		c.Value.fetch = nil // what it brings goes back
	}
	s.mu.Unlock()
	err := resetter.Reset(ctx, req)
	l.recheck(s, hash, name, err)
	return err
}

// Ping implements [backend.Pinger].
func (l *Lease) Ping(ctx context.Context) error {
	if l.closed.Load() {
		return backend.ErrClosed
	}
	if ctx == nil {
		return backend.ErrNilContext
	}
	if pinger, ok := l.inner.(backend.Pinger); ok {
		return pinger.Ping(ctx)
	}
	return ctx.Err()
}

// Load implements [backend.Loader]; [backend.ErrUnsupported] if what the Lease holds can't.
func (l *Lease) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	loader, ok := l.inner.(backend.Loader)
	if err := l.refuse(req.Check(ctx)); err != nil {
		return backend.Snapshot{}, err
	}
	if !ok {
		return backend.Snapshot{}, backend.ErrUnsupported
	}
	return loader.Load(ctx, req)
}

// Seed implements [backend.Seeder]; [backend.ErrUnsupported] if what the Lease holds can't.
func (l *Lease) Seed(ctx context.Context, req backend.Request, st state.State) error {
	seeder, ok := l.inner.(backend.Seeder)
	if err := l.refuse(req.Check(ctx)); err != nil {
		return err
	}
	if !ok {
		return backend.ErrUnsupported
	}
	return seeder.Seed(ctx, req, st)
}

// Doubt implements [backend.Doubter].
func (l *Lease) Doubt(req backend.Request) error { return backend.DoubtOf(l.inner, req) }

// Stats returns what the Lease has done so far, and what it holds.
func (l *Lease) Stats() Stats {
	var sum Stats
	now := l.clock()
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		sum.Leased += s.stats.Leased
		sum.Denied += s.stats.Denied
		sum.Straight += s.stats.Straight
		sum.Fetches += s.stats.Fetches
		sum.Returned += s.stats.Returned
		sum.Lost += s.stats.Lost
		sum.Keys += s.cells.Len
		sum.Stranded += s.owed
		for _, slot := range s.cells.Slots {
			if slot.Cell != nil {
				sum.Stranded += slot.Cell.Value.heldLocked(now)
			}
		}
		s.mu.Unlock()
	}
	return sum
}

// Close gives back what is leased, for at most some seconds, and closes what the Lease holds.
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
	l.running.Wait()
	l.giveBackAll()
	return l.inner.Close()
}

// refuse is err, or that the Lease is closed.
func (l *Lease) refuse(err error) error {
	if l.closed.Load() {
		return backend.ErrClosed
	}
	return err
}

// shard also returns the request by which what is kept of the key is found.
func (l *Lease) shardOf(req *backend.Request) (s *shard, hash uint64, name *backend.Request) {
	if name = req; len(req.Key) > keyhash.Longest {
		name = &backend.Request{Key: keyhash.Kept(req.Key), Policy: req.Policy}
	}
	hash = maphash.String(l.seed, name.Key)
	return &l.shards[hash>>l.shift], hash, name
}
