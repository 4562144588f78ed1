package backend

import (
	"slices"
	"sync"

	"github.com/sluice-go/sluice/limit"
)

// leaseShard is a part of the views.
type leaseShard struct {
	lease *Lease

	mu     sync.Mutex // guards all below
	cells  table[view]
	max    int
	steady bool
	closed bool
	due    []remainder // to be given back
	owed   int64       // cost that is due, or on its way back
	wake   chan struct{}
	stats  LeaseStats // Stranded and Keys are not kept

	_ [64]byte // shards don't share cache lines, nor those that processors fetch in pairs
}

const forgetAmong = 16 // is how many views a full shard looks at to forget one

// addLocked forgets a view where it has to. It returns nil if it met only such as wait for a fetch.
func (s *leaseShard) addLocked(hash uint64, name *Request, now int64) *keyed[view] {
	if s.cells.taken >= s.max && !s.forgetLocked(now) {
		return nil
	}
	c := newKeyed[view](name.Policy.Name, name.Key)
	c.value.hash = hash
	s.cells.add(hash, c)
	return c
}

// forgetLocked makes room for a view. It reports whether it could.
func (s *leaseShard) forgetLocked(now int64) bool {
	victim := -1
	for seen := 0; seen < min(forgetAmong, s.cells.taken); {
		c := s.cells.next()
		if c == nil {
			continue
		}
		seen++
		if c.value.fetch != nil {
			continue
		}
		victim = s.cells.hand
		if !c.value.used {
			break
		}
		c.value.used = false // a second chance
	}
	if victim < 0 {
		return false
	}
	s.endAllLocked(s.cells.slots[victim].cell, now)
	s.cells.remove(victim)
	return true
}

func smallestQuota(p *limit.Policy) int64 {
	least := p.Limits[0].Quota()
	for i := range p.Limits {
		least = min(least, p.Limits[i].Quota())
	}
	return least
}

func sameLimits(a, b *limit.Policy) bool {
	return slices.Equal(a.Limits, b.Limits)
}
