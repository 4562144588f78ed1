package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/throttler"
)

const popularity = 1.1 // exponent of Zipf's law: the first few keys get most of the requests

// startClients lets the clients ask, each at its own pace, half of them one process and half the other. The function
// that it returns waits until they have stopped, which they do when ctx ends.
func startClients(ctx context.Context, a *application, l *ledger) (wait func()) {
	var clients sync.WaitGroup
	for i := range a.o.clients {
		p := a.processes[i%len(a.processes)]
		clients.Go(func() { ask(ctx, p, a.o, l) })
	}
	return clients.Wait
}

// ask is one client.
func ask(ctx context.Context, p *process, o options, l *ledger) {
	keys := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), popularity, 1, uint64(o.keys-1))
	every := time.Second / time.Duration(o.rate)
	if pause(ctx, rand.N(every)) != nil { // not all in the same moment
		return
	}
	pace := time.NewTicker(every)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		key := fmt.Sprintf("user:%d", keys.Uint64())
		asked := time.Now()
		d, err := p.allow(key)
		l.enter(key, d, err, time.Since(asked))
	}
}

// ledger is what came of every request.
type ledger struct {
	start time.Time
	width time.Duration // of a slice

	mu       sync.Mutex // guards all below
	tallies  []tally    // by step, the last one is under way
	slices   []pair     // requests over time, for the picture
	admitted map[string][]admission
	failure  error // the first
}

// tally is what came of the requests of a step.
type tally struct {
	pair
	errors    int
	latencies []time.Duration
}

func (t *tally) requests() int { return t.allowed + t.denied + t.errors }

type pair struct{ allowed, denied int }

// admission is one request that was allowed.
type admission struct {
	at    int64 // when it was decided, by the clock of the server that decided, Unix microseconds
	reset int64 // when its fixed window ends, Unix microseconds
	step  int
}

func newLedger(width time.Duration) *ledger {
	return &ledger{start: time.Now(), width: width, tallies: make([]tally, 1), admitted: make(map[string][]admission)}
}

// enter takes down what came of a request. A denial because there was no verdict is an error.
func (l *ledger) enter(key string, d throttler.Decision, err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.tallies[len(l.tallies)-1]
	if err == nil && (d.Source == throttler.Fallback || d.Source == throttler.Unknown) {
		err = d.Cause
	}
	if err != nil {
		t.errors++
		l.failure = cmp.Or(l.failure, err)
		return
	}
	t.latencies = append(t.latencies, took)
	now := int(time.Since(l.start) / l.width)
	for len(l.slices) <= now {
		l.slices = append(l.slices, pair{})
	}
	if !d.Allowed {
		t.denied++
		l.slices[now].denied++
		return
	}
	t.allowed++
	l.slices[now].allowed++
	entry := admission{at: d.At.UnixMicro(), step: len(l.tallies) - 1}
	for status := range d.All() { // the first limit of the policy is the fixed one
		entry.reset = status.ResetAt.UnixMicro()
		break
	}
	l.admitted[key] = append(l.admitted[key], entry)
}

// endStep begins the next step and returns what came of the one before.
func (l *ledger) endStep() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tallies = append(l.tallies, tally{})
	return l.tallies[len(l.tallies)-2]
}

// admissions is a copy of what was admitted so far.
func (l *ledger) admissions() map[string][]admission {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := maps.Clone(l.admitted)
	for key, entries := range all {
		all[key] = slices.Clone(entries)
	}
	return all
}
