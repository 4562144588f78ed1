package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/traffic"
	"github.com/sluice-go/sluice/throttler"
)

// attack is callers that call a Throttler, each one request at a time.
type attack struct {
	throttler *throttler.Throttler
	keys      *traffic.Keys
	callers   int
	rate      float64 // requests a second of all callers; 0: unlimited
	duration  time.Duration
	seed      uint64
	audit     *audit

	start                 time.Time
	next                  atomic.Int64 // number of the next request
	decided, denied, fail atomic.Int64 // for the progress
}

// tally is the results of one caller, or of all.
type tally struct {
	admitted, denied int64
	latency          *hdrhistogram.Histogram // in nanoseconds
	sources          map[string]int64
	guarantees       map[string]int64
	causes           map[string]int64 // why not exact
	errors           map[string]int64
}

func newTally() *tally {
	return &tally{
		latency: hdrhistogram.New(1, int64(maxDuration), 2),
		sources: make(map[string]int64), guarantees: make(map[string]int64), causes: make(map[string]int64), errors: make(map[string]int64),
	}
}

func (t *tally) join(o *tally) {
	t.admitted += o.admitted
	t.denied += o.denied
	t.latency.Merge(o.latency)
	for _, maps := range [][2]map[string]int64{
		{t.sources, o.sources}, {t.guarantees, o.guarantees}, {t.causes, o.causes}, {t.errors, o.errors},
	} {
		for name, n := range maps[1] {
			maps[0][name] += n
		}
	}
}

// run attacks until the time is over, or until interrupted, and returns the results and how long it took.
func (a *attack) run(ctx context.Context) (*tally, time.Duration) {
	tallies := make([]*tally, a.callers)
	var all sync.WaitGroup
	for i := range tallies {
		tallies[i] = newTally()
		all.Go(func() { a.caller(ctx, tallies[i], rand.New(rand.NewPCG(a.seed, uint64(i)))) })
	}
	all.Wait()
	took := time.Since(a.start)
	sum := newTally()
	for _, t := range tallies {
		sum.join(t)
	}
	return sum, took
}

func (a *attack) caller(ctx context.Context, t *tally, random *rand.Rand) {
	for {
		due, ok := a.nextDue(ctx)
		if !ok {
			return
		}
		key := a.keys.Draw(random)
		d, err := a.throttler.Allow(context.WithoutCancel(ctx), key)                // an interrupted call would have an unknown outcome
		_ = t.latency.RecordValue(int64(min(max(time.Since(due), 0), maxDuration))) // in range: no error
		switch {
		case err != nil:
			t.errors[throttler.Reason(err)]++
			a.fail.Add(1)
			continue
		case d.Allowed:
			t.admitted++
			a.audit.record(key, 1, &d)
		default:
			t.denied++
			a.denied.Add(1)
		}
		a.decided.Add(1)
		t.sources[d.Source.String()]++
		t.guarantees[d.Guarantee.String()]++
		if d.Cause != nil {
			t.causes[throttler.Reason(d.Cause)]++
		}
	}
}

// nextDue waits until the next request is due, and returns false after the last. A request that all callers are late for keeps
// its time: its latency includes the wait, as it would for independent callers (no coordinated omission).
func (a *attack) nextDue(ctx context.Context) (due time.Time, ok bool) {
	n := a.next.Add(1) - 1
	due = time.Now()
	over := time.Since(a.start) >= a.duration && n >= int64(a.callers) // each caller calls at least once
	if a.rate > 0 {
		after := float64(n) / a.rate * float64(time.Second) // may exceed a Duration
		over = over || after >= float64(a.duration)
		due = a.start.Add(time.Duration(min(after, float64(a.duration))))
	}
	if over || ctx.Err() != nil {
		return due, false
	}
	if wait := time.Until(due); wait > 0 {
		select {
		case <-time.After(wait):
			due = time.Now() // the timer is late, not the server
		case <-ctx.Done():
			return due, false
		}
	}
	return due, true
}
