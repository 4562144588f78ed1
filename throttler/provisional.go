package throttler

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// provisionals keeps provisional charges, which AllowAll gives back when another key denies, from denying other requests.
//
//   - Keys are charged in the order of what this process last saw left of them, the least first, whatever the caller's order:
//     the key that is likely to deny is charged first, and then nothing else is charged.
//   - If nothing is known of the other keys, one call at a time charges a key; concurrent calls peek at the unknown keys first.
//     So one call finds out that a key is exhausted.
//   - A denial while a charge on the key may still be given back has a short RetryAfter.
//
// Each process does so for itself.
type provisionals struct {
	seed   maphash.Seed
	start  time.Time
	used   atomic.Bool                         // whether there ever was a provisional charge
	shards [provisionalShards]provisionalShard // by the key's hash
	seen   atomic.Pointer[seen]                // made by the first AllowAll of several keys
}

type provisionalShard struct {
	size atomic.Int32 // len(keys), to be read without the lock
	mu   sync.Mutex   // guards keys
	keys []provisional
}

// provisional counts the calls of AllowAll on a key. A denial because of their charges is temporary.
type provisional struct {
	hash    uint64
	calls   int32         // that are charging the key, have charged it, or are giving it back
	charged int32         // of these, how many were admitted
	until   time.Duration // since start: until then denials are temporary, because a charge was given back
}

const (
	provisionalShards     = 256
	provisionalRetryAfter = 100 * time.Millisecond // for a temporary denial
	peekUnknownTimeout    = time.Second            // for all peeks of a call together
	seenFor               = 10                     // seconds for which an entry of seen is used
	denialFor             = 60                     // seconds by which a denial in seen outlives other entries
	seenMost              = 255                    // the largest remaining count in seen
	unknownLeft           = 32                     // assumed to be left of an unknown key
)

// part is one key of an AllowAll.
type part struct {
	at     int // in the caller's order
	key    string
	policy *limit.Policy
	err    error // a cost that the limits can't hold, of a key on an allow list
	hash   uint64
	left   int // if known; otherwise unknownLeft
	known  bool

	charged bool
}

func (p *part) request(cost int64) backend.Request {
	return backend.Request{Key: p.key, Policy: p.policy, Cost: cost}
}

func (m *provisionals) hash(req *backend.Request) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	_, _ = h.WriteString(req.Policy.Name)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(req.Key)
	return h.Sum64()
}

// seen is what was left of keys, by hash, four in a set. A cell holds the upper half of a hash, a second, and what was left; 0
// is a denial. One of two concurrent updates of a set may be lost.
type seen [1 << 11][4]atomic.Uint64

func (m *provisionals) lookup(hash uint64) (left int, known bool) {
	table := m.seen.Load()
	if table == nil {
		return unknownLeft, false
	}
	set := &table[hash%uint64(len(table))]
	for i := range set {
		cell := set[i].Load()
		if cell>>32 != hash>>32 {
			continue
		}
		if left = int(cell & 0xff); left == 0 || seenAge(cell) <= seenFor { // an older denial is still the best guess
			return left, true
		}
		break
	}
	return unknownLeft, false
}

func seenAge(cell uint64) uint16 { return uint16(time.Now().Unix()) - uint16(cell>>8) }

// record records what a decision leaves of a key. After a temporary denial the key is not exhausted.
func (m *provisionals) record(p *part, d *Decision, temporary bool) {
	switch d.Source {
	case Fallback, Unknown, Listed:
		return
	}
	table := m.seen.Load()
	if table == nil {
		m.seen.CompareAndSwap(nil, new(seen))
		table = m.seen.Load()
	}
	p.left, p.known = 0, true
	switch {
	case temporary:
		p.left = 1
	case d.Allowed:
		p.left = int(min(d.Remaining+1, seenMost))
	}
	set := &table[p.hash%uint64(len(table))]
	place, oldest := 0, -1
	for i := range set {
		cell := set[i].Load()
		if cell>>32 == p.hash>>32 {
			place = i
			break
		}
		age := int(seenAge(cell))
		if cell&0xff == 0 && cell != 0 {
			age -= denialFor
		}
		if age > oldest || i == 0 {
			place, oldest = i, age
		}
	}
	set[place].Store(p.hash>>32<<32 | uint64(uint16(time.Now().Unix()))<<8 | uint64(p.left))
}

func sortByLeft(parts []part) {
	slices.SortStableFunc(parts, func(a, b part) int { return a.left - b.left })
}

// locked returns the locked shard of a key, without expired entries, and the key's entry; nil if there is none.
func (m *provisionals) locked(hash uint64) (s *provisionalShard, k *provisional) {
	s = &m.shards[hash%provisionalShards]
	s.mu.Lock()
	now := time.Since(m.start)
	s.keys = slices.DeleteFunc(s.keys, func(k provisional) bool { return k.calls == 0 && now >= k.until })
	s.size.Store(int32(len(s.keys)))
	if i := slices.IndexFunc(s.keys, func(k provisional) bool { return k.hash == hash }); i >= 0 {
		k = &s.keys[i]
	}
	return s, k
}

// begin counts a call that charges a key, until end. It reports whether there are others.
func (m *provisionals) begin(p *part) (others bool) {
	if !m.used.Load() {
		m.used.Store(true)
	}
	s, k := m.locked(p.hash)
	defer s.mu.Unlock()
	if k == nil {
		s.keys = append(s.keys, provisional{hash: p.hash})
		s.size.Store(int32(len(s.keys)))
		k = &s.keys[len(s.keys)-1]
	}
	k.calls++
	return k.calls > 1
}

// charged records that the key has admitted the call.
func (m *provisionals) charged(p *part) {
	s, k := m.locked(p.hash)
	defer s.mu.Unlock()
	p.charged = true
	k.charged++
}

// end ends what begin began. Back is whether the charge, if there is one, was given back.
func (m *provisionals) end(p *part, back bool) {
	s, k := m.locked(p.hash)
	defer s.mu.Unlock()
	k.calls--
	if p.charged {
		k.charged--
	}
	if p.charged && back {
		k.until = time.Since(m.start) + provisionalRetryAfter
	}
}

// anyUnknown reports whether nothing is known of one of the keys.
func anyUnknown(parts []part) bool {
	return slices.ContainsFunc(parts, func(p part) bool { return !p.known })
}

// peekUnknown peeks at the unknown keys, concurrently. Keys whose Peek fails stay unknown.
func (t *Throttler) peekUnknown(ctx context.Context, view PolicyView, parts []part, cost int64) {
	if t.outages.on.Load() {
		return
	}
	ctx, stop := t.timeout(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, peekUnknownTimeout)
	defer cancel()
	looked := slices.Clone(parts) // or parts would always be allocated
	var all sync.WaitGroup
	for i := range looked {
		p := &looked[i]
		if p.known {
			continue
		}
		all.Go(func() {
			var d Decision
			req := p.request(cost)
			if t.listed(view, p.key, p.err, &d) || p.err != nil {
				return
			}
			if result, err := backend.Peek(ctx, t.backend, req); err == nil {
				d.fill(&result)
				t.provisionals.record(p, &d, false)
			}
		})
	}
	all.Wait()
	copy(parts, looked)
}

// order sorts the keys of a request into the order in which they are charged, and begins the first.
func (t *Throttler) order(ctx context.Context, view PolicyView, parts []part, cost int64) {
	m := &t.provisionals
	for i := range parts {
		parts[i].left, parts[i].known = m.lookup(parts[i].hash)
	}
	sortByLeft(parts)
	if others := m.begin(&parts[0]); others && anyUnknown(parts[1:]) {
		m.end(&parts[0], false)
		t.peekUnknown(ctx, view, parts, cost)
		sortByLeft(parts)
		m.begin(&parts[0])
	}
}

// shortenRetryAfter shortens the wait after a temporary denial: a charge of another call may still be given back, or just was.
// A call without a reply counts, too, unless the key is known to be exhausted: its reply may come after this one. In an outage
// this process counts itself, and doesn't know what is exhausted.
func (t *Throttler) shortenRetryAfter(req *backend.Request, c *charge, d *Decision) {
	m, own := &t.provisionals, int32(0)
	if c != nil {
		own = c.ownCalls
	}
	hash := m.hash(req)
	if m.shards[hash%provisionalShards].size.Load() == 0 {
		return
	}
	s, k := m.locked(hash)
	others := k != nil && k.calls > own
	temporary := k != nil && time.Since(m.start) < k.until || others && k.charged > 0
	s.mu.Unlock()
	if c != nil {
		c.temporary = temporary
	}
	if others && !temporary && d.Source != Fallback {
		left, _ := m.lookup(hash)
		temporary = left > 0
	}
	if temporary && d.RetryAfter != limit.Never {
		d.RetryAfter = min(d.RetryAfter, provisionalRetryAfter)
	}
}

// ownCalls is how often one AllowAll lists the key of p.
func ownCalls(begun []part, p *part) (n int32) {
	for i := range begun {
		if begun[i].hash == p.hash {
			n++
		}
	}
	return n
}
