package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-go/sluice/internal/redisserver"
)

// A Slice is what was measured while one peer did one row's work for a while, or the medians of several. Shares are of
// 1, times in microseconds, and everything but the share that failed is for decisions that were made.
type Slice struct {
	PerSecond float64 `json:"decisions_per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	RedisCPU  float64 `json:"redis_cpu_us"`  // for each decision
	ClientCPU float64 `json:"client_cpu_us"` // for each decision, that of the loop around it included
	Allocs    float64 `json:"allocs"`        // for each decision
	Commands  float64 `json:"commands"`      // for each decision, those that scripts call included
	Allowed   float64 `json:"allowed"`
	Failed    float64 `json:"failed"`
}

// fields are the slice's numbers, in the order of the declaration.
func (s *Slice) fields() []*float64 {
	return []*float64{&s.PerSecond, &s.P50, &s.P99, &s.RedisCPU, &s.ClientCPU, &s.Allocs, &s.Commands, &s.Allowed, &s.Failed}
}

func medians(rounds []Slice) Slice {
	var m Slice
	for i, field := range m.fields() {
		values := make([]float64, len(rounds))
		for j := range rounds {
			values[j] = *rounds[j].fields()[i]
		}
		*field = median(values)
	}
	return m
}

const maxLatency = 2 * time.Minute

// newHistogram counts latencies in nanoseconds, to 1 %.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(maxLatency), 2) }

// callers are the goroutines of a slice, with memory that is used again for the next one.
type callers []caller

type caller struct {
	latencies       *hdrhistogram.Histogram // in nanoseconds
	allowed, failed int
	firstError      error
	_               [64]byte // callers don't share cache lines
}

// outcome is what all callers have met together.
type outcome struct {
	latencies       *hdrhistogram.Histogram
	allowed, failed int
	firstError      error
	elapsed         time.Duration
}

// work lets every caller ask for keys, one after the other, until the time is over. An order of nil is every key once.
//
// Each caller has a context of its own that can be cancelled, as that of a request has; background gives all the one
// that can't.
func (all callers) work(ctx context.Context, p Peer, keys []string, order []uint32, d time.Duration, background bool) *outcome {
	var done sync.WaitGroup
	begin := make(chan struct{})
	for i := range all {
		c := &all[i]
		*c = caller{latencies: c.latencies}
		if c.latencies == nil {
			c.latencies = newHistogram()
		}
		c.latencies.Reset()
		done.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if background {
				ctx = context.Background()
			}
			p := p
			if apart, ok := p.(clients); ok {
				p = apart.of(i)
			}
			<-begin
			if order == nil {
				c.askOnce(ctx, p, keys, i, len(all))
			} else {
				c.ask(ctx, p, keys, order, i*len(order)/len(all), d)
			}
		})
	}
	start := time.Now()
	close(begin)
	done.Wait()
	o := &outcome{elapsed: time.Since(start), latencies: newHistogram()}
	for i := range all {
		c := &all[i]
		o.latencies.Merge(c.latencies)
		o.allowed += c.allowed
		o.failed += c.failed
		if o.firstError == nil {
			o.firstError = c.firstError
		}
	}
	return o
}

func (c *caller) ask(ctx context.Context, p Peer, keys []string, order []uint32, at int, d time.Duration) {
	begin := time.Now()
	for before := time.Duration(0); before < d; {
		key := keys[order[at]]
		if at++; at == len(order) {
			at = 0
		}
		allowed, err := p.Take(ctx, key)
		now := time.Since(begin)                                        // cheaper than time.Now: this loop is a part of what a leased take costs
		_ = c.latencies.RecordValue(int64(min(now-before, maxLatency))) // it is within the bounds
		before = now
		c.note(allowed, err)
	}
}

// askOnce asks for the caller's share of the keys.
func (c *caller) askOnce(ctx context.Context, p Peer, keys []string, first, step int) {
	for ; first < len(keys); first += step {
		c.note(p.Take(ctx, keys[first]))
	}
}

func (c *caller) note(allowed bool, err error) {
	switch {
	case err != nil:
		if c.failed++; c.firstError == nil {
			c.firstError = err
		}
	case allowed:
		c.allowed++
	}
}

// usage is what both sides have used up so far.
type usage struct {
	redisSeconds, clientSeconds float64
	mallocs                     uint64
}

func (s *server) usage(ctx context.Context) (usage, redisserver.Info, error) {
	var self syscall.Rusage
	var memory runtime.MemStats
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return usage{}, nil, err
	}
	runtime.ReadMemStats(&memory)
	info, err := s.Info(ctx, "cpu", "commandstats")
	if err != nil {
		return usage{}, nil, err
	}
	redisSeconds, err := info.CPUSeconds()
	client := time.Duration(self.Utime.Nano() + self.Stime.Nano()).Seconds()
	return usage{redisSeconds: redisSeconds, clientSeconds: client, mallocs: memory.Mallocs}, info, err
}

// measure does a row's work for d and returns what it took. The error that it returns beside a slice is that of the
// first call that failed.
func (s *server) measure(ctx context.Context, all callers, p Peer, keys []string, order []uint32,
	d time.Duration, background bool) (slice Slice, failure, err error) {
	if err := s.Admin.ConfigResetStat(ctx).Err(); err != nil {
		return Slice{}, nil, err
	}
	runtime.GC()
	before, _, err := s.usage(ctx)
	if err != nil {
		return Slice{}, nil, err
	}
	o := all.work(ctx, p, keys, order, d, background)
	after, info, err := s.usage(ctx)
	if err != nil {
		return Slice{}, nil, err
	}
	calls, err := info.Calls()
	if err != nil {
		return Slice{}, nil, err
	}
	ran := int64(0)
	for _, n := range calls {
		ran += n
	}
	asked := float64(o.latencies.TotalCount())
	made := asked - float64(o.failed)
	if made == 0 {
		return Slice{}, nil, fmt.Errorf("no decision was made: %w", o.firstError)
	}
	return Slice{
		PerSecond: made / o.elapsed.Seconds(),
		P50:       float64(o.latencies.ValueAtQuantile(50)) / 1e3,
		P99:       float64(o.latencies.ValueAtQuantile(99)) / 1e3,
		RedisCPU:  (after.redisSeconds - before.redisSeconds) * 1e6 / made,
		ClientCPU: (after.clientSeconds - before.clientSeconds) * 1e6 / made,
		Allocs:    float64(after.mallocs-before.mallocs) / made,
		Commands:  float64(ran) / made,
		Allowed:   float64(o.allowed) / made,
		Failed:    float64(o.failed) / asked,
	}, o.firstError, nil
}
