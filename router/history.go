package router

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/ring"
)

// previousPlacement is a placement that was in force.
type previousPlacement struct {
	*placement
	left        time.Time // when another one replaced it
	conflicting bool      // another placement of its epoch prevailed: keys may have counts here, but it is not published
}

// history is the previous placements under which keys may have counts that were not handed over.
type history struct {
	all   []previousPlacement // the latest first
	moved []previousPlacement // those with other owners than now; of several with one ring, the latest
}

// newHistory returns the history of a placement with a ring, from all previous ones, the latest first.
func newHistory(current *ring.Ring, all []previousPlacement) history {
	h := history{all: all}
	for _, p := range all {
		known := func(later previousPlacement) bool { return later.ring == p.ring }
		if p.ring != current && !slices.ContainsFunc(h.moved, known) {
			h.moved = append(h.moved, p)
		}
	}
	return h
}

// contains reports whether the topology of an epoch is known.
func (h *history) contains(version int64) bool {
	return slices.ContainsFunc(h.all, func(p previousPlacement) bool { return p.version() == version && !p.conflicting })
}

// history returns the history of a placement: known ones, the latest first, and a chain of topologies that were in force at
// times unknown here, perhaps until now. Where both have an epoch, the chain says which placement prevailed.
func (b *builder) history(current *placement, known []previousPlacement, chain *Topology, now time.Time) history {
	all := slices.Clone(known)
	for t := chain; t != nil; t = t.Previous {
		found, digest := t.Epoch >= current.topology.Epoch, t.Digest()
		for i := range all {
			if p := &all[i]; p.topology.Epoch == t.Epoch {
				p.conflicting = p.digest != digest
				found = found || !p.conflicting
			}
		}
		if !found {
			all = append(all, previousPlacement{placement: b.placement(*t), left: now})
		}
	}
	slices.SortStableFunc(all, func(a, b previousPlacement) int { return cmp.Compare(b.version(), a.version()) })
	for i := len(all) - 1; i > 0; i-- { // none was left after a later one
		if all[i].left.After(all[i-1].left) {
			all[i-1].left = all[i].left
		}
	}
	return newHistory(current.ring, all)
}

// published is the topology in force with the previous ones, as far as they are known.
func (t *routingTable) published() Topology {
	topology := t.topology
	last := &topology
	last.Previous = nil
	count, more := 0, false
	for _, p := range t.history.all {
		if p.conflicting || p.version() == 0 {
			continue
		}
		if count == maxPrevious {
			more = true
			break
		}
		previous := p.topology
		previous.Previous, previous.Signature = nil, nil
		last.Previous, last.Baseline = &previous, false
		last = &previous
		count++
	}
	last.Baseline = last.Epoch > 1 && !more // what came before is over, unless it was only left out
	return topology
}

// dropDrained forgets previous placements whose windows are over. It is called now and then.
func (r *Router) dropDrained() {
	r.changing.Lock()
	defer r.changing.Unlock()
	t := r.table.Load()
	kept := r.undrained(t)
	if len(kept) == len(t.history.all) || r.closed.Load() {
		return
	}
	next := *t
	next.history = newHistory(t.ring, kept)
	r.table.Store(&next)
	r.closeUnused(t, &next)
}

// maxKept bounds the previous placements of a router whose topology changes more often than windows end. Each may have a ring of
// a megabyte.
const maxKept = 63

// undrained returns the previous placements that keys may still have counts under. Drain is for the windows of policies that
// this router hasn't met.
func (r *Router) undrained(t *routingTable) []previousPlacement {
	keep, kept := max(r.cfg.Drain, time.Duration(r.longest.Load())), 0
	return slices.DeleteFunc(slices.Clone(t.history.all), func(p previousPlacement) bool {
		over := kept == maxKept || time.Since(p.left) >= keep
		if !over {
			kept++
		}
		if last := r.lastDrained.Load(); over && p.ring != t.ring && (last == nil || last.Before(p.left)) {
			r.lastDrained.Store(&p.left)
		}
		return over
	})
}

// drainedCause says why counts under a policy may be missing, whatever the key: its windows are longer than previous placements
// were kept. It is nil if none are.
func (r *Router) drainedCause(p *limit.Policy) error {
	if left := r.lastDrained.Load(); left != nil && time.Since(*left) < r.hold(p) {
		return errors.Join(backend.ErrNotHandedOver, errDrained)
	}
	return nil
}

var errDrained = fmt.Errorf("Config.Drain is shorter than the policy's windows and Settle, and the policy was not used before; "+
	"or the topology has changed more than %d times in that time", maxKept)

// hold is how long counts under a policy are handed over after a change. The longest is noted: previous placements are kept that
// long.
func (r *Router) hold(p *limit.Policy) time.Duration {
	hold := min(state.Horizon(p)+r.cfg.Settle, 2*limit.MaxWindow)
	for longest := r.longest.Load(); longest < int64(hold); longest = r.longest.Load() {
		r.longest.CompareAndSwap(longest, int64(hold))
	}
	return hold
}
