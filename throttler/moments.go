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

// moments keeps what AllowAll charges for a moment only, until another key denies, from denying others.
//
//   - Keys are charged in the order of what this process last saw left of them, the least first, whatever the caller's order:
//     a key that denies is asked first, and nothing is charged beside it.
//   - Of the calls that would charge a key while the other keys are strangers one goes ahead; those that come meanwhile look
//     at the strangers first. So of a key that nobody in this process has seen exhausted one call learns.
//   - Who is denied while a charge on the key may still go back is told to come back soon.
//
// Other processes hold back in the same way, each for itself.
type moments struct {
	seed   maphash.Seed
	start  time.Time
	used   atomic.Bool                            // whether there was a charge that may go back
	charge [momentSlots]moment                    // by the key's hash
	seen   atomic.Pointer[[1 << 13]atomic.Uint64] // what was left, by the key's hash: made by the first AllowAll of several keys
}

// moment is what is charged to the keys of a slot and may go back.
type moment struct {
	charges atomic.Int32
	back    atomic.Int64 // when one went back last, in nanoseconds since start; 0 for never
}

const (
	momentSlots      = 256
	momentRetryAfter = 100 * time.Millisecond // for a denial by a charge that may go back
	momentLook       = time.Second            // bounds a look at other keys
	seenFor          = 10                     // seconds that what was left of a key says something
	seenMost         = 255                    // what is left is known up to this
	strangerLeft     = 32                     // what is taken to be left of a key that nothing is known of
)

// part is one key of an AllowAll.
type part struct {
	at    int // in the caller's order
	key   string
	hash  uint64
	left  int // as far as it is known
	known bool
}

func (m *moments) hash(req *backend.Request) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	_, _ = h.WriteString(req.Policy.Name)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(req.Key)
	return h.Sum64()
}

// A cell of seen holds the upper half of a hash, a second, and what was left; 0 left is a denial.
func (m *moments) recall(p *part) {
	p.left, p.known = strangerLeft, false
	table := m.seen.Load()
	if table == nil {
		return
	}
	cell := table[p.hash%uint64(len(table))].Load()
	second, left := uint16(cell>>8), int(cell&0xff)
	if cell>>32 != p.hash>>32 || left > 0 && uint16(time.Now().Unix())-second > seenFor {
		return // an older denial is still the best guess
	}
	p.left, p.known = left, true
}

// learn takes note of what a decision leaves of a key.
func (m *moments) learn(p *part, d *Decision) {
	switch d.Source {
	case Fallback, Unknown, Listed:
		return
	}
	table := m.seen.Load()
	if table == nil {
		m.seen.CompareAndSwap(nil, new([1 << 13]atomic.Uint64))
		table = m.seen.Load()
	}
	p.left, p.known = 0, true
	if d.Allowed {
		p.left = int(min(d.Remaining+1, seenMost))
	}
	table[p.hash%uint64(len(table))].Store(p.hash>>32<<32 | uint64(uint16(time.Now().Unix()))<<8 | uint64(p.left))
}

func sortByLeft(parts []part) {
	slices.SortStableFunc(parts, func(a, b part) int { return a.left - b.left })
}

// begin takes note that a key is charged for a moment, until end. It reports whether others charge it so.
func (m *moments) begin(p *part) (others bool) {
	if !m.used.Load() {
		m.used.Store(true)
	}
	return m.charge[p.hash%momentSlots].charges.Add(1) > 1
}

// end says whether the charge has gone back.
func (m *moments) end(p *part, back bool) {
	c := &m.charge[p.hash%momentSlots]
	if back {
		c.back.Store(int64(time.Since(m.start)))
	}
	c.charges.Add(-1)
}

// strangers reports whether nothing is known of one of the keys.
func strangers(parts []part) bool {
	return slices.ContainsFunc(parts, func(p part) bool { return !p.known })
}

// look looks at the keys that nothing is known of, all at once. What fails leaves them strangers.
func (t *Throttler) look(ctx context.Context, live *policies, parts []part, cost int64) {
	peeker, ok := t.backend.(backend.Peeker)
	if !ok || t.outages.on.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, momentLook)
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
			req, err := t.request(ctx, live, p.key, cost)
			if t.listed(live, p.key, err, &d) || err != nil {
				return
			}
			if result, err := peeker.Peek(ctx, req); err == nil {
				d.fill(&result)
				t.moments.learn(p, &d)
			}
		})
	}
	all.Wait()
	copy(parts, looked)
}

// order brings the keys of a request into the order in which they are charged, and takes note that the first is.
func (t *Throttler) order(ctx context.Context, live *policies, parts []part, cost int64) {
	m := &t.moments
	for i := range parts {
		m.recall(&parts[i])
	}
	for range 2 { // the one that was taken to be the first may be a stranger, too
		sortByLeft(parts)
		if others := m.begin(&parts[0]); !others || !strangers(parts[1:]) {
			return
		}
		m.end(&parts[0], false)
		t.look(ctx, live, parts[1:], cost)
	}
	sortByLeft(parts)
	m.begin(&parts[0])
}

// soften shortens the wait after a denial by a charge that may go back, or has gone back since, other than some of the
// caller's own.
func (m *moments) soften(hash uint64, own int32, d *Decision) {
	c := &m.charge[hash%momentSlots]
	back := c.back.Load()
	if c.charges.Load() <= own && (back == 0 || int64(time.Since(m.start))-back > int64(momentRetryAfter)) {
		return
	}
	if d.RetryAfter != limit.Never {
		d.RetryAfter = min(d.RetryAfter, momentRetryAfter)
	}
}

// own is how many of the charges that are noted where p's are belong to the same call.
func own(begun []part, p *part, noted bool) (n int32) {
	if !noted {
		return 0
	}
	for i := range begun {
		if begun[i].hash%momentSlots == p.hash%momentSlots {
			n++
		}
	}
	return n
}
