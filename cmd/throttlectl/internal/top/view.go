package top

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/registry"
)

// view is what one poll of all processes shows.
type view struct {
	Time      cli.Timestamp       `json:"time"`
	Processes []processView       `json:"processes"`
	Policies  []*policyView       `json:"policies"`
	Shadow    *shadowView         `json:"shadow,omitempty"`
	TopDenied []insight.DeniedKey `json:"top_denied"`
	parts

	answers int
	rates   bool                 // whether rates are known
	trends  map[string][]float64 // decisions a second of each policy, so far; nil: not shown
	errs    []error
}

type processView struct {
	URL       string         `json:"url"`
	Started   cli.Timestamp  `json:"started,omitzero"`
	Restarted bool           `json:"restarted,omitempty"` // since the poll before
	Registry  *registry.Info `json:"registry,omitempty"`
	Error     string         `json:"error,omitempty"`
}

// policyView is what was decided under the policies of one name.
type policyView struct {
	Policy string        `json:"policy"`
	Limits []limit.Limit `json:"limits,omitempty"`

	Allowed  int64 `json:"allowed"` // since the processes started, as the next three
	Denied   int64 `json:"denied"`
	Errors   int64 `json:"errors"`
	Exposure int64 `json:"exposure"` // cost

	PerSecond   *verdicts          `json:"per_second,omitempty"`
	DenialShare float64            `json:"denial_share"`
	Sources     map[string]float64 `json:"sources"` // shares of the decisions
	Guarantees  map[string]float64 `json:"guarantees"`

	latest verdicts // a second; counts if rates aren't known
}

type verdicts struct {
	Allowed float64 `json:"allowed"`
	Denied  float64 `json:"denied"`
	Errors  float64 `json:"errors"`

	Exposure float64 `json:"exposure"` // cost
}

func (v verdicts) decisions() float64 { return v.Allowed + v.Denied }

// shadowView is what shadow policies would have decided.
type shadowView struct {
	Allowed float64 `json:"allowed_per_second"`
	Denied  float64 `json:"denied_per_second"`
	Failed  float64 `json:"failed_per_second"`
	Dropped float64 `json:"dropped_per_second"`
}

// orders are how policies can be sorted, the largest first.
var orders = map[string]func(p *policyView) float64{
	"decisions": func(p *policyView) float64 { return p.latest.decisions() },
	"denied":    func(p *policyView) float64 { return p.latest.Denied },
	"share":     func(p *policyView) float64 { return p.DenialShare },
	"errors":    func(p *policyView) float64 { return p.latest.Errors },
	"exposure":  func(p *policyView) float64 { return p.latest.Exposure },
	"fallback":  func(p *policyView) float64 { return p.Sources[fallback] * p.latest.decisions() },
	"name":      func(*policyView) float64 { return 0 },
}

var (
	orderNames = []string{"decisions", "denied", "share", "errors", "exposure", "fallback", "name"}
	fallback   = throttler.Fallback.String()
)

// newView sums up. Until a process has replied twice, all counts are since the processes started; from then on, processes that
// have replied once don't count for the interval.
func newView(now time.Time, all []*process, keys int) *view {
	v := &view{Time: cli.Timestamp(now)}
	for _, p := range all {
		v.rates = v.rates || p.err == nil && p.delta.over > 0
	}
	byName, denied := make(map[string]*policyView), make(map[string]*insight.DeniedKey)
	for _, p := range all {
		one := processView{URL: p.shown, Registry: p.report.Registry}
		if p.err != nil {
			one.Error = p.err.Error()
			v.errs = append(v.errs, p.err)
		} else {
			v.answers++
			v.add(p, byName)
			addDenied(denied, p.report.TopDenied)
			v.parts.add(&p.report)
			one.Started, one.Restarted = cli.Timestamp(p.report.Started), p.restarted
		}
		v.Processes = append(v.Processes, one)
	}
	v.Policies = slices.AppendSeq([]*policyView{}, maps.Values(byName))
	for _, p := range v.Policies {
		p.finish(v.rates)
	}
	v.Shadow.round()
	v.sort(orderNames[0])
	v.TopDenied = mostDenied(denied, keys)
	v.parts.finish(keys)
	return v
}

// sort sorts the policies.
func (v *view) sort(order string) {
	slices.SortFunc(v.Policies, func(a, b *policyView) int {
		return cmp.Or(cmp.Compare(orders[order](b), orders[order](a)), strings.Compare(a.Policy, b.Policy))
	})
}

func (v *view) err() error { return errors.Join(v.errs...) }

// add adds a process.
func (v *view) add(p *process, byName map[string]*policyView) {
	for _, s := range p.report.Policies {
		its := byName[s.Policy]
		if its == nil {
			its = &policyView{Policy: s.Policy, Limits: s.Limits, Sources: map[string]float64{}, Guarantees: map[string]float64{}}
			byName[s.Policy] = its
		}
		its.Allowed += s.Allowed
		its.Denied += s.Denied
		its.Errors += s.Errors
		its.Exposure += s.Exposure
	}
	seconds := p.delta.over.Seconds()
	switch {
	case v.rates && seconds == 0:
		return
	case !v.rates:
		seconds = 1
	}
	for what, n := range p.delta.counts {
		byName[what.policy].add(what.kind, float64(n)/seconds)
	}
	for policy, n := range p.delta.exposure {
		byName[policy].latest.Exposure += float64(n) / seconds
	}
	if !v.rates || p.report.Shadow == (insight.ShadowCounts{}) {
		return
	}
	if v.Shadow == nil {
		v.Shadow = new(shadowView)
	}
	s := p.delta.shadow
	v.Shadow.Allowed += float64(s.Allowed) / seconds
	v.Shadow.Denied += float64(s.Denied) / seconds
	v.Shadow.Failed += float64(s.Failed) / seconds
	v.Shadow.Dropped += float64(s.Dropped) / seconds
}

func (p *policyView) add(kind insight.DecisionCount, n float64) {
	switch {
	case kind == insight.DecisionCount{}:
		p.latest.Errors += n
		return
	case kind.Allowed:
		p.latest.Allowed += n
	default:
		p.latest.Denied += n
	}
	p.Sources[kind.Source] += n
	p.Guarantees[kind.Guarantee] += n
}

// finish makes shares of sums.
func (p *policyView) finish(rates bool) {
	whole := p.latest.decisions()
	for _, parts := range []map[string]float64{p.Sources, p.Guarantees} {
		for name, n := range parts {
			if n == 0 {
				delete(parts, name)
				continue
			}
			parts[name] = rounded(n / whole)
		}
	}
	if whole > 0 {
		p.DenialShare = rounded(p.latest.Denied / whole)
	}
	p.latest = verdicts{rounded(p.latest.Allowed), rounded(p.latest.Denied), rounded(p.latest.Errors), rounded(p.latest.Exposure)}
	if rates {
		p.PerSecond = &p.latest
	}
}

func (s *shadowView) round() {
	if s != nil {
		*s = shadowView{rounded(s.Allowed), rounded(s.Denied), rounded(s.Failed), rounded(s.Dropped)}
	}
}

// rounded keeps four decimal places: percentages are printed with two.
func rounded(x float64) float64 { return math.Round(x*1e4) / 1e4 }

func addDenied(sums map[string]*insight.DeniedKey, all []insight.DeniedKey) {
	for _, one := range all {
		its := sums[one.Key]
		if its == nil {
			its = &insight.DeniedKey{Key: one.Key}
			sums[one.Key] = its
		}
		its.Denied += one.Denied
		its.Over += one.Over
	}
}

func mostDenied(sums map[string]*insight.DeniedKey, keys int) []insight.DeniedKey {
	all := []insight.DeniedKey{}
	for _, its := range sums {
		all = append(all, *its)
	}
	slices.SortFunc(all, func(a, b insight.DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), strings.Compare(a.Key, b.Key))
	})
	return all[:min(keys, len(all))]
}
