package simulate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/traffic"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// simulation plays traffic against several policies, with the algebra of all backends, and the time of the traffic.
type simulation struct {
	candidates  []*candidate
	spans       []time.Duration // window lengths of all policies, the shortest first
	timeline    timeline
	requests    int64
	cost        int64
	first, last int64 // Unix microseconds
	held        int   // charges and keys in memory: see maxHeld
}

// maxHeld bounds the memory that a simulation takes, at some 16 bytes each. A key counts as heldByKey of them.
const (
	maxHeld   = 1 << 24
	heldByKey = 32
)

// candidate is one of the policies.
type candidate struct {
	name   string
	policy limit.Policy
	keys   map[string]*simulatedKey
	sweep  int // the number of keys at which expired ones are evicted

	admitted, admittedCost int64
	denied                 int64
	impossible             int64   // of denied: cost more than a limit can hold
	wait                   float64 // seconds, of the others: a Duration could overflow
	longest                denials
	peaks                  []peak
}

// simulatedKey is one key under one policy.
type simulatedKey struct {
	state      state.State
	admissions admissionLog
	run        denials
}

// denials are denials in a row.
type denials struct {
	count    int64
	from, to int64 // the first and the last, in Unix microseconds
	key      string
}

const firstSweep = 1024

func newSimulation(policies []limit.Policy) *simulation {
	s := &simulation{timeline: newTimeline(len(policies))}
	for _, p := range policies {
		for _, l := range p.Limits {
			s.spans = append(s.spans, l.Window)
		}
	}
	slices.Sort(s.spans)
	s.spans = slices.Compact(s.spans)
	for _, p := range policies {
		c := &candidate{name: cli.Limits(p.Limits), policy: p, keys: make(map[string]*simulatedKey), sweep: firstSweep}
		for _, span := range s.spans {
			c.peaks = append(c.peaks, peak{length: span.Microseconds()})
		}
		s.candidates = append(s.candidates, c)
	}
	return s
}

// play plays the traffic to its end, or for a time if lasts isn't 0.
func (s *simulation) play(ctx context.Context, all traffic.Traffic, lasts time.Duration) error {
	for a, err := range all {
		if lasts > 0 && s.requests > 0 && a.At >= s.first+lasts.Microseconds() {
			break // even with an error
		}
		if err != nil {
			return err
		}
		if s.requests == 0 {
			s.first = a.At
			s.timeline.start = a.At
		}
		if s.requests%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		s.take(&a)
		if s.held > maxHeld {
			return fmt.Errorf("too many keys and admissions within %v of each other to remember (%d): simulate less with --for",
				s.spans[len(s.spans)-1], maxHeld)
		}
	}
	return nil
}

// take puts a request to all policies.
func (s *simulation) take(a *traffic.Request) {
	s.requests++
	s.cost += a.Cost
	s.last = a.At
	s.timeline.offer(a.At, a.Cost)
	at := state.At{Micros: a.At, Phase: xxhash.Sum64String(a.Key)} // the hash of all backends
	for i, c := range s.candidates {
		allowed, grown := c.take(a, at)
		if allowed {
			s.timeline.admit(i, a.At, a.Cost)
		}
		s.held += grown
	}
}

// take reports whether the policy admits a request, and by how much held grows.
func (c *candidate) take(a *traffic.Request, at state.At) (allowed bool, grown int) {
	if c.policy.CheckCost(a.Cost) != nil { // the traffic is valid: too high for the policy
		c.denied++
		c.impossible++
		return false, 0
	}
	k := c.keys[a.Key]
	if k == nil {
		grown = heldByKey
		if len(c.keys) >= c.sweep {
			grown -= c.evict(a.At)
		}
		k = new(simulatedKey)
		c.keys[a.Key] = k
	}
	v := k.state.Take(&c.policy, at, a.Cost)
	if !v.Allowed {
		c.deny(k, a, v.Binding().RetryAfter)
		return false, grown
	}
	k.run = denials{}
	c.admitted++
	c.admittedCost += a.Cost
	return true, grown + k.admissions.record(a.Key, a.At, a.Cost, c.peaks)
}

func (c *candidate) deny(k *simulatedKey, a *traffic.Request, wait time.Duration) {
	c.denied++
	c.wait += wait.Seconds()
	if k.run.count == 0 {
		k.run.from, k.run.key = a.At, a.Key
	}
	k.run.count++
	k.run.to = a.At
	if k.run.count > c.longest.count {
		c.longest = k.run
	}
}

// evict drops keys that are as good as new. It returns how much is remembered less.
func (c *candidate) evict(now int64) int {
	less := 0
	longest := c.peaks[len(c.peaks)-1].length
	for key, k := range c.keys {
		if k.state.Until() <= now && k.admissions.expired(now, longest) {
			less += heldByKey + len(k.admissions.charges)
			delete(c.keys, key)
		}
	}
	c.sweep = max(firstSweep, 2*len(c.keys))
	return less
}

// checkBound is an error for each policy that has admitted more than it promises.
func (c *candidate) checkBound() error {
	for _, p := range c.peaks {
		length := time.Duration(p.length) * time.Microsecond
		if promised := admissionBound(&c.policy, length); p.most > promised {
			return fmt.Errorf("%s: admitted %d within %v and promises %d: this is a bug of package limit",
				c.name, p.most, length, promised)
		}
	}
	return nil
}
