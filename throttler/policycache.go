package throttler

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice/limit"
)

// policyCache remembers valid policies by address: checking one takes longer than a decision in memory. At a bound it is
// emptied, so that a PolicyFor that makes a policy for each request costs time, not memory.
type policyCache struct {
	valid sync.Map // *limit.Policy to struct{}
	size  atomic.Int64
}

const maxCachedPolicies = 4096

func (c *policyCache) check(p *limit.Policy) error {
	if _, ok := c.valid.Load(p); ok {
		return nil
	}
	if err := p.Validate(); err != nil {
		return err
	}
	if c.size.Load() >= maxCachedPolicies {
		c.valid.Clear()
		c.size.Store(0)
	}
	if _, loaded := c.valid.LoadOrStore(p, struct{}{}); !loaded {
		c.size.Add(1)
	}
	return nil
}
