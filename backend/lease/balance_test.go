package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testtier"
	"github.com/sluice-go/sluice/limit"
)

// TestBalance: where no reply is lost a server holds at last what was admitted and not given back, to the unit: whatever is leased,
// on credit, refused at first, refunded, cancelled, evicted or of another tier, and whenever windows end.
func TestBalance(t *testing.T) {
	sources := make(map[backend.Source]int)
	for seed := range uint64(testtier.Size(100, 2000)) {
		synctest.Test(t, func(t *testing.T) { playBalance(t, seed, sources) })
		if t.Failed() {
			return
		}
	}
	if sources[backend.Leased] < 1000 || sources[backend.OnCredit] < 1000 || sources[backend.Primary] < 1000 {
		t.Errorf("decided by %v: too few of a kind", sources)
	}
}

func playBalance(t *testing.T, seed uint64, sources map[backend.Source]int) {
	random := rand.New(rand.NewPCG(seed, 0))
	day, short := limit.PerDay(1_000_000), limit.Fixed(3000, 700*time.Millisecond).Aligned()
	larger := limit.PerDay(1_000_001)
	policies := []*limit.Policy{{Limits: []limit.Limit{day, short}}, {Limits: []limit.Limit{larger, short}}}[:1+random.IntN(2)]
	inner := newCreditor(time.Duration(1+random.IntN(30)) * time.Millisecond)
	if random.IntN(3) == 0 {
		inner.fate = func(n int) fate { return []fate{refused, executed, executed}[n%3] }
	}
	cfg := lease.Config{
		Processes: 2, Slack: []float64{0, 0.3, 0.9}[random.IntN(3)], Batch: []int64{-1, 0, 10, 100}[random.IntN(4)],
		Flush: time.Duration(1+random.IntN(100)) * time.Millisecond, Life: time.Duration(20+random.IntN(1000)) * time.Millisecond,
		MaxKeys: []int{2, 100}[random.IntN(2)],
	}
	ls := backendtesting.NewLease(t, inner, cfg)
	var mu sync.Mutex // guards held and sources
	held := make(map[string]int64)
	var callers sync.WaitGroup
	for range 6 {
		random := rand.New(rand.NewPCG(random.Uint64(), 0))
		callers.Go(func() {
			for range 150 {
				time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond / time.Duration(1+random.IntN(20)))
				req := backend.Request{Key: fmt.Sprint("key", random.IntN(4)), Policy: policies[random.IntN(len(policies))], Cost: 1 + random.Int64N(12)}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+random.IntN(150))*time.Millisecond)
				r, err := ls.Take(ctx, req)
				cancel()
				if err != nil || !r.Allowed {
					continue
				}
				mu.Lock()
				sources[r.Source]++
				held[req.Key] += req.Cost
				mu.Unlock()
				if random.IntN(2) > 0 {
					continue
				}
				time.Sleep(time.Duration(random.IntN(120)) * time.Millisecond)
				amount := 1 + random.Int64N(req.Cost)
				for ls.Refund(context.Background(), req, r.Receipt(), amount) != nil { // its charge was refused
					time.Sleep(time.Millisecond)
				}
				mu.Lock()
				held[req.Key] -= amount
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	if err := ls.Close(); err != nil {
		t.Error(err)
	}
	for key, want := range held {
		r, err := inner.Peek(context.Background(), backend.Request{Key: key, Policy: &limit.Policy{Limits: []limit.Limit{day}}, Cost: 1})
		if used := day.Max - r.Binding().Remaining; err != nil || used != want {
			t.Errorf("seed %d, %+v: %d of %s are used, %d are held; %+v, %v", seed, cfg, used, key, want, ls.Stats(), err)
		}
	}
}
