package state

import (
	"math/bits"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// A token bucket as GCRA, on a circle of refilling that Chris O'Hara draws in "Rate limiting with Redis": the
// theoretical arrival time is when the bucket will be full again. A take of cost moves it cost x per/rate ahead; it
// is admitted if that is no further than burst x per/rate from now.
//
// A refund must not pull the arrival time back: two copies are joined by their larger one. So refunds add up in
// credit, and what counts is arrival - credit. Both only grow for as long as a life of the bucket lasts. It lasts until
// its peak, the latest moment at which the bucket was ever to be full: neither an older copy nor a receipt counts from
// then on, and the next charge begins a life without credit. The birth of a life is when its first charge was made, which
// is not before the peak of the life before, so births tell lives apart and which of two is the later one.
//
// Requests may have read the clock long before they are executed: the order of times is not the order of operations. So
// a copy of the life before can be alive by the clock of a request that meets the next life. Join takes the life that was
// born last, and lets the other one count by its peak only: the arrival is not before it. The credit of the later life stays,
// so a bucket whose charges of that life were given back is full before the peak all the same. The peak is what a life can
// owe at most. What it owes, arrival - credit, would not do, because it falls with each refund, and the result of joining
// three copies would depend on their order. Where nothing was lost the peak is over when the next life begins,
// and such a join changes nothing.
//
// A charge is given back as far as it has not refilled: its own arrival - credit - now, as if what was given back
// before had been charged before it. Where refunds overtake each other that may be less than what was asked for, and
// the rest comes back by refilling; it is never more, so that no refund lifts the bound of any interval. What is
// exact, the least that the bucket owed since the charge, would take a history. The clock of a refund or reset doesn't go
// behind the latest time of a charge, seen: by then the bucket has refilled, whatever the refund has read. So
// arrival - credit is never before seen, and an operation that has read an older time does to the state what it would
// have done at seen; a take is only harder to admit.

// largestRate is the largest Max of a bucket that package limit accepts.
const maxRate int64 = 1 << 52

// span is a time of micros + frac/rate microseconds, 0 <= frac < rate: per/rate rarely is a whole number.
type span struct{ micros, frac int64 }

// spend is the time in which cost tokens refill.
func spend(l *limit.Limit, cost int64) span {
	micros, frac := l.Refill(cost)
	return span{micros, frac}
}

// tokens is how many tokens refill within s, at most Burst; 0 for a negative span.
func tokens(l *limit.Limit, s span) int64 {
	if s.micros < 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(s.micros), uint64(l.Max))
	lo, carry := bits.Add64(lo, uint64(s.frac), 0)
	per := uint64(l.Window / time.Microsecond)
	if hi += carry; hi >= per {
		return l.Burst
	}
	n, _ := bits.Div64(hi, lo, per)
	return int64(min(n, uint64(l.Burst)))
}

func (s span) plus(o span, rate int64) span {
	s.micros += o.micros
	if s.frac += o.frac; s.frac >= rate {
		s.micros++
		s.frac -= rate
	}
	return s
}

func (s span) minus(o span, rate int64) span {
	s.micros -= o.micros
	if s.frac -= o.frac; s.frac < 0 {
		s.micros--
		s.frac += rate
	}
	return s
}

func (s span) less(o span) bool {
	return s.micros < o.micros || s.micros == o.micros && s.frac < o.frac
}

func maxSpan(a, b span) span {
	if a.less(b) {
		return b
	}
	return a
}

// up is the first whole microsecond that is not before s.
func (s span) up() int64 {
	if s.frac > 0 {
		return s.micros + 1
	}
	return s.micros
}

// at is s under a rate that may have been larger when the fraction was counted: the limit has changed since.
func (s span) at(rate int64) span {
	return span{s.micros, min(s.frac, rate-1)}
}

// maxCredit is how many microseconds a bucket gives back without ever being full in between. It keeps arrival below
// MaxCount; a refund beyond it changes nothing.
const maxCredit = 1 << 52

// peak is the latest moment at which the bucket was ever to be full. Its whole microseconds are in end, rounded up.
func (e *entry) peak() span {
	if e.used == 0 {
		return span{micros: e.end}
	}
	return span{e.end - 1, e.used}
}

func (e *entry) setPeak(s span) { e.end, e.used = s.up(), s.frac }

// full is when the bucket is full again; not before now.
func (e *entry) full(l *limit.Limit, now At) span {
	if e.empty(now) {
		return span{micros: now.Micros}
	}
	return maxSpan(span{micros: now.Micros}, e.arrival.at(l.Max).minus(e.credit.at(l.Max), l.Max))
}

// shortBucket is how long a request of cost has to wait; 0 if it fits.
func (e *entry) shortBucket(l *limit.Limit, now At, cost int64) int64 {
	next := e.full(l, now).plus(spend(l, cost), l.Max)
	return max(next.minus(spend(l, l.Burst), l.Max).up()-now.Micros, 0)
}

func (e *entry) chargeBucket(l *limit.Limit, now At, cost int64) {
	next := e.full(l, now).plus(spend(l, cost), l.Max)
	e.credit = e.credit.at(l.Max)
	e.arrival = next.plus(e.credit, l.Max)
	if e.end == 0 {
		e.birth = now.Micros
	}
	e.seen = max(e.seen, now.Micros)
	e.setPeak(maxSpan(e.peak(), next))
}

// refundBucket gives back what has not refilled of a charge.
func (e *entry) refundBucket(l *limit.Limit, now At, m mark, amount int64) {
	if m.end <= e.seen {
		return // it had refilled when the last charge was made, maybe in an earlier life
	}
	if e.arrival.less(m.position) {
		return // the charge was lost with an earlier copy
	}
	now.Micros = max(now.Micros, e.seen)
	left := m.position.at(l.Max).minus(e.credit.at(l.Max), l.Max).minus(span{micros: now.Micros}, l.Max)
	if give := spend(l, amount); !left.less(give) {
		left = give
	}
	e.giveBack(l, left)
}

// refill gives everything back.
func (e *entry) refill(l *limit.Limit, now At) {
	now.Micros = max(now.Micros, e.seen)
	e.giveBack(l, e.full(l, now).minus(span{micros: now.Micros}, l.Max))
}

func (e *entry) giveBack(l *limit.Limit, s span) {
	if credit := e.credit.at(l.Max).plus(s, l.Max); s.micros >= 0 && credit.micros < maxCredit {
		e.credit = credit
	}
}

func (e *entry) joinBucket(f *entry) bool {
	before := *e
	peak := maxSpan(e.peak(), f.peak())
	switch {
	case e.birth == f.birth:
		e.seen = max(e.seen, f.seen)
		e.arrival = maxSpan(e.arrival, f.arrival)
		e.credit = maxSpan(e.credit, f.credit)
	case e.birth < f.birth:
		e.birth, e.seen, e.credit = f.birth, f.seen, f.credit
		e.arrival = maxSpan(f.arrival, before.peak())
	default:
		e.arrival = maxSpan(e.arrival, f.peak())
	}
	e.setPeak(peak)
	return !e.sameBucket(&before)
}

func (e *entry) sameBucket(f *entry) bool {
	return e.end == f.end && e.used == f.used && e.birth == f.birth && e.seen == f.seen &&
		e.arrival == f.arrival && e.credit == f.credit
}
