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

// runMemory lets the peers take turns at one limit, all goroutines or one, allowed and denied.
func runMemory(ctx context.Context, c *config) ([]MemoryRow, error) {
	makers := only(memoryPeers, c.peers)
	keys := makeKeys(c.keys)
	order := makeOrder(len(keys), false, c.seed)
	random := rand.New(rand.NewPCG(c.seed, 2))
	var rows []MemoryRow
	for _, denied := range []bool{false, true} {
		verdict := "allowed"
		if denied {
			verdict = "denied"
		}
		for _, parallel := range []bool{true, false} {
			workers, name := 1, "one goroutine, one limit, "+verdict
			if parallel {
				workers = runtime.GOMAXPROCS(0)
				name = fmt.Sprintf("parallel (GOMAXPROCS=%d), one limit, %s", workers, verdict)
			}
			fmt.Fprintf(c.verbose, "in this process: %s\n", name)
			row := MemoryRow{Name: name, Parallel: parallel, Denied: denied}
			allocs := make([][]float64, len(makers))
			for _, m := range makers {
				row.Peers = append(row.Peers, MemoryResult{Peer: m.name})
			}
			for range c.rounds {
				for _, i := range random.Perm(len(makers)) {
					quotas := Row{Limits: 1, Denied: denied}.Quotas()
					nanos, mallocs, err := memorySlice(ctx, makers[i], quotas, keys, order, workers, c.slice/4)
					if err != nil {
						return nil, fmt.Errorf("in this process: %s: %s: %w", name, makers[i].name, err)
					}
					row.Peers[i].Rounds = append(row.Peers[i].Rounds, nanos)
					allocs[i] = append(allocs[i], mallocs)
				}
			}
			for i := range row.Peers {
				row.Peers[i].Nanos, row.Peers[i].Allocs = median(row.Peers[i].Rounds), median(allocs[i])
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// memorySlice lets a fresh peer meet every key, and then decide for d. It returns the time and the allocations of one
// decision.
func memorySlice(ctx context.Context, m maker, quotas []Quota, keys []string, order []uint32, workers int,
	d time.Duration) (nanos, allocs float64, err error) {
	p, err := m.open(Setup{Quotas: quotas})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	for _, key := range keys {
		if _, err := p.Take(ctx, key); err != nil {
			return 0, 0, err
		}
	}
	const look = 256 // decisions between two looks at whether the time is over
	want := quotas[0].Max > 1
	var over atomic.Bool
	var done sync.WaitGroup
	made, failures := make([]int, workers), make([]error, workers)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	for w := range workers {
		done.Go(func() {
			n, at := 0, w*len(order)/workers
			for ; !over.Load(); n += look {
				for range look {
					allowed, err := p.Take(ctx, keys[order[at]])
					if err == nil && allowed != want {
						err = fmt.Errorf("allowed is %t, want %t", allowed, want)
					}
					if err != nil {
						failures[w] = err
						return
					}
					if at++; at == len(order) {
						at = 0
					}
				}
			}
			made[w] = n
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
