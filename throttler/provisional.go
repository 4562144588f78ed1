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

// provisionals keeps what AllowAll charges for a moment only, until another key denies, from denying others.
//
//   - Keys are charged in the order of what this process last saw left of them, the least first, whatever the caller's order:
//     a key that denies is asked first, and nothing is charged beside it.
//   - Of the calls that would charge a key while the other keys are strangers one goes ahead; those that come meanwhile look
//     at the strangers first. So of a key that nobody in this process has seen exhausted one call learns.
//   - A denial while a charge on the key may still go back has a short RetryAfter.
//
// Other processes hold back in the same way, each for itself.
type provisionals struct {
	seed   maphash.Seed
	start  time.Time
	used   atomic.Bool                         // whether there was a charge that may go back
	shards [provisionalShards]provisionalShard // by the key's hash
	seen   atomic.Pointer[seen]                // made by the first AllowAll of several keys
}

type provisionalShard struct {
	size atomic.Int32 // len(keys), for those who needn't lock
	mu   sync.Mutex   // guards keys
	keys []provisional
}

// provisional is what AllowAll has under way on a key. A denial by a charge that is part of it is temporary.
type provisional struct {
	hash    uint64
	calls   int32         // that charge the key, have charged it, or are giving it back
	charged int32         // of these, those that were admitted
	until   time.Duration // since start: how long denials are temporary after a charge went back
}

const (
	provisionalShards     = 256
	provisionalRetryAfter = 100 * time.Millisecond // for a temporary denial
	peekUnknownTimeout    = time.Second            // bounds a look at other keys
	seenFor               = 10                     // seconds that what was left of a key says something
	denialFor             = 60                     // seconds that a denial outlives what was left of other keys
	seenMost              = 255                    // what is left is known up to this
	unknownLeft           = 32                     // what is taken to be left of a key that nothing is known of
)

// part is one key of an AllowAll.
type part struct {
	at     int // in the caller's order
	key    string
	policy *limit.Policy
	err    error // a cost that the limits can't hold, of a key on an allow list
	hash   uint64
	left   int // as far as it is known
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
// left is a denial. Of two learned at once in a set one may be lost.
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

// record takes note of what a decision leaves of a key. After a temporary denial it is not used up.
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

// locked is the locked shard of a key, without what is over, and what is under way on the key; nil for nothing.
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

// begin takes note, until end, of a call that charges a key. It reports whether there are others.
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

// charged takes note that the key has admitted the call.
func (m *provisionals) charged(p *part) {
	s, k := m.locked(p.hash)
	defer s.mu.Unlock()
	p.charged = true
	k.charged++
}

// end says whether the charge, if there is one, has gone back.
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

// peekUnknown looks at the keys that nothing is known of, all at once. What fails leaves them strangers.
func (t *Throttler) peekUnknown(ctx context.Context, view PolicyView, parts []part, cost int64) {
	peeker, ok := t.backend.(backend.Peeker)
	if !ok || t.outages.on.Load() {
		return
	}
	ctx, stop := t.timeout(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, peekUnknownTimeout)
	defer cancel()
	looked := slices.Clone(parts) // or all that are charged would be allocated
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
			if result, err := peeker.Peek(ctx, req); err == nil {
				d.fill(&result)
				t.provisionals.record(p, &d, false)
			}
		})
	}
	all.Wait()
	copy(parts, looked)
}

// order brings the keys of a request into the order in which they are charged, and takes note that the first is.
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

// shortenRetryAfter shortens the wait after a temporary denial: a charge of another call may still go back, or has just gone back. A
// call whose charge isn't known yet counts, too, unless the key is known to be used up: its reply may be behind this one. (In
// an outage this process counts itself, and what is used up isn't known.)
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

// ownCalls is how many of the calls on a key are of one AllowAll, which lists the key that often.
func ownCalls(begun []part, p *part) (n int32) {
	for i := range begun {
		if begun[i].hash == p.hash {
			n++
		}
	}
	return n
}
