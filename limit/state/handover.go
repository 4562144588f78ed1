package state

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// A key is handed over from one place to another by seal and floor. The mover seals the key at the old place, which freezes
// its state, and takes at the new place with that state as the floor, which adopts the key there. Each place keeps a fence
// beside the key's entries: the version under which the key was adopted there, and the version under which it was
// sealed. Both only grow. The place is frozen while sealed > adopted.
//
// At most one place charges under one version: a place charges under version v only once it has adopted the key at v or
// later, the adoption follows the seal of the other place at v or later, and the seal refuses v and everything before.
// Three things are outside of this: requests without a version, made while no key moves; [WithoutFloor]; and fences that
// were lost or have expired.

// Two kinds of movers may move a key at the same time, each with a fence of its own: a place of [Migration] may consist of
// several places of [Topology]. So the fence of a migration moves from group to group, with the key's counts.

// Mover is the mechanism that moves keys, and that the version of a [Move] belongs to.
type Mover uint8

const (
	Migration Mover = iota // from one backend to another, as dual.Dual does
	Topology               // from one group of servers to another, as package router does
)

// FenceID is the identity of the mover's fence in the encoding of a state.
func (m Mover) FenceID() string { return string(fenceOf(m).letter()) }

func (m Mover) String() string {
	if m == Topology {
		return "topology"
	}
	return "migration"
}

// Move is the handover that a request acts under. The zero Move means that no key moves: only a frozen place rejects it.
type Move struct {
	Mover   Mover
	Version int64         // from 1 to MaxCount; 0 for none. For one key, each version has one place
	Step    Step          // the stage of the handover
	TTL     time.Duration // how long a fence is kept: at least as long as the handover may take everywhere
}

// Step is the stage of a handover.
type Step uint8

const (
	// Ask: proceed if the place has adopted the key under this version or a later one, else [ErrFloorWanted].
	Ask Step = iota
	// Adopt: the floor is what the old place held when it was sealed under this version.
	Adopt
	// WithoutFloor: proceed without the floor, because the old place is unreachable. Nothing is adopted.
	WithoutFloor
)

// ErrFloorWanted is the reply of a place that has not adopted the key under the request's version: nothing was charged. The
// caller seals the old place and retries with the state of that as the floor.
var ErrFloorWanted = errors.New("sluice: the key's counts have not been handed over to this place")

// MovedError is the answer of a place that the key has left, or to which it has come back, under a newer version than
// the caller's: nothing was charged or sealed.
type MovedError struct {
	Mover   Mover // that moved it
	Version int64 // the newer one, or that of the seal for a request without a version
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("sluice: the key has moved under version %d of a %s", e.Version, e.Mover)
}

// IsRedirect reports whether an error is the answer of a place that the key is not in: [ErrFloorWanted] or a [*MovedError].
func IsRedirect(err error) bool {
	_, moved := errors.AsType[*MovedError](err)
	return moved || errors.Is(err, ErrFloorWanted)
}

// GiveBack is the move of a refund or a reset, which have no floor to adopt a key with.
func (m Move) GiveBack() Move {
	if m.Step == Adopt {
		m.Step = Ask
	}
	return m
}

// Validate reports everything that is wrong with the move, as [*Error] values joined.
func (m Move) Validate() error {
	var errs []error
	refuse := func(field, value, bound string) *limit.Error {
		return &limit.Error{Field: field, Value: value, Bound: bound}
	}
	if m.Version < 0 || m.Version > limit.MaxCount {
		errs = append(errs, refuse("move: version", strconv.FormatInt(m.Version, 10), fmt.Sprintf("must be from 0 to %d", limit.MaxCount)))
	}
	if m.Mover > Topology {
		errs = append(errs, refuse("move: mover", strconv.Itoa(int(m.Mover)), "unknown"))
	}
	if m.Step > WithoutFloor {
		errs = append(errs, refuse("move: step", strconv.Itoa(int(m.Step)), "unknown"))
	}
	if m.TTL < 0 || m.TTL > 2*limit.MaxWindow {
		errs = append(errs, refuse("move: ttl", m.TTL.String(), fmt.Sprintf("must be from 0 to %s", 2*limit.MaxWindow)))
	}
	return errors.Join(errs...)
}

// End is when a fence that is made at now expires, in Unix milliseconds.
func (m Move) End(now At) int64 { return (now.Micros + m.TTL.Microseconds() + 999) / 1000 }

// fenced is the algorithm of the entries that hold fences; the mover is in their alignment. Its counts are versions:
// charged is the one adopted, refunded the one sealed.
const fenced limit.Algorithm = 'm'

func fenceOf(m Mover) identity { return identity{algorithm: fenced, alignment: limit.Alignment(m)} }

// Enter admits a request that acts under m, or fails with [ErrFloorWanted] or a [*MovedError]. It precedes every other
// change, and reports whether the fence has changed.
func (s *State) Enter(now At, m Move) (changed bool, err error) { return s.enter(now, m, nil, true) }

// enter is Enter with a floor. charges is true for takes and refunds, and false for seeds.
func (s *State) enter(now At, m Move, floor *State, charges bool) (adopts bool, err error) {
	if m.Version == 0 && !s.hasFence() { // the key is in no handover
		return false, nil
	}
	if err := s.frozen(now, m, charges); err != nil {
		return false, err
	}
	adopted, sealed := s.Fence(m.Mover, now)
	switch {
	case m.Version <= adopted || m.Step == WithoutFloor:
		return false, nil
	case m.Step == Ask:
		return false, ErrFloorWanted
	}
	if charges && floor != nil && m.Mover == Topology { // the fence of a migration moves with the key, and may freeze this place
		mine, sealed := s.Fence(Migration, now)
		theirs, sealedThere := floor.Fence(Migration, now)
		if sealed = max(sealed, sealedThere); sealed > max(mine, theirs) {
			return false, &MovedError{Migration, sealed}
		}
	}
	s.setFence(now, m, count{charged: m.Version, refunded: sealed})
	return true, nil
}

func (s *State) hasFence() bool {
	for i := range s.entries {
		if s.entries[i].id.algorithm == fenced {
			return true
		}
	}
	return false
}

// Moved returns a [*MovedError] if the key has left this place, so that s is out of date; nil otherwise.
func (s *State) Moved(now At) error {
	if !s.hasFence() {
		return nil
	}
	return s.frozen(now, Move{}, true)
}

// frozen returns a [*MovedError] if the key has left this place under either mover and m doesn't follow it. A topology may
// move a key that a migration has frozen.
func (s *State) frozen(now At, m Move, charges bool) error {
	for mover := Topology; ; mover-- {
		version := int64(0)
		if mover == m.Mover {
			version = m.Version
		}
		adopted, sealed := s.Fence(mover, now)
		if sealed > adopted && version <= sealed && (charges || mover >= m.Mover) {
			return &MovedError{mover, sealed}
		}
		if mover == Migration {
			return nil
		}
	}
}

// Arrive is [State.Enter] and [State.Join] for a take, which charges, or a seed, which doesn't; floor may be nil. An adoption
// also merges entries of other limits than the policy's: two policies may be in use during a deploy. It reports whether s has
// changed.
func (s *State) Arrive(p *limit.Policy, now At, m Move, floor *State, charges bool) (changed bool, err error) {
	adopts, err := s.enter(now, m, floor, charges)
	if err != nil || floor == nil {
		return adopts, err
	}
	changed = s.Join(p, now, floor)
	if !adopts {
		return changed, nil
	}
	for i := range floor.entries {
		f := &floor.entries[i]
		if fence := f.id.algorithm == fenced; fence && Mover(f.id.alignment) < m.Mover || !fence && !has(p, f.id) {
			s.mergeEntry(f, now)
		}
	}
	return true, nil
}

// Seal freezes the state under m. A state that is sealed under the same version stays as it is. The error is a
// [*MovedError] if the place has adopted the key under this version or a newer one, or was sealed under a newer one; or if
// the key has left it under a topology.
func (s *State) Seal(now At, m Move) (changed bool, err error) {
	if m.Mover == Migration {
		if adopted, sealed := s.Fence(Topology, now); sealed > adopted {
			return false, &MovedError{Topology, sealed}
		}
	}
	adopted, sealed := s.Fence(m.Mover, now)
	switch {
	case adopted >= m.Version || sealed > m.Version:
		return false, &MovedError{m.Mover, max(adopted, sealed)}
	case sealed == m.Version:
		return false, nil
	}
	s.setFence(now, m, count{charged: adopted, refunded: m.Version})
	return true, nil
}

// Fence returns the versions under which a mover's key was adopted and sealed here; 0 for never, or for longer ago than a
// fence is kept. The state is frozen if it was sealed under a newer version than it was adopted.
func (s *State) Fence(mover Mover, now At) (adopted, sealed int64) {
	if e := s.find(fenceOf(mover)); e != nil && !e.empty(now) {
		return e.count.charged, e.count.refunded
	}
	return 0, 0
}

// Unfence removes a mover's fence: it belongs to the place, not to the key.
func (s *State) Unfence(mover Mover) {
	for i := range s.entries {
		if s.entries[i].id == fenceOf(mover) {
			s.entries = append(s.entries[:i:i], s.entries[i+1:]...)
			return
		}
	}
}

func (s *State) setFence(now At, m Move, versions count) {
	e := s.find(fenceOf(m.Mover))
	if e == nil {
		s.entries = append(s.entries, entry{id: fenceOf(m.Mover)})
		e = &s.entries[len(s.entries)-1]
	}
	if e.empty(now) {
		e.clear()
	}
	e.end, e.count = max(e.end, m.End(now)*1000), versions
}

func (e *entry) joinFence(f *entry) bool {
	before, beforeEnd := e.count, e.end
	e.end, e.count = max(e.end, f.end), e.count.join(f.count)
	return e.count != before || e.end != beforeEnd
}
