package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/endpoint"
	"github.com/sluice-go/sluice/throttler/insight"
)

// process is an application that is polled.
type process struct {
	shown string // its URL without secrets
	url   string

	err       error // of the latest poll
	report    insight.Report
	last      sample // of the latest answer
	delta     delta  // by the latest poll; not valid after an error
	restarted bool   // before the latest answer, and after the one before
}

// sample is the counts of a process at a time.
type sample struct {
	at, started time.Time
	counts      map[decisionKind]int64
	exposure    map[string]int64 // by policy
	shadow      insight.ShadowCounts
}

// decisionKind is what a count is of.
type decisionKind struct {
	policy string
	kind   insight.DecisionCount // without the Count; zero: an error
}

// delta is what a process has counted between two samples.
type delta struct {
	sample
	over time.Duration // 0: since it started, an unknown time ago
}

func (p *process) poll(ctx context.Context, timeout time.Duration) {
	body, err := endpoint.Get(ctx, p.url, p.shown, timeout, maxStats)
	if err != nil {
		p.err = err
		return
	}
	p.record(time.Now(), body)
}

// record parses a reply.
func (p *process) record(at time.Time, body []byte) {
	var report insight.Report
	err := json.Unmarshal(body, &report)
	if err == nil && report.Policies == nil {
		err = errors.New("no policies in it")
	}
	if err != nil {
		p.err = fmt.Errorf("%s: not the statistics that insight.Handler serves: %w", p.shown, err)
		return
	}
	now := newSample(at, &report)
	p.restarted = !p.last.at.IsZero() && now.restarted(p.last)
	p.err, p.report, p.delta, p.last = nil, report, now.since(p.last), now
}

func newSample(at time.Time, report *insight.Report) sample {
	s := sample{
		at: at, started: report.Started, counts: make(map[decisionKind]int64), exposure: make(map[string]int64), shadow: report.Shadow,
	}
	for _, p := range report.Policies {
		s.exposure[p.Policy] = p.Exposure
		if p.Errors > 0 {
			s.counts[decisionKind{policy: p.Policy}] = p.Errors
		}
		for _, d := range p.Decisions {
			n := d.Count
			d.Count = 0
			s.counts[decisionKind{p.Policy, d}] = n
		}
	}
	return s
}

// since is what was counted since an earlier sample: everything, if the process was restarted in between.
func (s sample) since(before sample) delta {
	if before.at.IsZero() {
		return delta{s, 0}
	}
	over := max(s.at.Sub(before.at), time.Millisecond)
	if s.restarted(before) {
		return delta{s, over}
	}
	g := delta{sample{
		at: s.at, started: s.started, counts: make(map[decisionKind]int64), exposure: make(map[string]int64),
		shadow: subtract(s.shadow, before.shadow),
	}, over}
	for policy, n := range s.exposure {
		g.exposure[policy] = n - before.exposure[policy]
	}
	for what, n := range s.counts {
		g.counts[what] = n - before.counts[what]
	}
	return g
}

// restarted reports whether the process is another one than before, or a count is lower.
func (s sample) restarted(before sample) bool {
	if !s.started.Equal(before.started) {
		return true
	}
	for what, n := range before.counts {
		if s.counts[what] < n {
			return true
		}
	}
	d := subtract(s.shadow, before.shadow)
	return d.Allowed < 0 || d.Denied < 0 || d.Failed < 0 || d.Dropped < 0
}

func subtract(a, b insight.ShadowCounts) insight.ShadowCounts {
	return insight.ShadowCounts{
		Allowed: a.Allowed - b.Allowed, Denied: a.Denied - b.Denied, Failed: a.Failed - b.Failed, Dropped: a.Dropped - b.Dropped,
	}
}
