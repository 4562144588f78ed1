package state

import (
	"slices"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// A sliding window of n = window / precision sub-buckets. Sub-bucket i is the span [i x precision, (i+1) x
// precision) and leaves the window at (i+n) x precision; end is that moment for the newest one charged, so subs[j]
// leaves at end - j x precision. A clock that lags behind end charges the newest sub-bucket.

func (id identity) subBuckets() int64 { return int64(id.parts) }

func (id identity) precisionMicros() int64 { return int64(id.precision() / time.Microsecond) }

// slidingEnd is when the sub-bucket of now leaves the window.
func slidingEnd(id identity, now At) int64 {
	return floorTo(now.Micros, id.precisionMicros()) + int64(id.window/time.Microsecond)
}

// subEnd returns when subs[j] leaves the window.
func (e *entry) subEnd(j int) int64 { return e.end - int64(j)*e.id.precisionMicros() }

// lag returns by how many sub-buckets the newest one charged is older than that of now.
func (e *entry) lag(now At) int64 {
	return max(slidingEnd(e.id, now)-e.end, 0) / e.id.precisionMicros()
}

// live is how many of subs are still in the window at now, and what they add up to.
func (e *entry) live(now At) (n int, used int64) {
	if e.empty(now) {
		return 0, 0
	}
	behind, size := e.lag(now), e.id.subBuckets()
	n, used = len(e.subs), e.used
	for ; n > 0 && int64(n-1)+behind >= size; n-- {
		used -= e.subs[n-1].used()
	}
	return n, used
}

// waitSliding is how long a request of cost has to wait until enough sub-buckets have left; 0 if it fits.
func (e *entry) waitSliding(l *limit.Limit, now At, cost int64) int64 {
	n, used := e.live(now)
	var wait int64
	if n > 0 && e.lag(now) == 0 && cost > limit.MaxCount-e.subs[0].charged { // the next sub-bucket can count it
		wait = e.subEnd(0) - int64(l.Window/time.Microsecond) + e.id.precisionMicros() - now.Micros
	}
	tooMany := cost - (l.Max - used)
	if n == 0 || tooMany <= 0 {
		return wait
	}
	j := n - 1
	for ; j > 0; j-- {
		if tooMany -= e.subs[j].used(); tooMany <= 0 {
			break
		}
	}
	return max(wait, e.subEnd(j)-now.Micros)
}

func (e *entry) chargeSliding(now At, cost int64) {
	e.advance(max(slidingEnd(e.id, now), e.end))
	e.subs[0].charged += cost
	e.used += cost
	e.trim()
}

// advance makes the newest sub-bucket the one that leaves at end, which is not before e.end.
func (e *entry) advance(end int64) {
	step := (end - e.end) / e.id.precisionMicros()
	switch size := e.id.subBuckets(); {
	case step >= size: // all have left, or there was none
		e.end, e.used, e.subs = end, 0, append(e.subs[:0], count{})
	case step > 0:
		n := len(e.subs)
		for ; int64(n)+step > size; n-- {
			e.used -= e.subs[n-1].used()
		}
		e.subs = slices.Grow(e.subs[:n], int(step))[:n+int(step)]
		copy(e.subs[step:], e.subs[:n])
		clear(e.subs[:step])
		e.end = end
	}
}

// trim drops what was never charged from the old end, so that equal counts are equal states.
func (e *entry) trim() {
	n := len(e.subs)
	for n > 1 && e.subs[n-1].charged == 0 {
		n--
	}
	e.subs = e.subs[:n]
}

func (e *entry) refundSliding(c chargeRef, amount int64) {
	j := (e.end - c.end) / e.id.precisionMicros()
	if 0 <= j && j < int64(len(e.subs)) {
		e.used -= e.subs[j].refund(c.position.micros, amount)
	}
}

// resetSliding is when the newest sub-bucket that holds anything leaves, or the newest of all if none does.
func (e *entry) resetSliding(now At) int64 {
	n, _ := e.live(now)
	for j := range n {
		if e.subs[j].used() > 0 {
			return e.subEnd(j)
		}
	}
	return e.end
}

func (e *entry) joinSliding(f *entry) bool {
	before, beforeEnd := slices.Clone(e.subs), e.end
	precision, end := e.id.precisionMicros(), max(e.end, f.end)
	at := func(x *entry, j int) count { // the sub-bucket that leaves at end - j x precision
		if i := int64(j) - (end-x.end)/precision; x.end != 0 && i >= 0 && i < int64(len(x.subs)) {
			return x.subs[i]
		}
		return count{}
	}
	subs, used := make([]count, e.id.subBuckets()), int64(0)
	for j := range subs {
		subs[j] = at(e, j).join(at(f, j))
		used += subs[j].used()
	}
	e.end, e.subs, e.used = end, subs, used
	e.trim()
	return e.end != beforeEnd || !slices.Equal(e.subs, before)
}
