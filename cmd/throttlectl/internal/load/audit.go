package load

import (
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// audit counts what was admitted above the limits. It goes by what was decided when, and by what limits promise, not by what any
// server has counted.
type audit struct {
	policy *limit.Policy
	grace  int64 // microseconds by which decisions may be recorded out of order
	seed   maphash.Seed
	shards [64]auditShard
}

type auditShard struct {
	mu   sync.Mutex // guards all below
	keys map[string]*auditedKey
	over []excess // by limit
}

// excess is the cost that was admitted above a limit.
type excess struct {
	exact int64 // by exact decisions, counted without the others
	all   int64
}

// auditedKey is what was admitted to one key.
type auditedKey struct {
	waiting []admission // in the order of time
	newest  int64
	meters  []meters // by limit
}

// admission is one decision, with the end of its window for each limit.
type admission struct {
	at, cost int64
	exact    bool
	ends     []int64
}

// meters count a limit twice: for exact decisions, and for all.
type meters struct{ exact, all meter }

// meter counts one limit of one key. It returns by how much an admission is above the limit, and doesn't count that part, so that
// it is reported once.
type meter interface {
	add(at, cost, end int64) (over int64)
}

// clockSlack is by how much the times of two decisions on a key may be off: a decision from a lease has the time of the server's
// reply.
const clockSlack = 50 * time.Millisecond

func newAudit(p *limit.Policy, grace time.Duration) *audit {
	a := &audit{policy: p, grace: grace.Microseconds(), seed: maphash.MakeSeed()}
	for i := range a.shards {
		a.shards[i].keys = make(map[string]*auditedKey)
		a.shards[i].over = make([]excess, len(p.Limits))
	}
	return a
}

// record adds an admitted request.
func (a *audit) record(key string, cost int64, d *throttler.Decision) {
	one := admission{d.At.UnixMicro(), cost, d.Guarantee == throttler.Exact, make([]int64, 0, len(a.policy.Limits))}
	for status := range d.All() {
		one.ends = append(one.ends, status.ResetAt.UnixMicro())
	}
	s := &a.shards[maphash.String(a.seed, key)%uint64(len(a.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys[key]
	if k == nil {
		k = &auditedKey{meters: newMeters(a.policy)}
		s.keys[key] = k
	}
	i := len(k.waiting)
	for i > 0 && k.waiting[i-1].at > one.at {
		i--
	}
	k.waiting = slices.Insert(k.waiting, i, one)
	k.newest = max(k.newest, one.at)
	s.countUntil(k, k.newest-a.grace)
}

// countUntil counts the admissions up to a time, which no earlier one can follow.
func (s *auditShard) countUntil(k *auditedKey, until int64) {
	n := 0
	for ; n < len(k.waiting) && k.waiting[n].at <= until; n++ {
		one := &k.waiting[n]
		for i := range k.meters {
			end := int64(0)
			if i < len(one.ends) {
				end = one.ends[i]
			}
			s.over[i].all += k.meters[i].all.add(one.at, one.cost, end)
			if one.exact {
				s.over[i].exact += k.meters[i].exact.add(one.at, one.cost, end)
			}
		}
	}
	k.waiting = slices.Delete(k.waiting, 0, n)
}

// result counts the rest, and adds up.
func (a *audit) result() []excess {
	sum := make([]excess, len(a.policy.Limits))
	for i := range a.shards {
		s := &a.shards[i]
		s.mu.Lock()
		for _, k := range s.keys {
			s.countUntil(k, math.MaxInt64)
		}
		for i, over := range s.over {
			sum[i].exact += over.exact
			sum[i].all += over.all
		}
		s.mu.Unlock()
	}
	return sum
}

func newMeters(p *limit.Policy) []meters {
	all := make([]meters, len(p.Limits))
	for i := range p.Limits {
		all[i] = meters{newMeter(&p.Limits[i]), newMeter(&p.Limits[i])}
	}
	return all
}

func newMeter(l *limit.Limit) meter {
	switch {
	case l.Algorithm == limit.Bucket:
		rate := float64(l.Max) / float64(l.Window.Microseconds())
		return &bucketMeter{rate: rate, burst: float64(l.Burst) + rate*float64(clockSlack.Microseconds())}
	case l.Algorithm == limit.SlidingWindow && l.Window-l.Precision > clockSlack:
		return &slidingMeter{max: l.Max, length: (l.Window - l.Precision - clockSlack).Microseconds()}
	}
	return &windowMeter{limit: l}
}

// windowMeter counts windows by their ends. A key has one at a time: a decision with another end while a window is open was made
// without knowing that window, and counts in both.
type windowMeter struct {
	limit *limit.Limit
	open  []openWindow
}

type openWindow struct{ end, used int64 }

func (m *windowMeter) add(at, cost, end int64) (over int64) {
	window, slack := m.limit.Window.Microseconds(), clockSlack.Microseconds()
	if m.limit.Algorithm == limit.SlidingWindow { // a single sub-bucket: windows at multiples of its width
		end = at - at%window + window
	}
	m.open = slices.DeleteFunc(m.open, func(w openWindow) bool { return w.end+window < at })
	if !slices.ContainsFunc(m.open, func(w openWindow) bool { return w.end == end }) {
		m.open = append(m.open, openWindow{end: end})
	}
	here := func(w openWindow) bool {
		apart := max(w.end-end, end-w.end)
		return apart == 0 || apart < window-slack && at >= w.end-window && at < w.end
	}
	for _, w := range m.open {
		if here(w) {
			over = max(over, w.used+cost-m.limit.Max)
		}
	}
	over = min(over, cost)
	for i := range m.open {
		if here(m.open[i]) {
			m.open[i].used += cost - over
		}
	}
	return over
}

type meteredCharge struct{ at, cost int64 }

// slidingMeter counts any interval of a length, with both ends.
type slidingMeter struct {
	max, length int64
	charges     []meteredCharge
	sum         int64
}

func (m *slidingMeter) add(at, cost, _ int64) int64 {
	gone := 0
	for ; gone < len(m.charges) && m.charges[gone].at < at-m.length; gone++ {
		m.sum -= m.charges[gone].cost
	}
	m.charges = slices.Delete(m.charges, 0, gone)
	over := min(max(m.sum+cost-m.max, 0), cost)
	m.sum += cost - over
	m.charges = append(m.charges, meteredCharge{at, cost - over})
	return over
}

// bucketMeter counts the level of the bucket.
type bucketMeter struct {
	rate, burst float64 // rate a microsecond; burst with the slack
	last        int64
	level       float64
}

func (m *bucketMeter) add(at, cost, _ int64) int64 {
	m.level = max(0, m.level-m.rate*float64(max(at-m.last, 0)))
	m.last = max(at, m.last)
	over := int64(math.Ceil(m.level + float64(cost) - m.burst - 1e-6))
	over = min(max(over, 0), cost)
	m.level += float64(cost - over)
	return over
}
