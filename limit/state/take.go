package state

import (
	"time"

	"github.com/sluice-go/sluice/limit"
)

// Take checks cost against every limit of the policy and, if all admit it, charges all of them. A denied request
// changes nothing. The policy must be valid and cost within [limit.Policy.CheckCost].
func (s *State) Take(p *limit.Policy, now At, cost int64) (v Verdict) {
	s.TakeTo(&v, p, now, cost)
	return v
}

// TakeTo is Take into a zero verdict. Without the copy a take in memory takes 0.9 of the time.
func (s *State) TakeTo(v *Verdict, p *limit.Policy, now At, cost int64) {
	s.conform(p)
	v.of(p)
	if v.Allowed = s.admits(v, now, cost); v.Allowed {
		for i := range p.Limits {
			s.entries[i].charge(&p.Limits[i], now, cost)
		}
		s.forget(len(p.Limits), now)
		v.cost = cost
	}
	s.describe(v, now)
}

// Peek is the verdict that Take would give, without the charge: Remaining is what is left now.
func (s *State) Peek(p *limit.Policy, now At, cost int64) (v Verdict) {
	s.PeekTo(&v, p, now, cost)
	return v
}

// PeekTo is Peek into a zero verdict.
func (s *State) PeekTo(v *Verdict, p *limit.Policy, now At, cost int64) {
	s.conform(p)
	v.of(p)
	v.Allowed = s.admits(v, now, cost)
	s.describe(v, now)
}

// Taken is the verdict of a take that was decided elsewhere, such as in a script, and left s behind.
func (s *State) Taken(p *limit.Policy, now At, cost int64, allowed bool) (v Verdict) {
	s.conform(p)
	v.of(p)
	if v.Allowed = allowed; allowed {
		v.cost = cost
	} else {
		s.admits(&v, now, cost)
	}
	s.describe(&v, now)
	return v
}

// Refund gives back amount of the charge that the receipt names, and no more than the charge. A refund for a window
// that is over, for a charge that a reset gave back, or for one that s knows nothing of, changes nothing. A receipt
// must be used once only.
func (s *State) Refund(now At, r *Receipt, amount int64) {
	if amount = r.Refundable(amount); amount < 1 {
		return
	}
	p := r.policy
	s.conform(p)
	for i := range p.Limits {
		e, l, m := &s.entries[i], &p.Limits[i], r.mark(i)
		switch {
		case now.Micros >= m.end || e.empty(now):
		case l.Algorithm == limit.SlidingWindow:
			e.refundSliding(m, amount)
		case l.Algorithm == limit.Bucket:
			e.refundBucket(l, now, m, amount)
		case m.end == e.end:
			e.count.refund(m.position.micros, amount)
		}
	}
}

// Reset gives back everything that is charged. The windows stay: a key that was reset is known to be so, and no
// older copy can undo it.
func (s *State) Reset(p *limit.Policy, now At) {
	s.conform(p)
	for i := range p.Limits {
		e, l := &s.entries[i], &p.Limits[i]
		switch {
		case e.empty(now):
		case l.Algorithm == limit.SlidingWindow:
			for j := range e.subs {
				e.subs[j].reset()
			}
			e.used = 0
		case l.Algorithm == limit.Bucket:
			e.refill(l, now)
		default:
			e.count.reset()
		}
	}
}

// Usage is the cost that was charged and not given back within the last interval, from the sliding limit of the
// policy with the finest precision whose window covers it, and that limit; false where no limit can tell. It
// counts whole sub-buckets: the last ceil(interval / precision), so it is blurred by one precision.
func (s *State) Usage(p *limit.Policy, now At, interval time.Duration) (used int64, by limit.Limit, ok bool) {
	s.conform(p)
	best := -1
	for i := range p.Limits {
		l := &p.Limits[i]
		if l.Algorithm == limit.SlidingWindow && interval <= l.Window &&
			(best < 0 || l.Precision < p.Limits[best].Precision) {
			best = i
		}
	}
	if best < 0 || interval <= 0 {
		return 0, limit.Limit{}, false
	}
	e, l := &s.entries[best], p.Limits[best]
	n, _ := e.live(now)
	behind, last := e.behind(now), int64((interval+l.Precision-1)/l.Precision)
	for j := range n {
		if int64(j)+behind < last {
			used += e.subs[j].used()
		}
	}
	return used, l, true
}

// admits reports whether every limit admits cost, and notes how long those that don't make it wait.
func (s *State) admits(v *Verdict, now At, cost int64) bool {
	all := true
	for i := range v.policy.Limits {
		if wait := s.entries[i].short(&v.policy.Limits[i], now, cost); wait > 0 {
			v.facts(i).span.micros = wait
			all = false
		}
	}
	return all
}

// short is how many microseconds a request of cost has to wait for this limit; 0 if it fits.
func (e *entry) short(l *limit.Limit, now At, cost int64) int64 {
	if cost < 0 || cost > l.Quota() {
		return never // the caller has not checked the cost
	}
	switch l.Algorithm {
	case limit.SlidingWindow:
		return e.shortSliding(l, now, cost)
	case limit.Bucket:
		return e.shortBucket(l, now, cost)
	}
	return e.shortFixed(l, now, cost)
}

func (e *entry) charge(l *limit.Limit, now At, cost int64) {
	if e.empty(now) {
		e.clear()
	}
	switch l.Algorithm {
	case limit.SlidingWindow:
		e.chargeSliding(now, cost)
	case limit.Bucket:
		e.chargeBucket(l, now, cost)
	default:
		e.chargeFixed(now, cost)
	}
}

// describe fills in remaining, reset and, of a charge, the position in every limit, and picks the binding one.
func (s *State) describe(v *Verdict, now At) {
	for i := range v.policy.Limits {
		e, l, f := &s.entries[i], &v.policy.Limits[i], v.facts(i)
		var position span
		switch empty := e.empty(now); {
		case l.Algorithm == limit.Bucket:
			full, present := e.full(l, now), span{micros: now.Micros}
			f.remaining = tokens(l, spend(l, l.Burst).minus(full.minus(present, l.Max), l.Max))
			position = e.arrival
			if full == present {
				full = full.plus(spend(l, 1), l.Max)
			}
			f.reset = full.up()
		case empty:
			f.remaining = l.Max
			f.reset = e.firstEnd(now)
		case l.Algorithm == limit.SlidingWindow:
			_, used := e.live(now)
			f.remaining = l.Max - used
			position.micros = e.subs[0].charged
			f.reset = e.resetSliding(now)
		default:
			f.remaining = l.Max - e.count.used()
			position.micros = e.count.charged
			f.reset = e.end
		}
		f.remaining = max(f.remaining, 0)
		if v.cost > 0 {
			f.span = position
		}
	}
	v.bind()
}

// firstEnd is the end of a window that the first charge at now would open.
func (e *entry) firstEnd(now At) int64 {
	if e.id.algorithm == limit.SlidingWindow {
		return slidingEnd(e.id, now)
	}
	return fixedEnd(e.id, now)
}
