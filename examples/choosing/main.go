// Command choosing plays the same requests exactly, with leases, and on credit, against a redis-server that it starts, and prints
// what each way costs and how exact it is. docs/choosing.md shows a run.
//
//	go run ./examples/choosing -svg docs/choosing.svg
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/internal/redisserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

const processes = 16

// window is what spans are multiples of.
var window = 5 * time.Second

// workload is a kind of traffic. Keys are drawn by Zipf's law, or evenly if skew is 0.
type workload struct {
	name   string
	keys   int
	skew   float64
	limits []limit.Limit
}

func workloads() []workload {
	return []workload{
		{"tenants: 20 keys, 6,000 in 5 s", 20, 1.1, []limit.Limit{limit.Fixed(6000, window).Aligned()}},
		{"tenants by the second: 1,200/s too", 20, 1.1, []limit.Limit{limit.PerSecond(1200).Aligned(), limit.Fixed(6000, window).Aligned()}},
		{"quotas: 200 keys, 100,000 a day", 200, 0, []limit.Limit{limit.PerDay(100_000).Aligned()}},
		{"users: 5,000 keys, 50 in 5 s", 5000, 0, []limit.Limit{limit.Fixed(50, window).Aligned()}},
	}
}

// way is a choice.
type way struct {
	name  string
	lease *lease.Config // nil: every decision is a call
}

var ways = []way{
	{"exact", nil},
	{"leased", &lease.Config{Processes: processes}},
	{"on credit", &lease.Config{Processes: processes, Slack: 0.05}},
}

// row is what a way made of a workload.
type row struct {
	workload, way string
	requests      int
	calls         float64 // of scripts, for 100 requests
	cpu           float64 // of Redis, microseconds a request
	p50, p99      time.Duration
	over, most    int64 // admitted above Max in the worst window, and the bound of that
	early         int64 // denied although there was room at the window's end
}

func main() {
	span := flag.Duration("span", 2*window, "how long each way is played on each workload; a multiple of 5s")
	rate := flag.Float64("rate", 300, "requests a second of each process")
	svg := flag.String("svg", "", "file to draw the processor time of Redis to")
	flag.Parse()
	rows, err := play(context.Background(), workloads(), *span, *rate, os.Stderr)
	if err == nil {
		_, err = fmt.Print(table(rows))
	}
	if err == nil && *svg != "" {
		err = os.WriteFile(*svg, draw(rows), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "choosing:", err)
		os.Exit(1)
	}
}

// play plays everything.
func play(ctx context.Context, loads []workload, span time.Duration, rate float64, progress io.Writer) (rows []row, err error) {
	redis, err := redisserver.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, redis.Stop()) }()
	server := &server{redis}
	for _, w := range loads {
		for _, by := range ways {
			r, err := server.measure(ctx, &w, by, span, rate)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(progress, "%s, %s: %d requests\n", r.workload, r.way, r.requests)
			rows = append(rows, *r)
		}
	}
	return rows, nil
}

// measure plays one way on one workload, from the begin of a window, and counts what happens after the first window.
func (s *server) measure(ctx context.Context, w *workload, by way, span time.Duration, rate float64) (*row, error) {
	if err := s.Admin.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	all := make([]*process, processes)
	for i := range all {
		p, err := open(s.Addr, w, by, uint64(i))
		if err != nil {
			return nil, err
		}
		defer p.close()
		all[i] = p
	}
	begin := time.Now().Truncate(window).Add(window)
	time.Sleep(time.Until(begin))
	runAll := func(end time.Time) {
		var running sync.WaitGroup
		for _, p := range all {
			p.took = nil
			running.Go(func() { p.run(ctx, end, rate) })
		}
		running.Wait()
	}
	runAll(begin.Add(window)) // is not counted: the first take of each key is a call
	time.Sleep(time.Until(begin.Add(window)))
	before, err := s.spent(ctx)
	if err != nil {
		return nil, err
	}
	runAll(begin.Add(window + span))
	after, err := s.spent(ctx)
	if err != nil {
		return nil, err
	}
	r := &row{workload: w.name, way: by.name}
	books := make(map[slot]tally)
	var took []time.Duration
	for _, p := range all {
		if p.failed != nil {
			return nil, p.failed
		}
		took = append(took, p.took...)
		for at, t := range p.tallies {
			if at.begin < begin.Add(window).Unix() {
				continue
			}
			sum := books[at]
			books[at] = tally{sum.admitted + t.admitted, sum.denied + t.denied}
		}
	}
	slices.Sort(took)
	r.requests = len(took)
	r.p50, r.p99 = took[len(took)/2], took[len(took)*99/100]
	r.calls = 100 * (after.calls - before.calls) / float64(len(took))
	r.cpu = (after.micros - before.micros) / float64(len(took))
	r.judge(w, by, books)
	return r, nil
}

// judge looks for windows of the longest limit that hold more than Max, and for denials in windows that stayed below.
func (r *row) judge(w *workload, by way, books map[slot]tally) {
	l := w.limits[len(w.limits)-1]
	if by.lease != nil && by.lease.Slack > 0 {
		bound := lease.BoundError{Slack: by.lease.Slack, Processes: processes}
		r.most = bound.Above(l)
	}
	for _, t := range books {
		r.over = max(r.over, t.admitted-l.Max)
		if len(w.limits) == 1 {
			r.early += min(t.denied, max(0, l.Max-t.admitted))
		}
	}
}

// slot is a window of a key.
type slot struct {
	key   string
	begin int64
}

type tally struct{ admitted, denied int64 }

// process is one of an application, with a caller.
type process struct {
	throttler *throttler.Throttler
	backend   backend.Backend
	keys      []string
	draw      func() int
	random    *rand.Rand

	took    []time.Duration
	tallies map[slot]tally
	failed  error
}

func open(addr string, w *workload, by way, seed uint64) (*process, error) {
	var b backend.Backend
	b, err := redisbackend.Open(&redis.Options{Addr: addr}, redisbackend.Config{Timeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	if by.lease != nil {
		if b, err = lease.New(b, *by.lease); err != nil {
			return nil, err
		}
	}
	t, err := throttler.New(throttler.Config{
		Backend: b, Policy: limit.Policy{Name: "choosing", Limits: w.limits}, Failure: throttler.FailError,
	})
	if err != nil {
		return nil, err
	}
	p := &process{throttler: t, backend: b, random: rand.New(rand.NewPCG(seed, 1)), tallies: make(map[slot]tally)}
	for i := range w.keys {
		p.keys = append(p.keys, fmt.Sprintf("key:%d", i))
	}
	p.draw = func() int { return p.random.IntN(w.keys) }
	if w.skew > 0 {
		zipf := rand.NewZipf(p.random, w.skew, 1, uint64(w.keys-1))
		p.draw = func() int { return int(zipf.Uint64()) }
	}
	return p, nil
}

// run asks at random moments until end.
func (p *process) run(ctx context.Context, end time.Time, rate float64) {
	for next := time.Now(); ; {
		next = next.Add(time.Duration(p.random.ExpFloat64() / rate * float64(time.Second)))
		if !next.Before(end) {
			return
		}
		time.Sleep(time.Until(next))
		key := p.keys[p.draw()]
		begin := time.Now()
		d, err := p.throttler.Allow(ctx, key)
		p.took = append(p.took, time.Since(begin))
		if err != nil {
			p.failed = err
			return
		}
		at := slot{key, d.At.Truncate(window).Unix()}
		t := p.tallies[at]
		if d.Allowed {
			t.admitted++
		} else {
			t.denied++
		}
		p.tallies[at] = t
	}
}

func (p *process) close() {
	_ = p.throttler.Close()
	_ = p.backend.Close()
}
