package state

import (
	"slices"

	"github.com/sluice-go/sluice/limit"
)

// At is the time of an operation and a hash of the key: pure code has no clock and no hash.
type At struct {
	Micros int64  // Unix time in microseconds, by the server's clock; not negative
	Phase  uint64 // a hash of the key, the same in every process; used by staggered windows only
}

// State is the stored state of one key: an entry for each limit. The zero value is the state of an unknown key. A State is not
// safe for concurrent use; copies made by assignment share memory, [State.Clone] does not.
type State struct {
	entries []entry
}

// entry is the state of one limit, or the fence of a handover. In every algorithm the entry expires at end, and its counts
// only grow until then.
//
//	fixed     end: the reset.                                        count: charged and refunded in the window
//	sliding   end: when the newest sub-bucket leaves the window.     subs: the same per sub-bucket
//	bucket    end, used: the peak, rounded up, and its fraction.     began, lastCharge, arrival, credit: see bucket.go
//	fence     end: until when it is kept.                            count: versions, see handover.go
//
// An entry with end 0 is empty. An expired one counts as empty.
type entry struct {
	id    identity
	end   int64 // Unix time in microseconds; of windows whole milliseconds
	count count
	used  int64   // sliding: what subs add up to; see above for a bucket
	subs  []count // sliding: newest first, without a gap; the oldest has been charged

	began, lastCharge int64 // Unix time in microseconds
	arrival, credit   span
}

// count holds what was charged and refunded within one window or sub-bucket. A reset voids all charges so far: charges up to
// void can't be refunded. All three only grow.
type count struct{ charged, refunded, void int64 }

func (c count) used() int64 { return c.charged - c.refunded }

// refund refunds amount of the charge that raised charged to position, and returns how much it refunded: never more than is
// used, and nothing if this copy lacks the charge or a reset voided it.
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

// empty reports whether nothing counts at now.
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

// Until returns when the whole state expires, in Unix microseconds; 0 for an empty state. A copy may be dropped then and not
// before, even if everything was refunded: an older copy that arrives as a floor must meet the refund.
func (s *State) Until() int64 {
	var until int64
	for i := range s.entries {
		until = max(until, s.entries[i].end)
	}
	return until
}

// Empty reports whether the state holds nothing.
func (s *State) Empty() bool { return s.Until() == 0 }

// Equal reports whether both hold the same entries, in any order.
func (s *State) Equal(o *State) bool { return s.Within(o) && o.Within(s) }

// Within reports whether o holds all entries of s as they are. It may hold others.
func (s *State) Within(o *State) bool {
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

// alignTo puts the entries into the policy's order, one for each limit. Entries of other limits stay behind them: during a
// deploy two policies may be in use. It drops nothing: a clock may step back.
func (s *State) alignTo(p *limit.Policy) {
	for i := range p.Limits {
		if id := identityOf(&p.Limits[i]); i >= len(s.entries) || s.entries[i].id != id {
			s.moveEntry(i, id)
		}
	}
}

// forget drops expired entries behind the first n.
func (s *State) forget(n int, now At) {
	if len(s.entries) > n {
		kept := slices.DeleteFunc(s.entries[n:], func(e entry) bool { return e.empty(now) })
		s.entries = s.entries[:n+len(kept)]
	}
}

// Forget drops expired entries.
func (s *State) Forget(now At) { s.forget(0, now) }

// moveEntry moves the entry of id to position i, and creates it if needed.
func (s *State) moveEntry(i int, id identity) {
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

// Merge merges two copies of one key's state. It ignores entries that are over at now; the later window wins, and within one
// window the larger charged and the larger refunded. At any one time it is commutative, associative and idempotent, so copies
// may be merged in any order. The result shares no memory with a or b.
//
// Overlapping windows of one limit are those before and after a loss: the use of the earlier one counts as charged in the
// later one. With three such windows, refunds in the second may count as refunds in the third. Of two generations of a bucket
// the later one wins, and it is not full before the latest time at which the earlier one was to be.
func Merge(a, b State, now At) State {
	m := a.Clone()
	m.forget(0, now)
	for i := range b.entries {
		m.mergeEntry(&b.entries[i], now)
	}
	return m
}

// mergeEntry merges an entry of another copy, unless it has expired.
func (s *State) mergeEntry(f *entry, now At) {
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

// Join merges the entries of the policy's limits in floor into s; it is Merge for a take that follows. It reports whether s
// has changed.
func (s *State) Join(p *limit.Policy, now At, floor *State) bool {
	s.alignTo(p)
	changed := false
	for i := range p.Limits {
		e := &s.entries[i]
		if f := floor.find(e.id); f != nil && !f.empty(now) {
			if e.empty(now) {
				e.clear()
			}
			changed = e.join(f) || changed
		}
	}
	return changed
}

// join merges f into e, and reports whether e has changed.
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
