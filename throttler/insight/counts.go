package insight

import (
	"math"
	"math/rand/v2"
	"sync/atomic"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// PolicyStats counts the decisions under the policies of one name.
type PolicyStats struct {
	Policy string        `json:"policy"`           // "_OTHER" for those beyond the first hundred
	Limits []limit.Limit `json:"limits,omitempty"` // of Config.Policies or Config.Registry

	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
	Errors  int64 `json:"errors"` // no verdict

	// Exposure is the admitted cost that is not exact and may have exceeded a limit.
	Exposure int64 `json:"exposure"`

	// DenialShare is the share of denials among the latest decisions: each counts for 1/64, and less with each that follows.
	// Decisions of the failure policy don't count: they are about an outage, not about callers.
	DenialShare float64 `json:"denial_share"`

	Decisions []DecisionCount `json:"decisions"`
}

// DecisionCount counts the decisions of one kind.
type DecisionCount struct {
	Allowed   bool   `json:"allowed"`
	Source    string `json:"source"`
	Guarantee string `json:"guarantee"`
	Count     int64  `json:"count"`
}

const (
	countedPolicies = 100
	countShards     = 8

	sources    = int(throttler.OnCredit) + 1
	guarantees = int(throttler.Bounded) + 1
)

// policyCounts counts decisions under the policies of one name, in shards to avoid contention.
type policyCounts struct {
	shards [countShards]countShard
	recent denialShare
}

type countShard struct {
	errors   atomic.Int64
	exposure atomic.Int64
	decided  [2][sources][guarantees]atomic.Int64 // by whether it was allowed
	_        [48]byte                             // up to the next cache line
}

func (p *policyCounts) record(d *throttler.Decision, cost int64, err error) {
	shard := &p.shards[rand.Uint32()%countShards]
	if err != nil {
		shard.errors.Add(1)
		return
	}
	how, source, guarantee := 0, int(d.Source), int(d.Guarantee)
	if d.Allowed {
		how = 1
	}
	if source >= sources || guarantee >= guarantees { // of a backend that knows others
		source, guarantee = 0, int(throttler.Bounded)
	}
	shard.decided[how][source][guarantee].Add(1)
	if d.Allowed && guarantee != int(throttler.Exact) {
		shard.exposure.Add(cost)
	}
	if d.Source != throttler.Fallback {
		p.recent.add(!d.Allowed)
	}
}

func (p *policyCounts) stats() PolicyStats {
	s := PolicyStats{DenialShare: p.recent.share(), Decisions: []DecisionCount{}}
	for i := range p.shards {
		s.Errors += p.shards[i].errors.Load()
		s.Exposure += p.shards[i].exposure.Load()
	}
	for how := range 2 {
		for source := range sources {
			for guarantee := range guarantees {
				count := int64(0)
				for i := range p.shards {
					count += p.shards[i].decided[how][source][guarantee].Load()
				}
				if count > 0 {
					s.Decisions = append(s.Decisions, DecisionCount{
						Allowed: how == 1, Source: throttler.Source(source).String(), Guarantee: throttler.Guarantee(guarantee).String(), Count: count,
					})
				}
				if how == 1 {
					s.Allowed += count
				} else {
					s.Denied += count
				}
			}
		}
	}
	return s
}

// denialShare is the share of denials among the latest requests: a mean in which each counts for 1/64, and less with each
// that follows. One of two concurrent updates may be lost.
type denialShare struct{ state atomic.Uint32 } // in 1/2^16

const shareOne = 1 << 16

func (d *denialShare) add(denied bool) {
	before, target := int32(d.state.Load()), int32(0)
	if denied {
		target = shareOne
	}
	if after := before + (target-before)/64; after != before {
		d.state.Store(uint32(after))
	}
}

// share is the share, to three places.
func (d *denialShare) share() float64 {
	return math.Round(float64(d.state.Load())/shareOne*1000) / 1000
}
