package redisbackend

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// servers are those that decide: one, or the primaries of a cluster.
type servers struct {
	cluster bool
	one     *continuity // nil for a cluster

	horizon atomic.Int64 // the longest of a policy that was decided by, in nanoseconds

	mu  sync.Mutex             // guards what follows
	all map[string]*continuity // of a cluster, by address
}

// of is what is known of the server of a client, for a call with a deadline.
func (s *servers) of(node *redis.Client, deadline time.Time) *continuity {
	if s.one != nil {
		return s.one
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	address := node.Options().Addr
	c := s.all[address]
	if c == nil {
		// What is known of a server is kept until no count of its keys is alive: if it is still used and has restarted, only that
		// tells that they were lost.
		horizon := time.Duration(s.horizon.Load())
		maps.DeleteFunc(s.all, func(_ string, other *continuity) bool {
			return deadline.Sub(other.until)-horizon > redispipe.ShardIdle
		})
		c = newContinuity()
		if s.all == nil {
			s.all = make(map[string]*continuity)
		}
		s.all[address] = c
	}
	if c.client.Swap(node) != node {
		c.dialled.Add(1) // it may have connections already
		node.AddHook(dialCounter{c})
	}
	c.until = deadline
	return c
}

// decided notes a policy by which keys are counted.
func (s *servers) decided(p *limit.Policy) {
	if !s.cluster {
		return
	}
	horizon := int64(state.Horizon(p))
	for known := s.horizon.Load(); horizon > known && !s.horizon.CompareAndSwap(known, horizon); known = s.horizon.Load() {
	}
}

// observe takes in what a server has said.
func (s *servers) observe(c *continuity, says *identity) { c.observe(says, s.promoted(c, says)) }

// promoted reports whether a node of a cluster has become the primary in place of one that this process has known.
func (s *servers) promoted(c *continuity, says *identity) bool {
	if !s.cluster {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if says.primary {
		c.replID = says.replID
	}
	if !c.promotedFrom(says.before) || says.before == "" {
		return false
	}
	for _, other := range s.all {
		if other.replID == says.before {
			return true
		}
	}
	return false
}

// doubt says why counts of a key of a node may be missing.
func (s *servers) doubt(node *redis.Client, nowMicros int64, p *limit.Policy) error {
	c := s.one
	if c == nil && node != nil {
		s.mu.Lock()
		c = s.all[node.Options().Addr]
		s.mu.Unlock()
	}
	if c == nil {
		return nil
	}
	return c.cause(nowMicros, p)
}
