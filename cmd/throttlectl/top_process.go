package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/throttler/insight"
)

// process is an application that is looked at, again and again.
type process struct {
	shown string // its URL without secrets
	url   string

	err   error // of the latest look
	stats insight.Stats
	last  sample // of the latest answer
	gain  gain   // by the latest look; of no use after an error
}

// sample is what a process has counted up to a time.
type sample struct {
	at     time.Time
	counts map[counted]int64
	shadow insight.ShadowCounts
}

// counted is what one count is of.
type counted struct {
	policy string
	kind   insight.DecisionCount // without the Count; zero: no verdict
}

// gain is what a process has counted between two answers.
type gain struct {
	sample
	over time.Duration // 0: since it started, and for how long isn't known
}

// look asks the process.
func (p *process) look(ctx context.Context, timeout time.Duration) {
	body, err := get(ctx, p.url, p.shown, timeout, maxStats)
	if err != nil {
		p.err = err
		return
	}
	p.heard(time.Now(), body)
}

// heard reads an answer.
func (p *process) heard(at time.Time, body []byte) {
	var stats insight.Stats
	err := json.Unmarshal(body, &stats)
	if err == nil && stats.Policies == nil {
		err = errors.New("no policies in it")
	}
	if err != nil {
		p.err = fmt.Errorf("%s: not the statistics that insight.Handler serves: %w", p.shown, err)
		return
	}
	now := sampled(at, &stats)
	p.err, p.stats, p.gain, p.last = nil, stats, now.since(p.last), now
}

func sampled(at time.Time, stats *insight.Stats) sample {
	s := sample{at: at, counts: make(map[counted]int64), shadow: stats.Shadow}
	for _, p := range stats.Policies {
		if p.Errors > 0 {
			s.counts[counted{policy: p.Policy}] = p.Errors
		}
		for _, d := range p.Decisions {
			n := d.Count
			d.Count = 0
			s.counts[counted{p.Policy, d}] = n
		}
	}
	return s
}

// since is what was counted since a sample before. A process that has been started anew since has counted all it says.
func (s sample) since(before sample) gain {
	if before.at.IsZero() {
		return gain{s, 0}
	}
	over := max(s.at.Sub(before.at), time.Millisecond)
	if s.restarted(before) {
		return gain{s, over}
	}
	g := gain{sample{s.at, make(map[counted]int64), minus(s.shadow, before.shadow)}, over}
	for what, n := range s.counts {
		g.counts[what] = n - before.counts[what]
	}
	return g
}

// restarted is whether a count has gone back.
func (s sample) restarted(before sample) bool {
	for what, n := range before.counts {
		if s.counts[what] < n {
			return true
		}
	}
	d := minus(s.shadow, before.shadow)
	return d.Allowed < 0 || d.Denied < 0 || d.Failed < 0 || d.Dropped < 0
}

func minus(a, b insight.ShadowCounts) insight.ShadowCounts {
	return insight.ShadowCounts{
		Allowed: a.Allowed - b.Allowed, Denied: a.Denied - b.Denied, Failed: a.Failed - b.Failed, Dropped: a.Dropped - b.Dropped,
	}
}
