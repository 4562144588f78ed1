package backend

import (
	"context"
	"hash/maphash"
	"math/bits"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// MemoryConfig configures a Memory. The zero value is ready to use.
type MemoryConfig struct {
	// MaxKeys bounds how many keys are remembered, about: the bound is kept per shard. A key takes some 250 bytes
	// for one limit. Keys whose windows are over are forgotten first; a full Memory that meets none among the few
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
	_ Clock    = (*Memory)(nil)
)

type memoryShard struct {
	mu     sync.Mutex // guards all below
	byHash map[uint64]*cell
	cells  []*cell // every cell, in no order; what sweep walks over
	hand   int     // where the next sweep goes on
	max    int
	lost   int64 // until when a key that was forgotten alive would have counted, Unix microseconds

	_ [24]byte // shards don't share cache lines
}

// cell is what is remembered of one key under one policy.
type cell struct {
	state       limit.State
	hash        uint64
	policy, key string
	next        *cell // another key with the same hash
	slot        int   // position in cells
	doubt       int64 // until when an earlier life of this key may be missing, Unix microseconds
}

// NewMemory returns an empty Memory.
func NewMemory(cfg MemoryConfig) (*Memory, error) {
	max := cfg.MaxKeys
	if max == 0 {
		max = defaultMaxKeys
	}
	width := bits.Len(uint(8*runtime.GOMAXPROCS(0) - 1))
	for width > 0 && max > 0 && max < 64<<width { // small memories want few shards, to keep their bound
		width--
	}
	m := &Memory{seed: maphash.MakeSeed(), shift: 64 - width, shards: make([]memoryShard, 1<<width)}
	for i := range m.shards {
		m.shards[i].byHash = make(map[uint64]*cell)
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
func (m *Memory) Take(ctx context.Context, req Request) (Result, error) {
	if err := m.refuse(req.CheckTake(ctx)); err != nil {
		return Result{}, err
	}
	at := req.at(m.now())
	shard, hash := m.shard(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	if _, err := c.state.Arrive(req.Policy, at, req.Move, req.Floor); err != nil {
		return Result{}, err
	}
	return c.result(c.state.Take(req.Policy, at, req.Cost), at), nil
}

// Peek implements [Peeker].
func (m *Memory) Peek(ctx context.Context, req Request) (Result, error) {
	if err := m.refuse(req.CheckTake(ctx)); err != nil {
		return Result{}, err
	}
	at := req.at(m.now())
	shard, hash := m.shard(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findLocked(hash, &req)
	if c == nil {
		c = &cell{doubt: shard.lost}
	}
	return c.result(c.state.Peek(req.Policy, at, req.Cost), at), nil
}

func (c *cell) result(v limit.Verdict, at limit.At) Result {
	r := Result{Verdict: v, Now: at.Micros, Source: Local}
	if at.Micros < c.doubt {
		r.Guarantee, r.Cause = Bounded, ErrEvicted
	}
	return r
}

// Refund implements [Refunder].
func (m *Memory) Refund(ctx context.Context, req Request, receipt limit.Receipt, amount int64) error {
	return m.update(ctx, &req, func(s *limit.State, at limit.At) { s.Refund(at, &receipt, amount) })
}

// Reset implements [Resetter].
func (m *Memory) Reset(ctx context.Context, req Request) error {
	return m.update(ctx, &req, func(s *limit.State, at limit.At) { s.Reset(req.Policy, at) })
}

// update changes the state of a key, if there is one.
func (m *Memory) update(ctx context.Context, req *Request, change func(*limit.State, limit.At)) error {
	if err := m.refuse(req.Check(ctx)); err != nil {
		return err
	}
	at := req.at(m.now())
	shard, hash := m.shard(req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findLocked(hash, req)
	if c == nil {
		c = new(cell) // of which nothing is kept
	}
	if _, err := c.state.Enter(at, req.giveBackMove()); err != nil {
		return err
	}
	change(&c.state, at)
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
	if c := shard.findLocked(hash, &req); c != nil {
		snapshot.State = c.state.Clone()
	}
	return snapshot, nil
}

// Seed implements [Seeder].
func (m *Memory) Seed(ctx context.Context, req Request, state limit.State) error {
	if err := m.refuse(req.Check(ctx)); err != nil {
		return err
	}
	at := req.at(m.now())
	shard, hash := m.shard(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	_, err := c.state.Arrive(req.Policy, at, req.Move, &state)
	return err
}

// Seal implements [Sealer].
func (m *Memory) Seal(ctx context.Context, req Request) (Snapshot, error) {
	if err := m.refuse(req.CheckSeal(ctx)); err != nil {
		return Snapshot{}, err
	}
	at := req.at(m.now())
	shard, hash := m.shard(&req)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	c := shard.findOrAddLocked(hash, &req, at.Micros)
	if _, err := c.state.Seal(at, req.Move); err != nil {
		return Snapshot{}, err
	}
	return Snapshot{State: c.state.Clone(), Now: at.Micros, Source: Local}, nil
}

// Ping implements [Pinger].
func (m *Memory) Ping(ctx context.Context) error {
	if m.closed.Load() {
		return ErrClosed
	}
	if ctx == nil {
		return errNoContext
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
		n += len(m.shards[i].cells)
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
		s.byHash, s.cells = make(map[uint64]*cell), nil
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

func (m *Memory) shard(req *Request) (*memoryShard, uint64) {
	hash := maphash.String(m.seed, req.Key)
	return &m.shards[hash>>m.shift], hash
}

func (s *memoryShard) findLocked(hash uint64, req *Request) *cell {
	for c := s.byHash[hash]; c != nil; c = c.next {
		if c.key == req.Key && c.policy == req.Policy.Name {
			return c
		}
	}
	return nil
}

func (s *memoryShard) findOrAddLocked(hash uint64, req *Request, nowMicros int64) *cell {
	if c := s.findLocked(hash, req); c != nil {
		return c
	}
	s.sweepLocked(nowMicros)
	c := &cell{
		hash: hash, policy: strings.Clone(req.Policy.Name), key: strings.Clone(req.Key),
		next: s.byHash[hash], slot: len(s.cells), doubt: s.lost,
	}
	s.byHash[hash] = c
	s.cells = append(s.cells, c)
	return c
}

const (
	sweepStep  = 2  // more than one for each new key, so that dead ones can't pile up
	evictAmong = 16 // how many cells a full shard looks at to forget the one that ends soonest
)

// sweepLocked makes room for one more cell: it forgets some whose windows are over and, if the shard is full all
// the same, one that is alive.
func (s *memoryShard) sweepLocked(nowMicros int64) {
	for range sweepStep {
		if c := s.nextLocked(); c != nil && c.state.Until() <= nowMicros {
			s.forgetLocked(c)
		}
	}
	if s.max <= 0 || len(s.cells) < s.max {
		return
	}
	var victim *cell
	for range evictAmong {
		if c := s.nextLocked(); victim == nil || c.state.Until() < victim.state.Until() {
			victim = c
		}
	}
	if until := victim.state.Until(); until > nowMicros {
		s.lost = max(s.lost, until)
	}
	s.forgetLocked(victim)
}

// nextLocked moves the hand on.
func (s *memoryShard) nextLocked() *cell {
	if len(s.cells) == 0 {
		return nil
	}
	s.hand = (s.hand + 1) % len(s.cells)
	return s.cells[s.hand]
}

func (s *memoryShard) forgetLocked(c *cell) {
	last := len(s.cells) - 1
	s.cells[c.slot] = s.cells[last]
	s.cells[c.slot].slot = c.slot
	s.cells[last] = nil
	s.cells = s.cells[:last]

	if first := s.byHash[c.hash]; first != c {
		for ; first.next != c; first = first.next {
		}
		first.next = c.next
	} else if c.next != nil {
		s.byHash[c.hash] = c.next
	} else {
		delete(s.byHash, c.hash)
	}
}
