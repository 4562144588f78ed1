package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"time"
)

// A soak attacks one peer for long, and fails if it admits too much, or if what the process holds grows: the median of the
// last third of the samples is compared with that of the first. Samples are taken while no call is under way, so that they show
// what stays.
const (
	soakSamples    = 60
	leastSamples   = 3         // one of each third
	moreGoroutines = 10        // are allowed
	moreBytes      = 2 << 20   // of heap in use
	moreConns      = instances // to Redis
	soakConns      = 2         // of each pool: a larger one grows for long, by one wherever a reply is late
)

// held is what the process holds.
type held struct {
	goroutines, bytes, conns int64
}

// hold collects garbage first. What has come to an end just now may take a moment to go.
func (s *server) hold(ctx context.Context) (held, error) {
	time.Sleep(10 * time.Millisecond)
	runtime.GC()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	info, err := s.Info(ctx, "clients")
	if err != nil {
		return held{}, err
	}
	conns, err := strconv.ParseInt(info["connected_clients"], 10, 64)
	if err != nil {
		return held{}, fmt.Errorf("INFO: connected_clients: %w", err)
	}
	return held{goroutines: int64(runtime.NumGoroutine()), bytes: int64(live[0].Value.Uint64()), conns: conns}, nil
}

// soak attacks a peer for d, and prints what the process held.
func soak(ctx context.Context, c *config, s *server, m maker, d time.Duration, out io.Writer) (err error) {
	t := turn{config: c, server: s, all: make(callers, attack.Callers), row: attack, keys: makeKeys(attackers),
		order: makeOrder(attackers, false, c.seed)}
	setup := t.setup()
	setup.Conns = soakConns
	p, err := m.open(setup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := t.prepare(ctx, p, t.keys); err != nil {
		return err
	}
	var samples []held
	var made, allowed uint64
	start := time.Now()
	for len(samples) < leastSamples || time.Since(start) < d {
		if err := ctx.Err(); err != nil {
			return err
		}
		o := t.all.work(ctx, p, t.keys, t.order, d/soakSamples, c.loose)
		if o.failed > 0 {
			return fmt.Errorf("%d calls failed, for example: %w", o.failed, o.firstError)
		}
		made, allowed = made+uint64(o.latencies.TotalCount()), allowed+uint64(o.allowed)
		sample, err := s.hold(ctx)
		if err != nil {
			return err
		}
		samples = append(samples, sample)
		fmt.Fprintf(c.verbose, "%s: %d decisions, %d goroutines, %d KiB, %d connections\n",
			time.Since(start).Round(time.Second), made, sample.goroutines, sample.bytes>>10, sample.conns)
	}
	if _, err := fmt.Fprintf(out, "%s: %s for %s: %d decisions, %d allowed\n", attack.Name(), m.name,
		time.Since(start).Round(time.Millisecond), made, allowed); err != nil {
		return err
	}
	quota := attack.Quotas()[0]
	windows := 2 + uint64(time.Since(start)/quota.Window) // the first and the last in part
	if most := attackers * uint64(quota.Max) * windows; allowed > most {
		err = fmt.Errorf("%d were allowed in %d windows, more than %d", allowed, windows, most)
	}
	return errors.Join(err, judge(samples, out))
}

// judge compares the last third of the samples with the first.
func judge(samples []held, out io.Writer) error {
	third := len(samples) / 3
	first, last := samples[:third], samples[len(samples)-third:]
	var t table
	var errs []error
	t.add("", "first third", "last third", "may grow by", "holds")
	for _, kind := range []struct {
		name string
		of   func(held) int64
		more int64
	}{
		{"goroutines", func(h held) int64 { return h.goroutines }, moreGoroutines},
		{"bytes of heap in use", func(h held) int64 { return h.bytes }, moreBytes},
		{"connections to Redis", func(h held) int64 { return h.conns }, moreConns},
	} {
		before, after, holds := middle(first, kind.of), middle(last, kind.of), "yes"
		if after-before > kind.more {
			holds = "no"
			errs = append(errs, fmt.Errorf("%s grew from %d to %d, by more than %d", kind.name, before, after, kind.more))
		}
		t.add("  "+kind.name, fmt.Sprint(before), fmt.Sprint(after), fmt.Sprint(kind.more), holds)
	}
	return errors.Join(append(errs, t.write(out))...)
}

// middle is the median of one of the numbers.
func middle(samples []held, of func(held) int64) int64 {
	values := make([]int64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
