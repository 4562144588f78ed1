package simulate

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

// report is the result of a simulation. Times are in seconds since the first request.
type report struct {
	Traffic  string         `json:"traffic"`
	Start    time.Time      `json:"start"` // the first request
	Seconds  float64        `json:"seconds"`
	Requests int64          `json:"requests"`
	Cost     int64          `json:"cost"`
	Policies []policyReport `json:"policies"`
}

type policyReport struct {
	Limits        string       `json:"limits"`
	Admitted      int64        `json:"admitted"`
	AdmittedCost  int64        `json:"admitted_cost"`
	Denied        int64        `json:"denied"`
	Impossible    int64        `json:"impossible"` // denied at any time for their cost; not in what follows
	MeanWait      float64      `json:"mean_wait"`  // told to the denied
	LongestDenial denialRun    `json:"longest_denial"`
	Worst         []peakReport `json:"worst"`
}

// denialRun is denials of one key in a row.
type denialRun struct {
	Requests int64   `json:"requests"`
	From     float64 `json:"from"`
	Lasts    float64 `json:"lasts"`
	Key      string  `json:"key"`
}

// peakReport is the most that was admitted to one key in a span of a length.
type peakReport struct {
	Span     float64 `json:"span"`
	Admitted int64   `json:"admitted"`
	Promised int64   `json:"promised"`
	From     float64 `json:"from"`
	Key      string  `json:"key"`
}

func (s *simulation) report(description string) report {
	seconds := func(micros int64) float64 { return float64(micros) / 1e6 }
	since := func(at int64) float64 { return seconds(at - s.first) }
	r := report{
		Traffic: description, Start: time.UnixMicro(s.first).UTC(), Seconds: since(s.last), Requests: s.requests, Cost: s.cost,
	}
	for _, c := range s.candidates {
		p := policyReport{
			Limits: c.name, Admitted: c.admitted, AdmittedCost: c.admittedCost, Denied: c.denied, Impossible: c.impossible,
		}
		if n := c.denied - c.impossible; n > 0 {
			p.MeanWait = math.Round(c.wait/float64(n)*1e3) / 1e3
			p.LongestDenial = denialRun{c.longest.count, since(c.longest.from), seconds(c.longest.to - c.longest.from), c.longest.key}
		}
		for i, peak := range c.peaks {
			worst := peakReport{Span: s.spans[i].Seconds(), Promised: admissionBound(&c.policy, s.spans[i])}
			if peak.most > 0 {
				worst.Admitted, worst.From, worst.Key = peak.most, since(peak.from), peak.key
			}
			p.Worst = append(p.Worst, worst)
		}
		r.Policies = append(r.Policies, p)
	}
	return r
}

func (s report) Text(w io.Writer) {
	fmt.Fprintf(w, "%s\n", cli.Cell(s.Traffic))
	fmt.Fprintf(w, "%d requests, cost %d, in %s from %s\n\n", s.Requests, s.Cost, cli.SecondsText(s.Seconds), s.Start.Format(time.RFC3339))
	fmt.Fprint(w, "POLICY\tADMITTED\tDENIED\tSHARE\tMEAN WAIT\tDENIED IN A ROW\tFROM\tFOR\tKEY\n")
	for _, p := range s.Policies {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f%%\t", p.Limits, p.Admitted, p.Denied, 100*float64(p.Denied)/float64(s.Requests))
		if run := p.LongestDenial; run.Requests > 0 {
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", cli.SecondsText(p.MeanWait), run.Requests, cli.SecondsText(run.From), cli.SecondsText(run.Lasts), cli.Cell(run.Key))
		} else {
			fmt.Fprint(w, "-\t-\t-\t-\t-\n")
		}
	}
	fmt.Fprint(w, "\nPOLICY\tIN ANY\tMOST ADMITTED\tPROMISED\tFROM\tKEY\n")
	for _, p := range s.Policies {
		for _, worst := range p.Worst {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n",
				p.Limits, cli.SecondsText(worst.Span), worst.Admitted, worst.Promised, cli.SecondsText(worst.From), cli.Cell(worst.Key))
		}
	}
	for _, p := range s.Policies {
		if p.Impossible > 0 {
			fmt.Fprintf(w, "\n%s: %d of the denied cost more than it can ever admit.\n", p.Limits, p.Impossible)
		}
	}
}
