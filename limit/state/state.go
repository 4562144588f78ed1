package state

import (
	"slices"

	"github.com/sluice-go/sluice/limit"
)

// At is the moment of an operation, and the key's share of randomness: pure code has no clock and no hash.
type At struct {
	Micros int64  // Unix time in microseconds, by the clock of whoever decides; not negative
	Phase  uint64 // a hash of the key, the same in every process; used by staggered windows only
}

// State is what is remembered of one key: an entry for each limit. The zero value is a key that nothing is known
// of. A State is not safe for concurrent use; copies made by assignment share memory, [State.Clone] does not.
type State struct {
	entries []entry
}

// entry is the state of one limit, or the fence of a handover. Every algorithm has an end from which on the entry is over, and counts that
// only grow until then.
//
//	fixed     end: the reset.                                        count: charged and refunded in the window
//	sliding   end: when the newest sub-bucket leaves the window.     subs: the same per sub-bucket
//	bucket    end, used: the peak, rounded up, and its fraction.     birth, seen, arrival, credit: see bucket.go
//	fence     end: until when it is kept.                            count: versions, see handover.go
//
// An entry with end 0 is empty, and one that is over counts as such.
type entry struct {
	id    identity
	end   int64 // Unix time in microseconds; of windows whole milliseconds
	count count
	used  int64   // sliding: what subs add up to; see above for a bucket
	subs  []count // sliding: newest first, without a gap; the oldest has been charged

	birth, seen     int64 // Unix time in microseconds
	arrival, credit span
}

// count is what was charged and given back within one window or sub-bucket. Charges up to void were given back by a
// reset: their receipts are worth nothing. All only grow.
type count struct{ charged, refunded, void int64 }

func (c count) used() int64 { return c.charged - c.refunded }

// refund gives back amount of the charge that brought charged to position, and returns how much that was: nothing if
// the charge is not known here or was given back by a reset, and never more than is used.
func (c *count) refund(position, amount int64) int64 {
	if position > c.charged || position <= c.void {
		return 0
	}
	amount = min(amount, c.used())
	c.refunded += amount
	return amount
}

func (c *count) reset() { c.refunded, c.void = c.charged, c.charged }

func (c count) atLeast(charged int64) count {
	c.charged = max(c.charged, charged)
	return c
}

func (c count) join(o count) count {
	return count{max(c.charged, o.charged), max(c.refunded, o.refunded), max(c.void, o.void)}
}

// empty reports whether nothing that counts at now is remembered.
func (e *entry) empty(now At) bool { return now.Micros >= e.end }

func (e *entry) clear() {
	*e = entry{id: e.id, subs: e.subs[:0]}
}

// Clone returns a copy that shares no memory.
func (s *State) Clone() State {
	c := State{entries: slices.Clone(s.entries)}
	for i := range c.entries {
		c.entries[i] = c.entries[i].clone()
	}
	return c
}

func (e *entry) clone() entry {
	c := *e
	c.subs = slices.Clone(e.subs)
	return c
}

// Until is the moment, in Unix microseconds, from which on the whole state is over; 0 for an empty state. A copy
// may be forgotten then and not before, also where everything has been given back: an older copy that comes back
// as a floor must find the refund.
func (s *State) Until() int64 {
	var until int64
	for i := range s.entries {
		until = max(until, s.entries[i].end)
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
		if f == nil || e.end != f.end || e.count != f.count || e.used != f.used || !e.sameBucket(f) || !slices.Equal(e.subs, f.subs) {
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

// conform puts the entries into the policy's order, one for each limit. Entries of limits that the policy doesn't
// have stay behind them: during a deploy two policies may be alive. It forgets nothing: a clock may step back.
func (s *State) conform(p *limit.Policy) {
	for i := range p.Limits {
		if id := identityOf(&p.Limits[i]); i >= len(s.entries) || s.entries[i].id != id {
			s.place(i, id)
		}
	}
}

// forget drops the entries behind the first n that are over.
func (s *State) forget(n int, now At) {
	if len(s.entries) > n {
		kept := slices.DeleteFunc(s.entries[n:], func(e entry) bool { return e.empty(now) })
		s.entries = s.entries[:n+len(kept)]
	}
}

// Forget drops what is over.
func (s *State) Forget(now At) { s.forget(0, now) }

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

// Merge joins two copies of one key's state: what is over at now is ignored, the later window wins, and within one
// window the larger charged and the larger refunded. At any one moment it is commutative, associative and idempotent,
// so copies may be joined wherever they come from. The result shares no memory with a or b.
//
// Two windows of one limit that overlap are those before and after a loss: what was used in the earlier one counts as charged
// in the later one. Of three, what was given back in the second may count as given back in the third. Of two lives of a
// bucket the later one wins, and it is not full before the latest moment at which the earlier was to be.
func Merge(a, b State, now At) State {
	m := a.Clone()
	m.forget(0, now)
	for i := range b.entries {
		m.learn(&b.entries[i], now)
	}
	return m
}

// learn joins an entry of another copy, if it isn't over.
func (s *State) learn(f *entry, now At) {
	if f.empty(now) {
		return
	}
	e := s.find(f.id)
	if e == nil {
		s.entries = append(s.entries, entry{id: f.id})
		e = &s.entries[len(s.entries)-1]
	}
	if e.empty(now) {
		e.clear()
	}
	e.join(f)
}

// Join merges into s what another copy knows of the policy's limits; it is Merge for a take that follows. It reports
// whether s learned anything.
func (s *State) Join(p *limit.Policy, now At, floor *State) bool {
	s.conform(p)
	learned := false
	for i := range p.Limits {
		e := &s.entries[i]
		if f := floor.find(e.id); f != nil && !f.empty(now) {
			if e.empty(now) {
				e.clear()
			}
			learned = e.join(f) || learned
		}
	}
	return learned
}

// join reports whether e learned anything from f.
func (e *entry) join(f *entry) bool {
	switch e.id.algorithm {
	case limit.SlidingWindow:
		return e.joinSliding(f)
	case limit.Bucket:
		return e.joinBucket(f)
	case fenced:
		return e.joinFence(f)
	}
	return e.joinFixed(f)
}
