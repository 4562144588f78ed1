package throttler

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// StatsConfig says what a Throttler counts of its own decisions, for Throttler.Stats. The zero value is nothing.
type StatsConfig struct {
	// Decisions counts decisions by policy, outcome, source and guarantee.
	Decisions bool

	// WatchedKeys is how many keys are watched to find those that Throttler.TopDenied shows: at most 65,536, and 1,000 where
	// it is less, for with few that are watched chance decides which are shown. Zero: none.
	WatchedKeys int

	// HalfLife is after what time a denial counts half in TopDenied. Zero: 10 minutes.
	HalfLife time.Duration

	// HashKey is the secret, of 16 bytes or more, that keys are hashed with in TopDenied: with the same one a key has the
	// same hash in all processes. Empty: a random one.
	HashKey []byte
}

func (c *StatsConfig) validate() (errs []error) {
	bad := func(field, value, bound string) {
		errs = append(errs, &limit.Error{Field: "Stats." + field, Value: value, Bound: bound})
	}
	if c.WatchedKeys < 0 || c.WatchedKeys > maxWatchedKeys {
		bad("WatchedKeys", strconv.Itoa(c.WatchedKeys), "must be from 0 to "+strconv.Itoa(maxWatchedKeys))
	}
	if c.HalfLife < 0 {
		bad("HalfLife", c.HalfLife.String(), "must not be negative")
	}
	if n := len(c.HashKey); n > 0 && n < 16 {
		bad("HashKey", strconv.Itoa(n)+" bytes", "must have at least 16")
	}
	return errs
}

// Stats is what a Throttler has decided since New, as far as its StatsConfig lets it count. It is made for JSON: for an
// expvar.Func, or the handler of package httplimit.
type Stats struct {
	Registry  *RegistryInfo `json:"registry,omitempty"`
	Policies  []PolicyStats `json:"policies"` // by name; those of a document that only shadows have are in Shadow alone
	Shadow    ShadowStats   `json:"shadow"`
	TopDenied []DeniedKey   `json:"top_denied,omitempty"` // at most ten, hashed
}

// PolicyStats is what was decided under the policies of one name.
type PolicyStats struct {
	Policy string        `json:"policy"`           // "_OTHER" for those beyond the first hundred
	Limits []limit.Limit `json:"limits,omitempty"` // of the Config or Registry; PolicyFor's are not known

	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
	Errors  int64 `json:"errors"` // no verdict

	// DenialShare is the share of denials among the latest decisions: each counts for 1/64, and less with each that follows.
	// Those of the failure policy don't count: they tell of an outage, not of who asks.
	DenialShare float64 `json:"denial_share"`

	Decisions []DecisionCount `json:"decisions"`
}

// DecisionCount is how many decisions were of one kind.
type DecisionCount struct {
	Allowed   bool   `json:"allowed"`
	Source    string `json:"source"`
	Guarantee string `json:"guarantee"`
	Count     int64  `json:"count"`
}

const topInStats = 10

// Stats tells what has been decided.
func (t *Throttler) Stats() Stats {
	s := Stats{Policies: []PolicyStats{}, Shadow: t.ShadowStats(), TopDenied: t.TopDenied(topInStats)}
	byName := map[string]*policyCounts{}
	if t.counts != nil {
		maps.Copy(byName, *t.counts.known.Load())
	}
	limits := map[string][]limit.Limit{}
	if r := t.cfg.Registry; r != nil {
		info := r.Info()
		s.Registry = &info
		for _, p := range r.held.Load().enforced() {
			limits[p.Name] = p.Limits
		}
	} else {
		limits[t.cfg.Policy.Name] = t.cfg.Policy.Limits
	}
	full := len(byName) > countedPolicies // what isn't there may be among the others
	for name := range limits {
		if byName[name] == nil && !full {
			byName[name] = new(policyCounts)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if p := byName[name].stats(); name != otherPolicies || p.Allowed+p.Denied+p.Errors > 0 {
			p.Policy, p.Limits = name, slices.Clone(limits[name])
			s.Policies = append(s.Policies, p)
		}
	}
	return s
}

// decisionCounts counts decisions by policy, without a lock and for a bounded number of names.
type decisionCounts struct {
	known atomic.Pointer[map[string]*policyCounts] // replaced, never changed
	mu    sync.Mutex                               // held while it is replaced
}

const (
	countedPolicies = 100
	otherPolicies   = "_OTHER" // no policy can have this name
	countShards     = 8

	sources    = int(Listed) + 1
	guarantees = int(Unbounded) + 1
)

// newDecisionCounts is nil if nothing is counted.
func newDecisionCounts(cfg *StatsConfig) *decisionCounts {
	if !cfg.Decisions {
		return nil
	}
	c := &decisionCounts{}
	c.known.Store(&map[string]*policyCounts{otherPolicies: new(policyCounts)})
	return c
}

func (c *decisionCounts) of(name string) *policyCounts {
	known := *c.known.Load()
	if p, ok := known[name]; ok {
		return p
	}
	if len(known) > countedPolicies {
		return known[otherPolicies]
	}
	return c.add(name)
}

func (c *decisionCounts) add(name string) *policyCounts {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := *c.known.Load()
	if p, ok := known[name]; ok {
		return p
	}
	if len(known) > countedPolicies {
		return known[otherPolicies]
	}
	known = maps.Clone(known)
	p := new(policyCounts)
	known[strings.Clone(name)] = p // it may be part of something large
	c.known.Store(&known)
	return p
}

// policyCounts counts decisions under the policies of one name, in shards: on one counter all processors would wait for
// each other.
type policyCounts struct {
	shards [countShards]countShard
	recent denialShare
}

type countShard struct {
	errors  atomic.Int64
	decided [2][sources][guarantees]atomic.Int64 // by whether it was allowed
	_       [56]byte                             // up to the next cache line
}

func (p *policyCounts) record(d *Decision, err error) {
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
		source, guarantee = 0, int(Unbounded)
	}
	shard.decided[how][source][guarantee].Add(1)
	if d.Source != Fallback {
		p.recent.add(!d.Allowed)
	}
}

func (p *policyCounts) stats() PolicyStats {
	s := PolicyStats{DenialShare: p.recent.share(), Decisions: []DecisionCount{}}
	for i := range p.shards {
		s.Errors += p.shards[i].errors.Load()
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
						Allowed: how == 1, Source: Source(source).String(), Guarantee: Guarantee(guarantee).String(), Count: count,
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

// count takes note of a decision for Stats.
func (t *Throttler) count(key string, policy *limit.Policy, d *Decision, err error) {
	if t.counts != nil {
		t.counts.of(policy.Name).record(d, err)
	}
	if t.top != nil && err == nil && !d.Allowed && d.Source != Fallback && d.Source != Listed {
		t.top.add(key)
	}
}
