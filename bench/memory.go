package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// MemoryRow is what peers that count in this process did with one kind of work.
type MemoryRow struct {
	Name     string         `json:"name"`
	Hot      bool           `json:"hot"`
	Parallel bool           `json:"parallel"`
	Denied   bool           `json:"denied"`
	Peers    []MemoryResult `json:"peers"`
}

// MemoryResult is the medians of one peer's rounds.
type MemoryResult struct {
	Peer   string    `json:"peer"`
	Nanos  float64   `json:"ns_per_decision"` // of the clock: goroutines that run side by side share it
	Allocs float64   `json:"allocs"`
	Rounds []float64 `json:"ns_of_rounds"`
}

func (r *MemoryRow) find(peer string) *MemoryResult {
	for i := range r.Peers {
		if r.Peers[i].Peer == peer {
			return &r.Peers[i]
		}
	}
	return nil
}

// runMemory lets the peers take turns at one limit: many keys or few, all goroutines or one, allowed and denied.
func runMemory(ctx context.Context, c *config, s *server) ([]MemoryRow, error) {
	random := rand.New(rand.NewPCG(c.seed, 2))
	var rows []MemoryRow
	for _, hot := range []bool{false, true} {
		makers, keys := only(memoryPeers, c.peers), makeKeys(c.keys)
		if hot {
			makers, keys = only(hotMemoryPeers, c.peers), makeKeys(hotKeys)
		}
		order := makeOrder(len(keys), false, c.seed)
		for _, denied := range []bool{false, true} {
			for _, parallel := range []bool{true, false} {
				row := MemoryRow{Name: memoryName(hot, parallel, denied), Hot: hot, Parallel: parallel, Denied: denied}
				fmt.Fprintf(c.verbose, "in this process: %s\n", row.Name)
				w := memoryWork{server: s, setup: memorySetup(s, c, hot, denied), keys: keys, order: order, workers: 1}
				if parallel {
					w.workers = runtime.GOMAXPROCS(0)
				}
				if err := row.run(ctx, c, makers, &w, random); err != nil {
					return nil, err
				}
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}

func memoryName(hot, parallel, denied bool) string {
	name, keys, verdict := "one goroutine", "", "allowed"
	if parallel {
		name = fmt.Sprintf("parallel (GOMAXPROCS=%d)", runtime.GOMAXPROCS(0))
	}
	if hot {
		keys = fmt.Sprintf("%d hot keys, ", hotKeys)
	}
	if denied {
		verdict = "denied"
	}
	return fmt.Sprintf("%s, one limit, %s%s", name, keys, verdict)
}

// ample is so much that its thousandth, the batch of a lease, is not used up in a turn: what is measured are decisions
// made in this process. Those of the first table include the fetches.
const ample = 1_000_000_000

func memorySetup(s *server, c *config, hot, denied bool) Setup {
	setup := Setup{Addr: s.Addr, Quotas: Row{Limits: 1, Denied: denied}.Quotas(), Conns: c.conns}
	if hot && !denied {
		setup.Quotas[0].Max = ample
	}
	return setup
}

func (r *MemoryRow) run(ctx context.Context, c *config, makers []maker, w *memoryWork, random *rand.Rand) error {
	allocs := make([][]float64, len(makers))
	for _, m := range makers {
		r.Peers = append(r.Peers, MemoryResult{Peer: m.name})
	}
	for range c.rounds {
		for _, i := range random.Perm(len(makers)) {
			nanos, mallocs, err := w.slice(ctx, makers[i], c.slice/4)
			if err != nil {
				return fmt.Errorf("in this process: %s: %s: %w", r.Name, makers[i].name, err)
			}
			r.Peers[i].Rounds = append(r.Peers[i].Rounds, nanos)
			allocs[i] = append(allocs[i], mallocs)
		}
	}
	for i := range r.Peers {
		p := &r.Peers[i]
		p.Nanos, p.Allocs = median(p.Rounds), median(allocs[i])
	}
	return nil
}

// memoryWork is what all peers have in common in one row.
type memoryWork struct {
	server  *server
	setup   Setup
	keys    []string
	order   []uint32
	workers int
}

// open empties the server, and lets a fresh peer meet every key; twice, for that is when a lease begins.
func (w *memoryWork) open(ctx context.Context, m maker) (Peer, error) {
	if err := w.server.flush(ctx); err != nil {
		return nil, err
	}
	p, err := m.open(w.setup)
	if err != nil {
		return nil, err
	}
	for range 2 {
		for _, key := range w.keys {
			if _, err := p.Take(ctx, key); err != nil {
				return nil, errors.Join(err, p.Close())
			}
		}
	}
	return p, nil
}

// slice lets a peer decide for d. It returns the time and the allocations of one decision.
func (w *memoryWork) slice(ctx context.Context, m maker, d time.Duration) (nanos, allocs float64, err error) {
	p, err := w.open(ctx, m)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	const look = 256 // decisions between two looks at whether the time is over
	want := w.setup.Quotas[0].Max > 1
	var over atomic.Bool
	var done sync.WaitGroup
	made, failures := make([]int, w.workers), make([]error, w.workers)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	for i := range w.workers {
		done.Go(func() {
			n, at := 0, i*len(w.order)/w.workers
			for n == 0 || !over.Load() { // once at least, however late this goroutine gets its turn
				for range look {
					allowed, err := p.Take(ctx, w.keys[w.order[at]])
					if err == nil && allowed != want {
						err = fmt.Errorf("allowed is %t, want %t", allowed, want)
					}
					if err != nil {
						failures[i] = err
						return
					}
					if at++; at == len(w.order) {
						at = 0
					}
				}
				n += look
			}
			made[i] = n
		})
	}
	time.Sleep(d)
	over.Store(true)
	done.Wait()
	elapsed := time.Since(start)
	runtime.ReadMemStats(&after)
	sum := 0
	for _, n := range made {
		sum += n
	}
	if err := errors.Join(failures...); err != nil {
		return 0, 0, err
	}
	// What the loop itself allocates is for all decisions together, and less than one for any of them.
	perDecision := float64(after.Mallocs-before.Mallocs) / float64(sum)
	return float64(elapsed.Nanoseconds()) / float64(sum), perDecision, nil
}
