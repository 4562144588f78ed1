package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/endpoint"
	"github.com/sluice-go/sluice/throttler"
)

// process is an application that is polled.
type process struct {
	shown string // its URL without secrets
	url   string

	err   error // of the latest poll
	stats throttler.Stats
	last  sample // of the latest answer
	delta delta  // by the latest poll; not valid after an error
}

// sample is the counts of a process at a time.
type sample struct {
	at     time.Time
	counts map[decisionKind]int64
	shadow throttler.ShadowStats
}

// decisionKind is what a count is of.
type decisionKind struct {
	policy string
	kind   throttler.DecisionCount // without the Count; zero: an error
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
	var stats throttler.Stats
	err := json.Unmarshal(body, &stats)
	if err == nil && stats.Policies == nil {
		err = errors.New("no policies in it")
	}
	if err != nil {
		p.err = fmt.Errorf("%s: not the statistics that httplimit.StatsHandler serves: %w", p.shown, err)
		return
	}
	now := newSample(at, &stats)
	p.err, p.stats, p.delta, p.last = nil, stats, now.since(p.last), now
}

func newSample(at time.Time, stats *throttler.Stats) sample {
	s := sample{at: at, counts: make(map[decisionKind]int64), shadow: stats.Shadow}
	for _, p := range stats.Policies {
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
	g := delta{sample{s.at, make(map[decisionKind]int64), subtract(s.shadow, before.shadow)}, over}
	for what, n := range s.counts {
		g.counts[what] = n - before.counts[what]
	}
	return g
}

// restarted reports whether a count is lower than before.
func (s sample) restarted(before sample) bool {
	for what, n := range before.counts {
		if s.counts[what] < n {
			return true
		}
	}
	d := subtract(s.shadow, before.shadow)
	return d.Allowed < 0 || d.Denied < 0 || d.Failed < 0 || d.Dropped < 0
}

func subtract(a, b throttler.ShadowStats) throttler.ShadowStats {
	return throttler.ShadowStats{
		Allowed: a.Allowed - b.Allowed, Denied: a.Denied - b.Denied, Failed: a.Failed - b.Failed, Dropped: a.Dropped - b.Dropped,
	}
}
