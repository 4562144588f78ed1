package limit

import (
	"math/bits"
	"time"
)

// A token bucket as GCRA, on a circle of refilling that Chris O'Hara draws in "Rate limiting with Redis": the
// theoretical arrival time is when the bucket will be full again. A take of cost moves it cost x per/rate ahead; it
// is admitted if that is no further than burst x per/rate from now.
//
// A refund must not pull the arrival time back: two copies are joined by their larger one. So refunds add up in
// credit, and what counts is arrival - credit. Both only grow until end, the latest moment at which the bucket was
// ever to be full: neither an older copy nor a receipt counts from then on, and the entry starts afresh.
//
// A charge is given back as far as it has not refilled: its own arrival - credit - now, as if what was given back
// before had been charged before it. Where refunds overtake each other that may be less than what was asked for, and
// the rest comes back by refilling; it is never more, so that no refund lifts the bound of any interval. What is
// exact, the least that the bucket owed since the charge, would take a history.

// span is a time of micros + frac/rate microseconds, 0 <= frac < rate: per/rate rarely is a whole number.
type span struct{ micros, frac int64 }

// spend is the time in which cost tokens refill. cost x per/rate is at most MaxWindow for a valid limit.
func (l *Limit) spend(cost int64) span {
	hi, lo := bits.Mul64(uint64(cost), uint64(l.Window/time.Microsecond))
	micros, frac := bits.Div64(hi, lo, uint64(l.Max))
	return span{int64(micros), int64(frac)}
}

// tokens is how many tokens refill within s, at most Burst; 0 for a negative span.
func (l *Limit) tokens(s span) int64 {
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

// full is when the bucket is full again; not before now.
func (e *entry) full(l *Limit, now At) span {
	if e.empty(now) {
		return span{micros: now.Micros}
	}
	return maxSpan(span{micros: now.Micros}, e.arrival.at(l.Max).minus(e.credit.at(l.Max), l.Max))
}

// shortBucket is how long a request of cost has to wait; 0 if it fits.
func (e *entry) shortBucket(l *Limit, now At, cost int64) int64 {
	next := e.full(l, now).plus(l.spend(cost), l.Max)
	return max(next.minus(l.spend(l.Burst), l.Max).up()-now.Micros, 0)
}

func (e *entry) chargeBucket(l *Limit, now At, cost int64) {
	next := e.full(l, now).plus(l.spend(cost), l.Max)
	e.credit = e.credit.at(l.Max)
	e.arrival = next.plus(e.credit, l.Max)
	e.end = max(e.end, next.up())
}

// refundBucket gives back what has not refilled of a charge that brought the arrival time to charged.
func (e *entry) refundBucket(l *Limit, now At, charged span, amount int64) {
	if e.arrival.less(charged) {
		return // the charge was lost with an earlier copy
	}
	left := charged.at(l.Max).minus(e.credit.at(l.Max), l.Max).minus(span{micros: now.Micros}, l.Max)
	if give := l.spend(amount); !left.less(give) {
		left = give
	}
	e.giveBack(l, left)
}

// refill gives everything back.
func (e *entry) refill(l *Limit, now At) {
	e.giveBack(l, e.full(l, now).minus(span{micros: now.Micros}, l.Max))
}

func (e *entry) giveBack(l *Limit, s span) {
	if credit := e.credit.at(l.Max).plus(s, l.Max); s.micros >= 0 && credit.micros < maxCredit {
		e.credit = credit
	}
}

func (e *entry) joinBucket(f *entry) bool {
	before := *e
	e.arrival = maxSpan(e.arrival, f.arrival)
	e.credit = maxSpan(e.credit, f.credit)
	e.end = max(e.end, f.end)
	return e.arrival != before.arrival || e.credit != before.credit || e.end != before.end
}
