package limit

import (
	"slices"
	"time"
)

// A sliding window of n = window / precision sub-buckets. Sub-bucket i is the span [i x precision, (i+1) x
// precision) and leaves the window at (i+n) x precision; end is that moment for the newest one charged, so subs[j]
// leaves at end - j x precision. A clock that lags behind end charges the newest sub-bucket.

func (id identity) subBuckets() int { return int(id.window / id.precision) }

func (id identity) precisionMillis() int64 { return int64(id.precision / time.Millisecond) }

// slidingEnd is when the sub-bucket of now leaves the window, in Unix milliseconds.
func slidingEnd(id identity, now At) int64 {
	return floorTo(now.millis(), id.precisionMillis()) + int64(id.window/time.Millisecond)
}

// live is how many of subs are still in the window at now, and what they add up to.
func (e *entry) live(now At) (n int, used int64) {
	if e.end == 0 {
		return 0, 0
	}
	step := (slidingEnd(e.id, now) - e.end) / e.id.precisionMillis()
	n, used = len(e.subs), e.used
	for ; n > 0 && int64(n-1)+step >= int64(e.id.subBuckets()); n-- {
		used -= e.subs[n-1].used()
	}
	return n, used
}

// shortSliding is how long a request of cost has to wait until enough sub-buckets have left; 0 if it fits.
func (e *entry) shortSliding(l *Limit, now At, cost int64) int64 {
	n, used := e.live(now)
	tooMany := cost - (l.Max - used)
	overflow := n > 0 && cost > MaxCount-e.subs[0].charged
	if tooMany <= 0 && !overflow {
		return 0
	}
	if overflow {
		return e.leaves(0) - now.Micros
	}
	j := n - 1
	for ; j > 0; j-- {
		if tooMany -= e.subs[j].used(); tooMany <= 0 {
			break
		}
	}
	return e.leaves(j) - now.Micros
}

// leaves is when subs[j] leaves the window, in Unix microseconds.
func (e *entry) leaves(j int) int64 {
	return (e.end - int64(j)*e.id.precisionMillis()) * 1000
}

func (e *entry) chargeSliding(now At, cost int64) {
	end := slidingEnd(e.id, now)
	if e.end == 0 {
		e.end, e.subs = end, append(e.subs[:0], count{})
	}
	if step := int((end - e.end) / e.id.precisionMillis()); step > 0 {
		n, used := e.live(now)
		e.used = used
		e.subs = slices.Grow(e.subs[:n], step)[:n+step]
		copy(e.subs[step:], e.subs[:n])
		clear(e.subs[:step])
		e.end = end
	}
	e.subs[0].charged += cost
	e.used += cost
	e.trim()
}

// trim drops what was never charged from the old end, so that equal counts are equal states.
func (e *entry) trim() {
	n := len(e.subs)
	for n > 1 && e.subs[n-1].charged == 0 {
		n--
	}
	e.subs = e.subs[:n]
}

// refundSliding gives back to the sub-bucket that leaves at end.
func (e *entry) refundSliding(end, amount int64) {
	j := (e.end - end) / e.id.precisionMillis()
	if j >= 0 && j < int64(len(e.subs)) {
		e.used -= e.subs[j].refund(amount)
	}
}

// resetSliding is when the newest sub-bucket that holds anything leaves; the end if none does.
func (e *entry) resetSliding() int64 {
	for j := range e.subs {
		if e.subs[j].used() > 0 {
			return e.leaves(j)
		}
	}
	return e.leaves(0)
}

func (e *entry) joinSliding(f *entry) bool {
	before, beforeEnd := slices.Clone(e.subs), e.end
	precision := e.id.precisionMillis()
	end := max(e.end, f.end)
	at := func(x *entry, j int) count { // the sub-bucket that leaves at end - j x precision
		if x.end != 0 {
			if i := int64(j) - (end-x.end)/precision; i >= 0 && i < int64(len(x.subs)) {
				return x.subs[i]
			}
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
