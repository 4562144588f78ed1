package backend

import (
	"context"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/limit/state"
)

// MemoryConfig configures a Memory. The zero value is ready to use.
type MemoryConfig struct {
	// MaxKeys bounds how many keys are remembered, about: the bound is kept per shard. A key takes some 250 bytes
	// for one limit, and at most some 450: of one longer than 200 bytes a digest is kept. Keys whose windows are over are forgotten first; a full Memory that meets none among the few
	// it looks at forgets a live one, that which ends soonest, and decisions that this may have loosened say Bounded.
	// Zero: 1,048,576. Negative: no bound.
	MaxKeys int

	// Now replaces the clock, for tests. Nil: the monotonic clock of the process.
	Now func() time.Time
}

const defaultMaxKeys = 1 << 20

// Memory counts in this process. It is exact for one process, bounded in memory, and allocates only when it meets
// a new key. It starts no goroutine: expired keys are swept a few at a time whenever a new key comes.
type Memory struct {
	now    func() int64
	seed   maphash.Seed
	shift  int // the shard is what remains of a hash after this shift
	shards []memoryShard
	board  board
	closed atomic.Bool
}

var (
	_ Backend  = (*Memory)(nil)
	_ Peeker   = (*Memory)(nil)
	_ Refunder = (*Memory)(nil)
	_ Resetter = (*Memory)(nil)
	_ Pinger   = (*Memory)(nil)
	_ Loader   = (*Memory)(nil)
	_ Seeder   = (*Memory)(nil)
	_ Sealer   = (*Memory)(nil)
	_ Poster   = (*Memory)(nil)
	_ Clock    = (*Memory)(nil)
	_ Doubter  = (*Memory)(nil)
)

type memoryShard struct {
	mu    sync.Mutex // guards all below
	cells table[remembered]
	max   int
	lost  int64 // until when a key that was forgotten alive would have counted, Unix microseconds

	_ [64]byte // shards don't share cache lines, nor those that processors fetch in pairs
}

// remembered is what is kept of one key: it fills a cache line with the rest of its cell.
type remembered struct {
	state state.State
	doubt int64 // until when an earlier life of this key may be missing, Unix microseconds
}

// NewMemory returns an empty Memory.
func NewMemory(cfg MemoryConfig) (*Memory, error) {
	max := cfg.MaxKeys
	if max == 0 {
		max = defaultMaxKeys
	}
	width := shardBits(max)
	m := &Memory{seed: maphash.MakeSeed(), shift: 64 - width, shards: make([]memoryShard, 1<<width)}
	for i := range m.shards {
		m.shards[i].max = (max + len(m.shards) - 1) / len(m.shards)
	}
	if cfg.Now != nil {
		m.now = func() int64 { return cfg.Now().UnixMicro() }
	} else {
		clock := newProcessClock()
		m.now = clock.now
	}
	return m, nil
}

// Take implements [Backend].
func (m *Memory) Take(ctx context.Context, req Request) (r Result, err error) {
	if err := m.refuse(req.CheckTake(ctx)); err != nil {
		return r, err
	}
	key := req.Key
	shard, hash := m.shard(&req) // before the clock is read, which leaves time to fetch the key: 0.94 of a take's time
	at := state.Moment(req.Policy, key, m.now())
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	if _, err := c.state.Arrive(req.Policy, at, req.Move, req.Floor, true); err != nil {
		return r, err
	}
	c.state.TakeTo(&r.Verdict, req.Policy, at, req.Cost)
	c.vouch(&r, at)
	return r, nil
}

// Peek implements [Peeker].
func (m *Memory) Peek(ctx context.Context, req Request) (r Result, err error) {
	if err := m.refuse(req.CheckTake(ctx)); err != nil {
		return r, err
	}
	at := state.Moment(req.Policy, req.Key, m.now())
	shard, hash := m.shard(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.cells.find(hash, req.Policy.Name, req.Key)
	if c == nil {
		c = &keyed[remembered]{value: remembered{doubt: shard.lost}}
	}
	r.Verdict = c.value.state.Peek(req.Policy, at, req.Cost)
	c.value.vouch(&r, at)
	return r, nil
}

// vouch says when and by whom it was decided, and how sure that is.
func (c *remembered) vouch(r *Result, at state.At) {
	r.Now, r.Source = at.Micros, Local
	if at.Micros < c.doubt {
		r.Guarantee, r.Cause = Bounded, ErrEvicted
	}
}

// Refund implements [Refunder].
func (m *Memory) Refund(ctx context.Context, req Request, receipt state.Receipt, amount int64) error {
	return m.update(ctx, &req, func(s *state.State, at state.At) { s.Refund(at, &receipt, amount) })
}

// Reset implements [Resetter].
func (m *Memory) Reset(ctx context.Context, req Request) error {
	return m.update(ctx, &req, func(s *state.State, at state.At) { s.Reset(req.Policy, at) })
}

// update changes the state of a key, if there is one.
func (m *Memory) update(ctx context.Context, req *Request, change func(*state.State, state.At)) error {
	if err := m.refuse(req.Check(ctx)); err != nil {
		return err
	}
	at := state.Moment(req.Policy, req.Key, m.now())
	shard, hash := m.shard(req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.cells.find(hash, req.Policy.Name, req.Key)
	if c == nil {
		c = new(keyed[remembered]) // of which nothing is kept
	}
	if _, err := c.value.state.Enter(at, req.Move.GiveBack()); err != nil {
		return err
	}
	change(&c.value.state, at)
	return nil
}

// Load implements [Loader].
func (m *Memory) Load(ctx context.Context, req Request) (Snapshot, error) {
	if err := m.refuse(req.Check(ctx)); err != nil {
		return Snapshot{}, err
	}
	snapshot := Snapshot{Now: m.now(), Source: Local}
	shard, hash := m.shard(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if c := shard.cells.find(hash, req.Policy.Name, req.Key); c != nil {
		snapshot.State = c.value.state.Clone()
	}
	return snapshot, nil
}

// Seed implements [Seeder].
func (m *Memory) Seed(ctx context.Context, req Request, st state.State) error {
	if err := m.refuse(req.Check(ctx)); err != nil {
		return err
	}
	at := state.Moment(req.Policy, req.Key, m.now())
	shard, hash := m.shard(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	_, err := c.state.Arrive(req.Policy, at, req.Move, &st, false)
	return err
}

// Seal implements [Sealer].
func (m *Memory) Seal(ctx context.Context, req Request) (Snapshot, error) {
	if err := m.refuse(req.CheckSeal(ctx)); err != nil {
		return Snapshot{}, err
	}
	at := state.Moment(req.Policy, req.Key, m.now())
	shard, hash := m.shard(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	if _, err := c.state.Seal(at, req.Move); err != nil {
		return Snapshot{}, err
	}
	return Snapshot{State: c.state.Clone(), Now: at.Micros, Source: Local}, nil
}

// Doubt implements [Doubter].
func (m *Memory) Doubt(req Request) error {
	shard, hash := m.shard(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	doubt := shard.lost
	if c := shard.cells.find(hash, req.Policy.Name, req.Key); c != nil {
		doubt = c.value.doubt
	}
	if m.now() < doubt {
		return ErrEvicted
	}
	return nil
}

// Ping implements [Pinger].
func (m *Memory) Ping(ctx context.Context) error {
	if m.closed.Load() {
		return ErrClosed
	}
	if ctx == nil {
		return ErrNilContext
	}
	return ctx.Err()
}

// NowMicros implements [Clock].
func (m *Memory) NowMicros() int64 { return m.now() }

// Len returns how many keys are remembered, those included whose windows are over and that were not swept yet.
func (m *Memory) Len() int {
	n := 0
	for i := range m.shards {
		m.shards[i].mu.Lock()
		n += m.shards[i].cells.taken
		m.shards[i].mu.Unlock()
	}
	return n
}

// Close forgets everything.
func (m *Memory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		s.cells = table[remembered]{}
		s.mu.Unlock()
	}
	return nil
}

// refuse is err, or that the Memory is closed.
func (m *Memory) refuse(err error) error {
	if m.closed.Load() {
		return ErrClosed
	}
	return err
}

// shard also makes the key of a request, which is the callee's own, one that tables keep.
func (m *Memory) shard(req *Request) (*memoryShard, uint64) {
	if len(req.Key) > keyhash.Longest {
		req.Key = keyhash.Kept(req.Key)
	}
	hash := maphash.String(m.seed, req.Key)
	return &m.shards[hash>>m.shift], hash
}

func (s *memoryShard) findOrAddLocked(hash uint64, req *Request, nowMicros int64) *remembered {
	c := s.cells.find(hash, req.Policy.Name, req.Key)
	if c == nil {
		s.sweepLocked(nowMicros)
		c = newKeyed[remembered](req.Policy.Name, req.Key)
		c.value.doubt = s.lost
		s.cells.add(hash, c)
	}
	return &c.value
}

const (
	sweepSlots = 8  // enough to look at more than one cell for each new key, so that dead ones can't pile up
	evictAmong = 16 // how many cells a full shard looks at to forget the one that ends soonest
)

// sweepLocked makes room for one more cell: it forgets some whose windows are over and, if the shard is full all
// the same, one that is alive.
func (s *memoryShard) sweepLocked(nowMicros int64) {
	for range min(sweepSlots, len(s.cells.slots)) {
		if c := s.cells.next(); c != nil && c.value.state.Until() <= nowMicros {
			s.cells.remove(s.cells.hand)
		}
	}
	if s.max <= 0 || s.cells.taken < s.max {
		return
	}
	victim, soonest := 0, int64(math.MaxInt64)
	for seen := 0; seen < min(evictAmong, s.cells.taken); {
		if c := s.cells.next(); c != nil {
			if seen++; c.value.state.Until() < soonest {
				victim, soonest = s.cells.hand, c.value.state.Until()
			}
		}
	}
	if soonest > nowMicros {
		s.lost = max(s.lost, soonest)
	}
	s.cells.remove(victim)
}
