package load

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/limit"
)

// report is the result of a load. Latencies are in microseconds.
type report struct {
	Where      string           `json:"where"`
	Seconds    float64          `json:"seconds"`
	Callers    int              `json:"callers"`
	Requests   int64            `json:"requests"`
	Unsent     int64            `json:"unsent"` // due while all callers were busy
	Decisions  int64            `json:"decisions"`
	PerSecond  float64          `json:"per_second"`
	Admitted   int64            `json:"admitted"`
	Denied     int64            `json:"denied"`
	Latency    latencies        `json:"latency"`
	Sources    map[string]int64 `json:"sources"`
	Guarantees map[string]int64 `json:"guarantees"`
	Causes     map[string]int64 `json:"causes"` // why not exact
	Errors     map[string]int64 `json:"errors"`
	Leases     *leases          `json:"leases,omitempty"`
	Credit     *credit          `json:"credit,omitempty"`
	Limits     []limitReport    `json:"limits"`
}

type latencies struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// leases is what the leases have done; the last three are of cost.
type leases struct {
	Fetches   int64 `json:"fetches"`
	Forwarded int64 `json:"forwarded"`
	Returned  int64 `json:"returned"`
	Lost      int64 `json:"lost"`
	Stranded  int64 `json:"stranded"`
}

// credit is what was done on credit; the last four are of cost.
type credit struct {
	Admitted  int64 `json:"admitted"`
	Charges   int64 `json:"charges"`
	Debt      int64 `json:"debt"`
	Lost      int64 `json:"lost"`
	Overshoot int64 `json:"overshoot"` // the most that a reply to a charge showed above a limit
	Bound     int64 `json:"bound"`     // of that, for the largest limit
}

type limitReport struct {
	Limit   limit.Limit `json:"limit"`
	Over    int64       `json:"over"`     // cost admitted above it by exact decisions
	OverAll int64       `json:"over_all"` // by all decisions
}

func (a *attack) report(where string, seen *tally, took time.Duration) *report {
	micros := func(q float64) float64 { return float64(seen.latency.ValueAtQuantile(q)) / 1e3 }
	r := &report{
		Where: where, Seconds: took.Seconds(), Callers: a.callers, Requests: seen.latency.TotalCount(),
		Admitted: seen.admitted, Denied: seen.denied, Decisions: seen.admitted + seen.denied,
		Latency: latencies{micros(50), micros(90), micros(99), micros(99.9), micros(100)},
		Sources: seen.sources, Guarantees: seen.guarantees, Causes: seen.causes, Errors: seen.errors,
	}
	r.PerSecond = float64(r.Decisions) / r.Seconds
	if a.rate > 0 {
		r.Unsent = max(int64(a.rate*min(took, a.duration).Seconds())-r.Requests, 0)
	}
	for i, over := range a.audit.result() {
		r.Limits = append(r.Limits, limitReport{a.audit.policy.Limits[i], over.exact, over.all})
	}
	return r
}

func (r *report) lease(s lease.Stats, p *limit.Policy, slack float64) {
	r.Leases = &leases{s.Fetches, s.Forwarded, s.Returned, s.Lost, s.Stranded}
	if slack == 0 {
		return
	}
	bound, most := lease.BoundError{Slack: slack, Processes: 1}, int64(0)
	for _, l := range p.Limits {
		most = max(most, bound.Above(l))
	}
	r.Credit = &credit{s.OnCredit, s.Flushes, s.Debt, s.LostCharges, s.Overshoot, most}
}

// err is the error of the command.
func (r *report) err() error {
	var over []string
	for _, l := range r.Limits {
		if l.Over > 0 {
			over = append(over, fmt.Sprintf("limit %s: %d admitted above it", l.Limit, l.Over))
		}
	}
	switch {
	case len(over) > 0:
		return cli.Found(strings.Join(over, ", "))
	case r.Decisions == 0:
		return errors.New("nothing was decided")
	}
	return nil
}

func (r *report) Text(w io.Writer) {
	micros := func(n float64) string {
		return time.Duration(n * float64(time.Microsecond)).Round(100 * time.Nanosecond).String()
	}
	fmt.Fprintf(w, "%s, %d callers, %s\n\n", cli.Cell(r.Where), r.Callers, cli.SecondsText(r.Seconds))
	fmt.Fprintf(w, "DECISIONS\t%d (%.0f a second)\n", r.Decisions, r.PerSecond)
	fmt.Fprintf(w, "ADMITTED\t%d\n", r.Admitted)
	fmt.Fprintf(w, "DENIED\t%d (%.1f%%)\n", r.Denied, percentOf(r.Denied, r.Decisions))
	fmt.Fprintf(w, "SOURCES\t%s\n", byName(r.Sources))
	fmt.Fprintf(w, "GUARANTEES\t%s\n", byName(r.Guarantees))
	fmt.Fprintf(w, "NOT EXACT\t%s\n", byName(r.Causes))
	fmt.Fprintf(w, "ERRORS\t%s\n", byName(r.Errors))
	if r.Unsent > 0 {
		fmt.Fprintf(w, "UNSENT\t%d (no caller was free: more --callers, or a smaller --rate)\n", r.Unsent)
	}
	if l := r.Leases; l != nil {
		fmt.Fprintf(w, "LEASES\t%d fetched, %d forwarded; cost returned %d, lost %d, stranded %d\n",
			l.Fetches, l.Forwarded, l.Returned, l.Lost, l.Stranded)
	}
	if c := r.Credit; c != nil {
		fmt.Fprintf(w, "CREDIT\t%d admitted, %d charges; cost owed %d, lost %d, seen above a limit %d of at most %d\n",
			c.Admitted, c.Charges, c.Debt, c.Lost, c.Overshoot, c.Bound)
	}
	fmt.Fprint(w, "\nLATENCY\tP50\tP90\tP99\tP99.9\tMAX\n")
	p := r.Latency
	fmt.Fprintf(w, "\t%s\t%s\t%s\t%s\t%s\n", micros(p.P50), micros(p.P90), micros(p.P99), micros(p.P999), micros(p.Max))
	fmt.Fprint(w, "\nLIMIT\tABOVE LIMIT\tBY ALL\n")
	for _, l := range r.Limits {
		fmt.Fprintf(w, "%s\t%d\t%d\n", l.Limit, l.Over, l.OverAll)
	}
}

// byName lists counts, the largest first.
func byName(counts map[string]int64) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("%s %d", name, counts[name]))
	}
	if all == nil {
		return "-"
	}
	return strings.Join(all, ", ")
}
