package lease

import (
	"slices"
	"sync"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/limit"
)

// shard holds part of the views.
type shard struct {
	lease *Lease

	mu          sync.Mutex // guards all below
	cells       hashtable.Table[view]
	max         int
	steady      bool
	closed      bool
	pending     []pendingReturn // not sent yet
	pendingCost int64           // of pending returns and of those being sent
	wake        chan struct{}
	owing       *hashtable.Cell[view] // keys with a pending debt, linked by debt.next
	owingKeys   int
	stats       Stats // without Stranded, Keys, Debt and DebtAge

	_ [64]byte // shards don't share cache lines, nor those that processors fetch in pairs
}

const evictionSample = 16 // views that a full shard examines to evict one

// addLocked adds a view, and evicts one if the shard is full. It returns nil if all views sampled have a fetch in flight
// or owe.
func (s *shard) addLocked(hash uint64, name *backend.Request, now int64) *hashtable.Cell[view] {
	if s.cells.Len >= s.max && !s.evictLocked(now) {
		return nil
	}
	c := hashtable.NewCell[view](name.Policy.Name, name.Key)
	c.Value.hash = hash
	s.cells.Add(hash, c)
	return c
}

// evictLocked evicts a view by the second-chance rule. It reports whether it could.
func (s *shard) evictLocked(now int64) bool {
	var victim *hashtable.Cell[view]
	var slot int
	for seen := 0; seen < min(evictionSample, s.cells.Len); {
		i, c := s.cells.Next()
		if c == nil {
			continue
		}
		seen++
		if c.Value.fetch != nil || s.owesLocked(&c.Value, now) {
			continue
		}
		slot, victim = i, c
		if !c.Value.referenced {
			break
		}
		c.Value.referenced = false // a second chance
	}
	if victim == nil {
		return false
	}
	s.endAllLocked(victim, now)
	s.cells.Remove(slot)
	return true
}

// minQuota is the least quota of a policy's limits; 0 if it has counters only, which a batch would falsify.
func minQuota(p *limit.Policy) (least int64) {
	for i := range p.Limits {
		if l := &p.Limits[i]; !l.IsCounter() && (least == 0 || l.Quota() < least) {
			least = l.Quota()
		}
	}
	return least
}

func sameLimits(a, b *limit.Policy) bool {
	return slices.Equal(a.Limits, b.Limits)
}
