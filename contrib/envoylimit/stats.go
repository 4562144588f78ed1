package envoylimit

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Stats counts requests since the Service was made.
type Stats struct {
	UnknownDomain int64 // of a domain that no file has: admitted
	Invalid       int64 // refused as invalid
	Shed          int64 // refused beyond Config.MaxRequests
	Failed        int64 // without a verdict, and descriptors that could not be looked at or given back in an outage
	Shadowed      int64 // over a limit, and admitted because of Config.Shadow
	UnderWay      int64 // at the moment
}

// Stats returns the counts of the Service as a whole.
func (s *Service) Stats() Stats {
	return Stats{
		UnknownDomain: s.stats.unknownDomain.Load(), Invalid: s.stats.invalid.Load(), Shed: s.stats.shed.Load(),
		Failed: s.stats.failed.Load(), Shadowed: s.stats.shadowed.Load(), UnderWay: s.underWay.Load(),
	}
}

// RuleStats counts the hits of a rule, or with detailed_metric and value_to_metric of some of its descriptors. Hits are what
// descriptors cost: several for hits_addend, 2^32-1 at most. What is given back doesn't count.
type RuleStats struct {
	Domain string
	Key1   string // key_value of the first level, as the reference has it; _OTHER beyond Config.MaxSeries
	Key2   string // those of the levels below, separated by periods

	// RequestsPerUnit and Unit are the limit that was applied last.
	RequestsPerUnit uint32
	Unit            string // "second" to "year"

	Total  int64 // all: Within, Over, and those that were not charged because of another descriptor
	Within int64 // charged
	Over   int64 // denied as a whole, or above the limit of a shadow
	Near   int64 // admitted hits above Config.NearLimit of the limit
	Shadow int64 // of Over, those of rules in shadow_mode
}

// RuleStats returns the counts of all rules that were asked for, by domain and path.
func (s *Service) RuleStats() iter.Seq[RuleStats] {
	var all []RuleStats
	s.stats.series.Range(func(_, value any) bool {
		n := value.(*series)
		l := n.limit.Load()
		all = append(all, RuleStats{
			Domain: n.domain, Key1: n.key1, Key2: n.key2, RequestsPerUnit: l.GetRequestsPerUnit(), Unit: strings.ToLower(l.GetUnit().String()),
			Total: n.total.Load(), Within: n.within.Load(), Over: n.over.Load(), Near: n.near.Load(), Shadow: n.shadow.Load(),
		})
		return true
	})
	slices.SortFunc(all, func(a, b RuleStats) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Key1, b.Key1), cmp.Compare(a.Key2, b.Key2))
	})
	return slices.Values(all)
}

type statistics struct {
	unknownDomain, invalid, shed, failed, shadowed atomic.Int64

	series sync.Map     // of *series, by seriesKey
	size   atomic.Int64 // of those with values of requests
	most   int64
}

// seriesKey keeps its parts apart: each may have periods.
type seriesKey struct{ domain, key1, key2 string }

type series struct {
	seriesKey
	limit                             atomic.Pointer[pb.RateLimitResponse_RateLimit]
	total, within, over, near, shadow atomic.Int64
}

// other names the series of all that are beyond the bound.
const other = "_OTHER"

// of returns a series. Dynamic is whether its name holds values of requests.
func (s *statistics) of(at seriesKey, dynamic bool) *series {
	if found, ok := s.series.Load(at); ok {
		return found.(*series)
	}
	if dynamic && s.size.Load() >= s.most {
		return s.of(seriesKey{domain: at.domain, key1: other}, false)
	}
	made, loaded := s.series.LoadOrStore(at, &series{seriesKey: at})
	if !loaded && dynamic {
		s.size.Add(1)
	}
	return made.(*series)
}

// count counts a decided slot.
func (s *statistics) count(sl *slot, nearLimit float64) {
	if sl.kind != charge && sl.kind != blocked && sl.kind != check || sl.hits == 0 {
		return
	}
	var at seriesKey
	at.domain, at.key1, at.key2 = sl.match.Split()
	n := s.of(at, sl.match.Rule.Dynamic())
	l := sl.match.Rule.Limit
	if n.limit.Load() != l {
		n.limit.Store(l)
	}
	hits := min(sl.hits, math.MaxUint32) // a few requests must not wrap a counter
	n.total.Add(hits)
	switch {
	case sl.over:
		n.over.Add(hits)
		if sl.match.Rule.Shadow {
			n.shadow.Add(hits)
		}
	case sl.charged:
		n.within.Add(hits)
		most := int64(l.GetRequestsPerUnit())
		threshold := int64(math.Floor(float64(float32(most) * float32(nearLimit))))
		if used := most - sl.decision.Remaining; used > threshold {
			n.near.Add(min(hits, used-threshold))
		}
	}
}
