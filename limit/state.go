package limit

import "slices"

// At is the moment of an operation, and the key's share of randomness: pure code has no clock and no hash.
type At struct {
	Micros int64  // Unix time in microseconds, by the clock of whoever decides; not negative
	Phase  uint64 // a hash of the key, the same in every process; used by staggered windows only
}

func (a At) millis() int64 { return a.Micros / 1000 }

// State is what is remembered of one key: an entry for each limit. The zero value is a key that nothing is known
// of. A State is not safe for concurrent use; copies made by assignment share memory, [State.Clone] does not.
type State struct {
	entries []entry
}

// entry is the state of one limit. Every algorithm has an end from which on the entry is over, and counts that
// only grow until then.
//
//	fixed     end: the reset.                                            count: charged and refunded in the window
//	sliding   end: when the newest sub-bucket leaves the window.         subs: the same per sub-bucket
//	bucket    end: the arrival time, rounded up; see bucket.go           arrival, credit
//
// An entry with end 0 is empty.
type entry struct {
	id    identity
	end   int64 // Unix time, milliseconds for windows, microseconds for the bucket
	count count
	used  int64   // sliding: what subs add up to
	subs  []count // sliding: newest first, without a gap; the oldest has been charged

	arrival, credit span
}

// count is what was charged and given back within one window or sub-bucket; both only grow.
type count struct{ charged, refunded int64 }

func (c count) used() int64 { return c.charged - c.refunded }

// refund gives back at most amount and never more than was charged.
func (c *count) refund(amount int64) int64 {
	amount = min(amount, c.used())
	c.refunded += amount
	return amount
}

func (c count) join(o count) count {
	return count{max(c.charged, o.charged), max(c.refunded, o.refunded)}
}

// endMicros is when the entry is over.
func (e *entry) endMicros() int64 {
	if e.id.algorithm == Bucket {
		return e.end
	}
	return e.end * 1000
}

func (e *entry) over(nowMicros int64) bool { return nowMicros >= e.endMicros() }

func (e *entry) clear() {
	*e = entry{id: e.id, subs: e.subs[:0]}
}

// Clone returns a copy that shares no memory.
func (s *State) Clone() State {
	c := State{entries: slices.Clone(s.entries)}
	for i := range c.entries {
		c.entries[i].subs = slices.Clone(c.entries[i].subs)
	}
	return c
}

// Until is the moment, in Unix microseconds, from which on the whole state is over; 0 for an empty state. A copy
// may be forgotten then and not before, also where everything has been given back: an older copy that comes back
// as a floor must find the refund.
func (s *State) Until() int64 {
	var until int64
	for i := range s.entries {
		until = max(until, s.entries[i].endMicros())
	}
	return until
}

// Empty reports whether nothing is remembered.
func (s *State) Empty() bool { return s.Until() == 0 }

// Equal reports whether both remember the same, in whatever order.
func (s *State) Equal(o *State) bool { return s.within(o) && o.within(s) }

func (s *State) within(o *State) bool {
	for i := range s.entries {
		e := &s.entries[i]
		if e.end == 0 {
			continue
		}
		f := o.find(e.id)
		if f == nil || e.end != f.end || e.count != f.count || e.used != f.used ||
			e.arrival != f.arrival || e.credit != f.credit || !slices.Equal(e.subs, f.subs) {
			return false
		}
	}
	return true
}

func (s *State) find(id identity) *entry {
	for i := range s.entries {
		if s.entries[i].id == id {
			return &s.entries[i]
		}
	}
	return nil
}

// conform puts the entries into the policy's order, one for each limit, and forgets what is over at now. Entries
// of limits that the policy doesn't have are kept behind them: during a deploy two policies may be alive.
func (s *State) conform(p *Policy, nowMicros int64) {
	for i := range p.Limits {
		id := p.Limits[i].identity()
		if i >= len(s.entries) || s.entries[i].id != id {
			s.place(i, id)
		}
		if e := &s.entries[i]; e.end != 0 && e.over(nowMicros) {
			e.clear()
		}
	}
	if len(s.entries) > len(p.Limits) {
		foreign := slices.DeleteFunc(s.entries[len(p.Limits):], func(e entry) bool { return e.over(nowMicros) })
		s.entries = s.entries[:len(p.Limits)+len(foreign)]
	}
}

// place brings the entry of id to position i, making it where there is none.
func (s *State) place(i int, id identity) {
	for j := i + 1; j < len(s.entries); j++ {
		if s.entries[j].id == id {
			e := s.entries[j]
			copy(s.entries[i+1:j+1], s.entries[i:j])
			s.entries[i] = e
			return
		}
	}
	if s.entries == nil {
		s.entries = make([]entry, 0, 1)
	}
	s.entries = slices.Insert(s.entries, i, entry{id: id})
}

// Merge joins two copies of one key's state: the later window wins, and within one window the larger charged and
// the larger refunded. It is commutative, associative and idempotent, so copies may be joined wherever they come
// from. The result shares no memory with a or b.
func Merge(a, b State) State {
	m := a.Clone()
	for i := range b.entries {
		m.join(&b.entries[i])
	}
	return m
}

// Join merges what another copy knows of the policy's limits into s. What is over at now is ignored on both
// sides. It reports whether s learned anything.
func (s *State) Join(p *Policy, now At, floor *State) bool {
	s.conform(p, now.Micros)
	learned := false
	for i := range p.Limits {
		if f := floor.find(s.entries[i].id); f != nil && !f.over(now.Micros) {
			learned = s.entries[i].join(f) || learned
		}
	}
	return learned
}

func (s *State) join(f *entry) {
	if f.end == 0 {
		return
	}
	e := s.find(f.id)
	if e == nil {
		s.entries = append(s.entries, entry{id: f.id})
		e = &s.entries[len(s.entries)-1]
	}
	e.join(f)
}

// join reports whether e learned anything from f.
func (e *entry) join(f *entry) bool {
	switch e.id.algorithm {
	case SlidingWindow:
		return e.joinSliding(f)
	case Bucket:
		return e.joinBucket(f)
	}
	return e.joinFixed(f)
}
