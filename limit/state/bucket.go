package state

import (
	"math/bits"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// A token bucket is GCRA, on a circle of refilling that Chris O'Hara draws in "Rate limiting with Redis". The theoretical
// arrival time is when the bucket will be full again. A take of cost moves it ahead by cost x per/rate, and is admitted if
// that is at most burst x per/rate from now.
//
// A refund must not move the arrival time back, because copies are merged by the later one. So refunds add up in credit, and
// arrival - credit is what counts. Both only grow within a generation of the bucket. A generation lasts until its peak, the
// latest moment at which the bucket was ever to be full. Older copies and receipts don't count from then on, and the next
// charge begins a generation without credit. began is the time of a generation's first charge. It is not before the peak of
// the previous generation, so it identifies and orders generations.
//
// Requests may have read the clock long before they run, so the order of times is not the order of operations. A copy of the
// previous generation can still be live by the clock of a request that meets the next one. Join takes the generation that
// began last; of the other one only the peak counts: the arrival is not before it. The later generation keeps its credit,
// so a bucket whose later charges were refunded is full before the peak nevertheless. The peak is the most that a generation
// can owe. arrival - credit would not do in its place: it falls with each refund, and a join of three copies would depend on
// their order. If nothing was lost, the peak has passed when the next generation begins, and such a join changes nothing.
//
// A charge is refunded as far as it has not refilled: its own arrival - credit - now, as if earlier refunds were of earlier
// charges. If refunds overtake each other that may be less than the amount, and the rest refills. It is never more, so no
// refund lifts the bound of any interval. The exact amount, the least that the bucket owed since the charge, would need a
// history. A refund or reset uses a clock of at least lastCharge, the latest time of a charge: by then the bucket has
// refilled, whatever the refund has read. So arrival - credit is never before lastCharge, and an operation with an older time
// changes the state as it would have at lastCharge. A take with an older time is only harder to admit.

// maxRate is the largest Max of a bucket that package limit accepts.
const maxRate int64 = 1 << 52

// span is a time of micros + frac/rate microseconds, 0 <= frac < rate: per/rate is rarely a whole number.
type span struct{ micros, frac int64 }

// refillTime returns the time in which cost tokens refill.
func refillTime(l *limit.Limit, cost int64) span {
	micros, frac := l.Refill(cost)
	return span{micros, frac}
}

// tokens returns how many tokens refill within s, at most Burst; 0 for a negative span.
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

// ceil returns the first whole microsecond that is not before s.
func (s span) ceil() int64 {
	if s.frac > 0 {
		return s.micros + 1
	}
	return s.micros
}

// rescale returns s under a rate that may have been larger when the fraction was computed: the limit may have changed.
func (s span) rescale(rate int64) span {
	return span{s.micros, min(s.frac, rate-1)}
}

// maxCredit bounds the refunds of one generation, in microseconds. It keeps arrival below MaxCount; a refund beyond it
// changes nothing.
const maxCredit = 1 << 52

// peak returns the latest moment at which the bucket was ever to be full. Its whole microseconds are in end, rounded up.
func (e *entry) peak() span {
	if e.used == 0 {
		return span{micros: e.end}
	}
	return span{e.end - 1, e.used}
}

func (e *entry) setPeak(s span) { e.end, e.used = s.ceil(), s.frac }

// fullAt returns when the bucket is full again; not before now.
func (e *entry) fullAt(l *limit.Limit, now At) span {
	if e.empty(now) {
		return span{micros: now.Micros}
	}
	return maxSpan(span{micros: now.Micros}, e.arrival.rescale(l.Max).minus(e.credit.rescale(l.Max), l.Max))
}

// waitBucket returns how long a request of cost has to wait; 0 if it fits.
func (e *entry) waitBucket(l *limit.Limit, now At, cost int64) int64 {
	next := e.fullAt(l, now).plus(refillTime(l, cost), l.Max)
	return max(next.minus(refillTime(l, l.Burst), l.Max).ceil()-now.Micros, 0)
}

func (e *entry) chargeBucket(l *limit.Limit, now At, cost int64) {
	full := e.fullAt(l, now)
	next := full.plus(refillTime(l, cost), l.Max)
	if latest := (span{micros: now.Micros + limit.MaxWindow.Microseconds()}); latest.less(next) { // no take gets there
		next = maxSpan(full, latest)
	}
	e.credit = e.credit.rescale(l.Max)
	e.arrival = next.plus(e.credit, l.Max)
	if e.end == 0 {
		e.began = now.Micros
	}
	e.lastCharge = max(e.lastCharge, now.Micros)
	e.setPeak(maxSpan(e.peak(), next))
	e.settleArrival()
}

// settleArrival makes the arrival of a bucket without credit its peak, as the encoding has it. They can differ by a fraction after
// the rate was lowered.
func (e *entry) settleArrival() {
	if e.credit == (span{}) {
		e.arrival = e.peak()
	}
}

// refundBucket refunds the part of a charge that has not refilled.
func (e *entry) refundBucket(l *limit.Limit, now At, c chargeRef, amount int64) {
	if c.end <= e.lastCharge {
		return // it had refilled when the last charge was made, maybe in an earlier generation
	}
	if e.arrival.less(c.position) {
		return // the charge was lost with an earlier copy
	}
	now.Micros = max(now.Micros, e.lastCharge)
	left := c.position.rescale(l.Max).minus(e.credit.rescale(l.Max), l.Max).minus(span{micros: now.Micros}, l.Max)
	if give := refillTime(l, amount); !left.less(give) {
		left = give
	}
	e.addCredit(l, left)
}

// refill refunds everything.
func (e *entry) refill(l *limit.Limit, now At) {
	now.Micros = max(now.Micros, e.lastCharge)
	e.addCredit(l, e.fullAt(l, now).minus(span{micros: now.Micros}, l.Max))
}

func (e *entry) addCredit(l *limit.Limit, s span) {
	if credit := e.credit.rescale(l.Max).plus(s, l.Max); s.micros >= 0 && credit.micros < maxCredit {
		e.credit = credit
		e.settleArrival()
	}
}

func (e *entry) joinBucket(f *entry) bool {
	before := *e
	peak := maxSpan(e.peak(), f.peak())
	switch {
	case e.began == f.began:
		e.lastCharge = max(e.lastCharge, f.lastCharge)
		e.arrival = maxSpan(e.arrival, f.arrival)
		e.credit = maxSpan(e.credit, f.credit)
	case e.began < f.began:
		e.began, e.lastCharge, e.credit = f.began, f.lastCharge, f.credit
		e.arrival = maxSpan(f.arrival, before.peak())
	default:
		e.arrival = maxSpan(e.arrival, f.peak())
	}
	e.setPeak(peak)
	return !e.sameBucket(&before)
}

func (e *entry) sameBucket(f *entry) bool {
	return e.end == f.end && e.used == f.used && e.began == f.began && e.lastCharge == f.lastCharge &&
		e.arrival == f.arrival && e.credit == f.credit
}
