package top

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/terminal"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// view is what one poll of all processes shows.
type view struct {
	Time      cli.Timestamp         `json:"time"`
	Processes []processView         `json:"processes"`
	Policies  []*policyView         `json:"policies"`
	Shadow    *shadowView           `json:"shadow,omitempty"`
	TopDenied []throttler.DeniedKey `json:"top_denied"`

	answers int
	rates   bool // whether rates are known
	errs    []error
}

type processView struct {
	URL      string                  `json:"url"`
	Registry *throttler.RegistryInfo `json:"registry,omitempty"`
	Error    string                  `json:"error,omitempty"`
}

// policyView is what was decided under the policies of one name.
type policyView struct {
	Policy string        `json:"policy"`
	Limits []limit.Limit `json:"limits,omitempty"`

	Allowed int64 `json:"allowed"` // since the processes started, as the next two
	Denied  int64 `json:"denied"`
	Errors  int64 `json:"errors"`

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
	"fallback":  func(p *policyView) float64 { return p.Sources[fallback] * p.latest.decisions() },
	"name":      func(*policyView) float64 { return 0 },
}

var (
	orderNames = []string{"decisions", "denied", "share", "errors", "fallback", "name"}
	fallback   = throttler.Fallback.String()
)

// newView sums up. Until a process has replied twice, all counts are since the processes started; from then on, processes that
// have replied once don't count for the interval.
func newView(now time.Time, all []*process, order string, keys int) *view {
	v := &view{Time: cli.Timestamp(now)}
	for _, p := range all {
		v.rates = v.rates || p.err == nil && p.delta.over > 0
	}
	byName, denied := make(map[string]*policyView), make(map[string]*throttler.DeniedKey)
	for _, p := range all {
		one := processView{URL: p.shown, Registry: p.stats.Registry}
		if p.err != nil {
			one.Error = p.err.Error()
			v.errs = append(v.errs, p.err)
		} else {
			v.answers++
			v.add(p, byName)
			addDenied(denied, p.stats.TopDenied)
		}
		v.Processes = append(v.Processes, one)
	}
	v.Policies = slices.AppendSeq([]*policyView{}, maps.Values(byName))
	for _, p := range v.Policies {
		p.finish(v.rates)
	}
	v.Shadow.round()
	slices.SortFunc(v.Policies, func(a, b *policyView) int {
		return cmp.Or(cmp.Compare(orders[order](b), orders[order](a)), strings.Compare(a.Policy, b.Policy))
	})
	v.TopDenied = mostDenied(denied, keys)
	return v
}

func (v *view) err() error { return errors.Join(v.errs...) }

// add adds a process.
func (v *view) add(p *process, byName map[string]*policyView) {
	for _, s := range p.stats.Policies {
		its := byName[s.Policy]
		if its == nil {
			its = &policyView{Policy: s.Policy, Limits: s.Limits, Sources: map[string]float64{}, Guarantees: map[string]float64{}}
			byName[s.Policy] = its
		}
		its.Allowed += s.Allowed
		its.Denied += s.Denied
		its.Errors += s.Errors
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
	if !v.rates || p.stats.Shadow == (throttler.ShadowStats{}) {
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

func (p *policyView) add(kind throttler.DecisionCount, n float64) {
	switch {
	case kind == throttler.DecisionCount{}:
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
	p.latest = verdicts{rounded(p.latest.Allowed), rounded(p.latest.Denied), rounded(p.latest.Errors)}
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

func addDenied(sums map[string]*throttler.DeniedKey, all []throttler.DeniedKey) {
	for _, one := range all {
		its := sums[one.Key]
		if its == nil {
			its = &throttler.DeniedKey{Key: one.Key}
			sums[one.Key] = its
		}
		its.Denied += one.Denied
		its.Over += one.Over
	}
}

func mostDenied(sums map[string]*throttler.DeniedKey, keys int) []throttler.DeniedKey {
	all := []throttler.DeniedKey{}
	for _, its := range sums {
		all = append(all, *its)
	}
	slices.SortFunc(all, func(a, b throttler.DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), strings.Compare(a.Key, b.Key))
	})
	return all[:min(keys, len(all))]
}

const shareWidth = 8

func (v *view) Text(w io.Writer) {
	fmt.Fprintf(w, "%s, %d of %d processes\n\n", v.Time, v.answers, len(v.Processes))
	v.processText(w)
	fmt.Fprint(w, "\nPOLICY\tALLOWED/S\tDENIED/S\tERRORS/S\tDENIED\t\tSOURCES\tGUARANTEES\tLIMITS\n")
	for _, p := range v.Policies {
		share := "-"
		if p.latest.decisions() > 0 {
			share = cli.Percent(p.DenialShare)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.Cell(p.Policy),
			v.rate(p.latest.Allowed), v.rate(p.latest.Denied), v.rate(p.latest.Errors),
			share, terminal.Bar(p.DenialShare, shareWidth), shares(p.Sources), shares(p.Guarantees), cli.Cell(cli.Limits(p.Limits)))
	}
	v.outageText(w)
	if s := v.Shadow; s != nil {
		fmt.Fprint(w, "\nSHADOW\tALLOWED/S\tDENIED/S\tFAILED/S\tDROPPED/S\n")
		fmt.Fprintf(w, "\t%s\t%s\t%s\t%s\n", v.rate(s.Allowed), v.rate(s.Denied), v.rate(s.Failed), v.rate(s.Dropped))
	}
	if len(v.TopDenied) > 0 {
		fmt.Fprint(w, "\nDENIED MOST\tDENIED\tOVER\n")
		for _, k := range v.TopDenied {
			fmt.Fprintf(w, "%s\t%d\t%d\n", cli.Cell(k.Key), k.Denied, k.Over)
		}
	}
}

func (v *view) processText(w io.Writer) {
	fmt.Fprint(w, "PROCESS\tREGISTRY\tSTATE\n")
	for _, p := range v.Processes {
		registry, state := "-", "ok"
		if r := p.Registry; r != nil {
			registry = cli.Cell(strings.TrimSpace(r.Version + " " + r.Digest[:min(12, len(r.Digest))]))
			if r.Refused != "" {
				state = "its file is refused: " + cli.Cell(strings.ReplaceAll(r.Refused, "\n", "; "))
			}
		}
		if p.Error != "" {
			state = cli.Cell(p.Error)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", cli.Cell(p.URL), registry, state)
	}
}

// outageText warns of policies that the failure policy decides.
func (v *view) outageText(w io.Writer) {
	for _, p := range v.Policies {
		if share, out := p.Sources[fallback]; out {
			fmt.Fprintf(w, "\nOUTAGE: %s of the decisions under policy %s are made without the backend\n",
				cli.Percent(share), cli.Cell(p.Policy))
		}
	}
}

// rate is a number a second, or "-" if not known.
func (v *view) rate(n float64) string {
	if !v.rates {
		return "-"
	}
	return fmt.Sprintf("%.1f", n)
}

// shares lists shares by name, the largest first.
func shares(parts map[string]float64) string {
	names := slices.SortedFunc(maps.Keys(parts), func(a, b string) int {
		return cmp.Or(cmp.Compare(parts[b], parts[a]), strings.Compare(a, b))
	})
	var texts []string
	for _, name := range names {
		texts = append(texts, cli.Cell(name)+" "+cli.Percent(parts[name]))
	}
	return cli.Cell(strings.Join(texts, " "))
}
