package state

import "github.com/sluice-go/sluice/limit"

// Work is admitted on credit if it is admitted first, by a state that may lag, and charged afterwards with a mark.

// Credit fills in the verdict, into a zero one, on an admission of cost 1 at now that is charged later, by what s knows, and
// returns the mark of that charge. The verdict's position of a charge is the lowest that it can have. It is false if s denies the
// admission, or if the window of some limit starts at its first request and s knows of none: only the server opens one.
func (s *State) Credit(v *Verdict, p *limit.Policy, now At) (mark Mark, ok bool) {
	s.alignTo(p)
	for i := range p.Limits {
		if l := &p.Limits[i]; l.Algorithm == limit.FixedWindow && l.Alignment == limit.FirstRequest && s.entries[i].empty(now) {
			return mark, false
		}
	}
	known := s.Clone()
	if known.TakeTo(v, p, now, 1); !v.Allowed {
		return mark, false
	}
	for i := range p.Limits {
		if p.Limits[i].Algorithm == limit.Bucket {
			mark.set(i, now.Micros)
		} else {
			mark.set(i, v.outcome(i).reset)
		}
	}
	return mark, true
}

// Owe fills in the verdict on a part of what v, a verdict of [State.Credit], stands for: cost is admitted, and with it owed is
// admitted and not charged yet.
func (v *Verdict) Owe(part *Verdict, cost, owed int64) {
	*part = *v
	part.cost, part.spare = cost, 1-owed
	for i := range min(len(v.policy.Limits), inlineLimits) { // the others share memory with v, and refund less
		if l := &v.policy.Limits[i]; l.Algorithm == limit.Bucket {
			f, more := &part.inline[i], refillTime(l, owed-1)
			f.span = f.span.plus(more, l.Max)
			f.reset += more.ceil()
		}
	}
}

// SameWindows reports whether two marks of a policy name the same windows and sub-buckets. Buckets have none.
func (m *Mark) SameWindows(p *limit.Policy, o *Mark) bool {
	for i := range p.Limits {
		if p.Limits[i].Algorithm != limit.Bucket && m.At(i) != o.At(i) {
			return false
		}
	}
	return true
}

// Admit marks the buckets of a policy with the moment of an admission, in Unix microseconds.
func (m *Mark) Admit(p *limit.Policy, micros int64) {
	if more := len(p.Limits) - inlineLimits; more > 0 {
		m.more = append(make([]int64, 0, more), m.more...)[:more]
	}
	for i := range p.Limits {
		switch l := &p.Limits[i]; {
		case l.Algorithm != limit.Bucket:
		case i < inlineLimits:
			m.inline[i] = micros
		default:
			m.more[i-inlineLimits] = micros
		}
	}
}

// Until is the moment, in Unix microseconds, from which on nothing counts that has the mark. A bucket counts for as long as a full
// burst refills, if nobody asks for it meanwhile.
func (m *Mark) Until(p *limit.Policy) int64 {
	var until int64
	for i := range p.Limits {
		l, at := &p.Limits[i], m.At(i)
		if l.Algorithm == limit.Bucket {
			at += refillTime(l, l.Burst).ceil()
		}
		until = max(until, at)
	}
	return until
}

// Excess is by how much more than a limit holds is charged to it, of the limit with the most; 0 if all hold what is charged.
func (s *State) Excess(p *limit.Policy, now At) (most int64) {
	s.alignTo(p)
	for i := range p.Limits {
		e, l := &s.entries[i], &p.Limits[i]
		switch {
		case e.empty(now):
		case l.Algorithm == limit.SlidingWindow:
			_, used := e.live(now)
			most = max(most, used-l.Max)
		case l.Algorithm == limit.Bucket:
			full := e.fullAt(l, now).minus(span{micros: now.Micros}, l.Max)
			if beyond := full.minus(refillTime(l, l.Burst), l.Max); beyond.micros >= 0 {
				unit := *l // tokens of a duration stop at Burst
				unit.Burst = limit.MaxCount
				most = max(most, tokens(&unit, beyond))
			}
		default:
			most = max(most, e.count.used()-l.Max)
		}
	}
	return most
}
