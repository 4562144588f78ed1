package state

import (
	"time"

	"github.com/sluice-go/sluice/limit"
)

// A charge counts what has happened, whether or not a limit has room. So used may exceed Max; Remaining stays 0 then, and who
// comes next waits. It is an empty entry with the mark, joined into the state, and the cost added there. Counts only grow by it,
// as by a take, so copies still merge in any order.
//
// Each limit counts by itself: a second may be over whose minute is not. What a window has already is over for the charge, too:
// a window that has ended, and a sub-bucket that has left, count nothing. A bucket is charged as by a request that read the
// clock at its mark and arrives late. It is not over at any time: what a busy bucket admitted long ago still delays its refill.
// So a bucket that expired between the mark and now still counts, where the copy has it.
//
// Sums saturate: a window counts up to MaxCount, a sub-bucket holds up to maxUsed, and a bucket is at most MaxWindow from full.
// A charge that meets such a bound in a limit has no receipt: its refund could return more than it added.

// maxUsed is how much a sub-bucket holds: the largest Max of a sliding limit, so that a window's sum is exact in a Lua number.
const maxUsed int64 = 1 << 46

// Mark says where a charge counts: under each limit of a policy, the end of the window, or the moment at which the sub-bucket
// leaves the window; of a bucket, when the work was admitted. The zero Mark means now. It is for the limits that it was made
// for, in their order.
type Mark struct {
	inline [inlineLimits]int64 // Unix microseconds; 0 for now
	more   []int64             // the limits from inlineLimits on
}

// MarkAt is the mark of a charge that happens at now, as it is known without the key's state. ok is false if the window of some
// limit starts at its first request: under that limit the mark is 0.
func MarkAt(p *limit.Policy, now At) (m Mark, ok bool) {
	ok = true
	for i := range p.Limits {
		switch l := &p.Limits[i]; {
		case l.Algorithm == limit.Bucket:
			m.set(i, now.Micros)
		case l.Algorithm == limit.SlidingWindow:
			m.set(i, slidingEnd(identityOf(l), now))
		case l.Alignment != limit.FirstRequest:
			m.set(i, fixedEnd(identityOf(l), now))
		default:
			m.set(i, 0)
			ok = false
		}
	}
	return m, ok
}

// Mark is the mark of a charge beside the receipt's own. A receipt doesn't say when a bucket admitted it: the mark is when that
// would have been full without it. The mark of a receipt of nothing is zero.
func (r *Receipt) Mark() (m Mark) {
	if r.policy == nil {
		return m
	}
	for i := range r.policy.Limits {
		l, end := &r.policy.Limits[i], r.chargeRef(i).end
		if l.Algorithm == limit.Bucket {
			end -= refillTime(l, max(r.Cost, 0)).ceil()
		}
		m.set(i, end)
	}
	return m
}

func (m *Mark) set(i int, micros int64) {
	if i < inlineLimits {
		m.inline[i] = micros
	} else {
		m.more = append(m.more, micros)
	}
}

// At is the mark under limit i of the policy, in Unix microseconds; 0 for now.
func (m *Mark) At(i int) int64 {
	switch {
	case i < inlineLimits:
		return m.inline[i]
	case i-inlineLimits < len(m.more):
		return m.more[i-inlineLimits]
	}
	return 0
}

// Under is where a charge at now counts under l, limit i of the policy: the end of a window or sub-bucket, as they can end, or 0
// for that of now; of a bucket the moment. The mark of a clock that is ahead is now: a later window would end this one.
func (m *Mark) Under(l *limit.Limit, i int, now At) int64 {
	at := max(m.At(i), 0)
	switch {
	case l.Algorithm != limit.Bucket && at > End(l, now)*1000:
		return 0
	case l.Algorithm == limit.SlidingWindow:
		return floorTo(at, l.Precision.Microseconds())
	case l.Algorithm != limit.Bucket:
		return floorTo(at, 1000)
	case at == 0 || at > now.Micros:
		return now.Micros
	}
	return at
}

// Charge charges cost under every limit of the policy, where the mark says. It denies nothing: the verdict is allowed, and says
// what remains after it. The policy must be valid and cost from 1 to MaxCount.
func (s *State) Charge(p *limit.Policy, now At, mark Mark, cost int64) Verdict {
	s.alignTo(p)
	for i := range p.Limits {
		e, l := &s.entries[i], &p.Limits[i]
		at := mark.Under(l, i, now)
		switch l.Algorithm {
		case limit.SlidingWindow:
			e.chargeSub(now, at, cost)
		case limit.Bucket:
			e.charge(l, At{Micros: at}, cost)
		default:
			e.chargeWindow(now, at, cost)
		}
	}
	s.forget(len(p.Limits), now)
	return s.Charged(p, now, mark, cost)
}

// Charged is the verdict of a charge that was made elsewhere, such as by a script, and left s behind.
func (s *State) Charged(p *limit.Policy, now At, mark Mark, cost int64) (v Verdict) {
	s.alignTo(p)
	v.of(p)
	v.Allowed, v.cost = true, cost
	s.describe(&v, now)
	for i := range p.Limits {
		f, l := v.outcome(i), &p.Limits[i]
		position, saturated := s.entries[i].chargedAt(l, now, mark.Under(l, i, now), f.reset)
		if f.span = position; saturated {
			v.cost = 0
		}
	}
	for i := range p.Limits {
		if v.cost == 0 {
			v.outcome(i).span = span{}
		}
	}
	return v
}

// chargedAt returns the position of a charge with a mark, zero if it counts nothing, and whether it may have met a bound. Reset
// is that of the limit.
func (e *entry) chargedAt(l *limit.Limit, now At, mark, reset int64) (position span, saturated bool) {
	switch l.Algorithm {
	case limit.Bucket:
		return e.arrival, e.fullAt(l, At{Micros: mark}).micros-mark >= limit.MaxWindow.Microseconds()
	case limit.SlidingWindow:
		j, ok := e.marked(now, mark)
		if !ok || j >= len(e.subs) {
			return span{}, false
		}
		return span{e.subs[j].charged, reset - e.subEnd(j)}, e.subs[j].room() == 0
	}
	if !e.takes(now, mark) {
		return span{}, false
	}
	return span{micros: e.count.charged}, e.count.charged == limit.MaxCount
}

// chargeWindow charges a fixed window.
func (e *entry) chargeWindow(now At, mark, cost int64) {
	if mark != 0 && mark <= now.Micros {
		return
	}
	if e.empty(now) {
		e.clear()
	}
	switch {
	case mark != 0:
		e.joinFixed(&entry{id: e.id, end: mark})
	case e.end == 0:
		e.end = fixedEnd(e.id, now)
	}
	if e.takes(now, mark) {
		e.count.charged = min(e.count.charged, limit.MaxCount-cost) + cost
	}
}

// takes reports whether a charge with the mark counts in this window: in the marked one, or in a later one that overlaps it,
// because the counts of that were lost.
func (e *entry) takes(now At, mark int64) bool {
	return mark == 0 || now.Micros < mark && mark <= e.end && e.end-mark < int64(e.id.window/time.Microsecond)
}

// chargeSub charges a sub-bucket.
func (e *entry) chargeSub(now At, mark, cost int64) {
	if mark != 0 && mark <= now.Micros {
		return
	}
	if e.empty(now) {
		e.clear()
	}
	if mark == 0 {
		e.advance(max(slidingEnd(e.id, now), e.end))
	} else {
		e.advance(max(mark, e.end))
	}
	j, ok := e.marked(now, mark)
	if !ok {
		return
	}
	for len(e.subs) <= j {
		e.subs = append(e.subs, count{})
	}
	c := &e.subs[j]
	added := min(cost, c.room())
	c.charged += added
	e.used += added
	e.trim()
}

// room is how much a sub-bucket can still be charged.
func (c *count) room() int64 { return max(min(maxUsed-c.used(), limit.MaxCount-c.charged), 0) }

// marked returns the index of the sub-bucket in which a charge with the mark counts; false if that has left the window.
func (e *entry) marked(now At, mark int64) (j int, ok bool) {
	if mark == 0 {
		return 0, true
	}
	behind := (e.end - mark) / e.id.precisionMicros()
	return int(behind), now.Micros < mark && 0 <= behind && behind < e.id.subBuckets()
}
