package memory

import (
	"cmp"
	"context"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/limit/state"
)

// Config configures a Memory. The zero value is ready to use.
type Config struct {
	// MaxKeys bounds, approximately, how many keys are kept: the bound holds per shard. A key with one limit takes about 250
	// bytes, and at most about 450: a key longer than 200 bytes is stored as a digest. Keys whose windows are over are evicted
	// first. A full Memory that finds none among the few keys it samples evicts the live key that ends soonest, and decisions
	// that this may have loosened are Bounded. Zero: 1,048,576. Negative: no bound.
	MaxKeys int

	// Now replaces the clock, for tests. Nil: the monotonic clock of the process.
	Now func() time.Time
}

const defaultMaxKeys = 1 << 20

// Memory counts in this process. It is exact for one process, bounded in memory, and allocates only when it meets
// a new key. It starts no goroutine: each new key sweeps a few expired ones.
type Memory struct {
	now    func() int64
	seed   maphash.Seed
	shift  int // a hash shifted right by this is the index of its shard
	shards []shard
	closed atomic.Bool

	mu        sync.Mutex // guards published
	published control.Announcement
}

var (
	_ backend.Backend   = (*Memory)(nil)
	_ backend.Peeker    = (*Memory)(nil)
	_ backend.Refunder  = (*Memory)(nil)
	_ backend.Charger   = (*Memory)(nil)
	_ backend.Resetter  = (*Memory)(nil)
	_ backend.Granter   = (*Memory)(nil)
	_ backend.Pinger    = (*Memory)(nil)
	_ backend.Loader    = (*Memory)(nil)
	_ backend.Seeder    = (*Memory)(nil)
	_ backend.Sealer    = (*Memory)(nil)
	_ control.Publisher = (*Memory)(nil)
	_ control.Clock     = (*Memory)(nil)
	_ backend.Doubter   = (*Memory)(nil)
)

type shard struct {
	mu    sync.Mutex // guards all below
	cells hashtable.Table[entry]
	max   int   // 0 if unbounded
	lost  int64 // until when the counts of a key that was evicted alive would have counted, Unix microseconds

	_ [64]byte // shards don't share cache lines, nor those that processors fetch in pairs
}

// entry is the value of one key: with the rest of its cell it fills a cache line.
type entry struct {
	state state.State
	doubt int64 // until when counts from before an eviction of this key may be missing, Unix microseconds
}

// New returns an empty Memory.
func New(cfg Config) (*Memory, error) {
	width, most := hashtable.Shards(cmp.Or(cfg.MaxKeys, defaultMaxKeys))
	m := &Memory{seed: maphash.MakeSeed(), shift: 64 - width, shards: make([]shard, 1<<width)}
	for i := range m.shards {
		m.shards[i].max = most
	}
	if cfg.Now != nil {
		m.now = func() int64 { return cfg.Now().UnixMicro() }
	} else {
		clock := newProcessClock()
		m.now = clock.now
	}
	return m, nil
}

// Take implements [backend.Backend].
func (m *Memory) Take(ctx context.Context, req backend.Request) (r backend.Result, err error) {
	if err := m.checkOpen(req.CheckTake(ctx)); err != nil {
		return r, err
	}
	key := req.Key
	shard, hash := m.shardOf(&req) // before the clock is read, which leaves time to fetch the key: 0.94 of a take's time
	at := state.Moment(req.Policy, key, m.now())
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	if _, err := c.state.Arrive(req.Policy, at, req.Move, req.Floor, true); err != nil {
		return r, err
	}
	c.state.TakeTo(&r.Verdict, req.Policy, at, req.Cost)
	c.fillResult(&r, at)
	return r, nil
}

// Charge implements [backend.Charger].
func (m *Memory) Charge(ctx context.Context, req backend.Request, mark state.Mark) (r backend.Result, err error) {
	if err := m.checkOpen(req.CheckCharge(ctx)); err != nil {
		return r, err
	}
	shard, hash := m.shardOf(&req)
	at := state.Moment(req.Policy, req.Key, m.now())
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	if _, err := c.state.Arrive(req.Policy, at, req.Move, req.Floor, true); err != nil {
		return r, err
	}
	r.Verdict = c.state.Charge(req.Policy, at, mark, req.Cost)
	c.fillResult(&r, at)
	return r, nil
}

// Peek implements [backend.Peeker].
func (m *Memory) Peek(ctx context.Context, req backend.Request) (r backend.Result, err error) {
	if err := m.checkOpen(req.CheckTake(ctx)); err != nil {
		return r, err
	}
	at := state.Moment(req.Policy, req.Key, m.now())
	shard, hash := m.shardOf(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findLocked(hash, &req)
	r.Verdict = c.state.Peek(req.Policy, at, req.Cost)
	c.fillResult(&r, at)
	r.Lower(c.state.Moved(at))
	return r, nil
}

// fillResult sets when and by whom the decision was made, and its guarantee.
func (c *entry) fillResult(r *backend.Result, at state.At) {
	r.Now, r.Source = at.Micros, backend.Local
	if cause := c.lacks(at.Micros); cause != nil {
		r.Lower(cause)
	}
}

// lacks says why counts may be missing at a time, in Unix microseconds; nil if none are.
func (c *entry) lacks(now int64) error {
	if now < c.doubt {
		return backend.ErrEvicted
	}
	return nil
}

// Refund implements [backend.Refunder].
func (m *Memory) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	return m.update(ctx, &req, func(s *state.State, at state.At) { s.Refund(at, &receipt, amount) })
}

// Reset implements [backend.Resetter].
func (m *Memory) Reset(ctx context.Context, req backend.Request) error {
	return m.update(ctx, &req, func(s *state.State, at state.At) { s.Reset(req.Policy, at) })
}

// Grant implements [backend.Granter].
func (m *Memory) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if err := m.checkOpen(req.CheckGrant(ctx, extra)); err != nil {
		return err
	}
	return m.update(ctx, &req, func(s *state.State, at state.At) { s.Grant(req.Policy, at, extra) })
}

// update changes the state of a key, if there is one.
func (m *Memory) update(ctx context.Context, req *backend.Request, change func(*state.State, state.At)) error {
	if err := m.checkOpen(req.Check(ctx)); err != nil {
		return err
	}
	at := state.Moment(req.Policy, req.Key, m.now())
	shard, hash := m.shardOf(req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findLocked(hash, req)
	if _, err := c.state.Enter(at, req.Move.GiveBack()); err != nil {
		return err
	}
	change(&c.state, at)
	return nil
}

// Load implements [backend.Loader].
func (m *Memory) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := m.checkOpen(req.Check(ctx)); err != nil {
		return backend.Snapshot{}, err
	}
	snapshot := backend.Snapshot{Now: m.now(), Source: backend.Local}
	shard, hash := m.shardOf(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findLocked(hash, &req)
	snapshot.State, snapshot.Lacks = c.state.Clone(), c.lacks(snapshot.Now)
	return snapshot, nil
}

// Seed implements [backend.Seeder].
func (m *Memory) Seed(ctx context.Context, req backend.Request, st state.State) error {
	if err := m.checkOpen(req.Check(ctx)); err != nil {
		return err
	}
	at := state.Moment(req.Policy, req.Key, m.now())
	shard, hash := m.shardOf(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	_, err := c.state.Arrive(req.Policy, at, req.Move, &st, false)
	return err
}

// Seal implements [backend.Sealer].
func (m *Memory) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := m.checkOpen(req.CheckSeal(ctx)); err != nil {
		return backend.Snapshot{}, err
	}
	at := state.Moment(req.Policy, req.Key, m.now())
	shard, hash := m.shardOf(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	if _, err := c.state.Seal(at, req.Move); err != nil {
		return backend.Snapshot{}, err
	}
	return backend.Snapshot{State: c.state.Clone(), Now: at.Micros, Source: backend.Local}, nil
}

// Doubt implements [backend.Doubter].
func (m *Memory) Doubt(req backend.Request) error {
	shard, hash := m.shardOf(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.findLocked(hash, &req).lacks(m.now())
}

// Ping implements [backend.Pinger].
func (m *Memory) Ping(ctx context.Context) error {
	if m.closed.Load() {
		return backend.ErrClosed
	}
	if ctx == nil {
		return fielderrors.ErrNilContext
	}
	return ctx.Err()
}

// NowMicros implements [control.Clock].
func (m *Memory) NowMicros() int64 { return m.now() }

// Close drops all counts.
func (m *Memory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		s.cells = hashtable.Table[entry]{}
		s.mu.Unlock()
	}
	return nil
}

// checkOpen returns ErrClosed if the Memory is closed, and otherwise err.
func (m *Memory) checkOpen(err error) error {
	if m.closed.Load() {
		return backend.ErrClosed
	}
	return err
}

// shardOf returns the shard and the hash of a request's key. It replaces a long key in req by its digest.
func (m *Memory) shardOf(req *backend.Request) (*shard, uint64) {
	if len(req.Key) > keyhash.Longest {
		req.Key = keyhash.Kept(req.Key)
	}
	hash := maphash.String(m.seed, req.Key)
	return &m.shards[hash>>m.shift], hash
}

// findLocked returns the entry of a key, or an empty one that is not stored.
func (s *shard) findLocked(hash uint64, req *backend.Request) *entry {
	if c := s.cells.Find(hash, req.Policy.Name, req.Key); c != nil {
		return &c.Value
	}
	return &entry{doubt: s.lost}
}

func (s *shard) findOrAddLocked(hash uint64, req *backend.Request, nowMicros int64) *entry {
	c := s.cells.Find(hash, req.Policy.Name, req.Key)
	if c == nil {
		s.sweepLocked(nowMicros)
		c = hashtable.NewCell[entry](req.Policy.Name, req.Key)
		c.Value.doubt = s.lost
		s.cells.Add(hash, c)
	}
	return &c.Value
}

const (
	sweepSlots     = 8  // visits more than one cell for each new key, so that expired ones can't pile up
	evictionSample = 16 // cells that a full shard compares to evict the one that ends soonest
)

// sweepLocked makes room for one more cell: it removes some whose windows are over and, if the shard is still full,
// evicts a live one.
func (s *shard) sweepLocked(nowMicros int64) {
	for range min(sweepSlots, s.cells.Cap()) {
		if slot, c := s.cells.Next(); c != nil && c.Value.state.Until() <= nowMicros {
			s.cells.Remove(slot)
		}
	}
	if s.max == 0 || s.cells.Len < s.max {
		return
	}
	victim, soonest := 0, int64(math.MaxInt64)
	for seen := 0; seen < min(evictionSample, s.cells.Len); {
		if slot, c := s.cells.Next(); c != nil {
			if seen++; c.Value.state.Until() < soonest {
				victim, soonest = slot, c.Value.state.Until()
			}
		}
	}
	if soonest > nowMicros {
		s.lost = max(s.lost, soonest)
	}
	s.cells.Remove(victim)
}
