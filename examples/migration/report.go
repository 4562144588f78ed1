package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-go/sluice/backend/dual"
)

// row is one step of the release.
type row struct {
	redis     string // which share of the keys Redis decides
	tally     tally
	over      int
	dual      dual.Stats // what the Duals counted in the step
	shadowing bool
	p50, p99  time.Duration
}

func newRow(redis string, t tally, over int, d dual.Stats, shadowing bool) row {
	slices.Sort(t.latencies)
	return row{redis, t, over, d, shadowing, quantile(t.latencies, 50), quantile(t.latencies, 99)}
}

// quantile is the least value that percent of all don't exceed.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*percent+99)/100-1]
}

// report is the table, printed line by line as the steps end.
type report struct {
	out    io.Writer
	rows   []row
	source []string // the lines so far, before they are aligned
}

var columns = []string{
	"step", "Redis", "requests", "allowed", "denied", "over", "shadow d/a/r", "handovers", "redirected", "bounded", "errors",
	"p50", "ratio", "p99", "ratio",
}

const minWidth = 6 // of a column with its space: the lines before are printed already

const legend = `over: admitted over the limit. shadow: what the other side would have denied, allowed, left remaining otherwise.
handovers: keys whose counts were brought along, which each change asks of every key in use, once. redirected: calls
that found their key moved and followed it. bounded: decided without the counts of the other side. p50, p99: ms for
a decision, against the step before.

`

func newReport(out io.Writer) *report {
	r := &report{out: out}
	fmt.Fprint(out, legend)
	r.line(columns)
	return r
}

func (r *report) add(n row) {
	p50, p99 := "-", "-"
	if len(r.rows) > 0 {
		before := r.rows[len(r.rows)-1]
		p50, p99 = ratio(n.p50, before.p50), ratio(n.p99, before.p99)
	}
	r.rows = append(r.rows, n)
	t := n.tally
	r.line([]string{
		strconv.Itoa(len(r.rows)), n.redis,
		strconv.Itoa(t.requests()), strconv.Itoa(t.allowed), strconv.Itoa(t.denied), strconv.Itoa(n.over),
		n.shadow(), fmt.Sprint(n.dual.Handovers), fmt.Sprint(n.dual.Redirects), fmt.Sprint(n.dual.Bounded), strconv.Itoa(t.errors),
		millis(n.p50), p50, millis(n.p99), p99,
	})
}

// line prints one more line, aligned with those before.
func (r *report) line(cells []string) {
	r.source = append(r.source, strings.Join(cells, "\t")+"\t")
	var all bytes.Buffer
	w := tabwriter.NewWriter(&all, minWidth, 0, 1, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, strings.Join(r.source, "\n"))
	_ = w.Flush() // to memory
	lines := strings.Split(strings.TrimRight(all.String(), "\n"), "\n")
	fmt.Fprintln(r.out, lines[len(lines)-1])
}

func (n *row) shadow() string {
	s := n.dual.Shadow
	s.Agreed = 0
	if !n.shadowing && s == (dual.ShadowStats{}) { // what waits when shadow calls end is answered still
		return "-"
	}
	text := fmt.Sprintf("%d/%d/%d", s.Denied, s.Allowed, s.Remaining)
	if lost := s.Failed + s.Dropped; lost > 0 {
		text += fmt.Sprintf("+%d?", lost)
	}
	return text
}

func millis(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

func ratio(a, b time.Duration) string {
	if b == 0 {
		return "-"
	}
	r := float64(a) / float64(b)
	if r >= 10 {
		return fmt.Sprintf("x%.0f", r)
	}
	return fmt.Sprintf("x%.2f", r)
}

// outcome is the release as a whole.
type outcome struct {
	took                        time.Duration
	requests, allowed, handed   int64
	over, errors                int
	failure                     error
	bounded, shadows, divergent int64
}

func (r *report) outcome(took time.Duration, over int, failure error) outcome {
	o := outcome{took: took, over: over, failure: failure}
	for _, n := range r.rows {
		o.requests += int64(n.tally.requests())
		o.allowed += int64(n.tally.allowed)
		o.errors += n.tally.errors
		o.handed += n.dual.Handovers
		o.bounded += n.dual.Bounded
		s := n.dual.Shadow
		o.divergent += s.Denied + s.Allowed + s.Remaining
		o.shadows += s.Agreed + s.Denied + s.Allowed + s.Remaining
	}
	return o
}

// exitCode is 1 if the release has done harm.
func (o outcome) exitCode() int {
	if o.over > 0 || o.errors > 0 {
		return 1
	}
	return 0
}

func (o outcome) String() string {
	text := fmt.Sprintf("moved in %v: %d requests, %d over the limit, %d errors; %d handovers; shadow calls differed in %d of %d",
		o.took.Round(time.Second), o.requests, o.over, o.errors, o.handed, o.divergent, o.shadows)
	if o.failure != nil {
		text += "; first error: " + o.failure.Error()
	}
	return text
}
