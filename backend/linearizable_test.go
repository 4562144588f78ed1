//go:build unix

package backend_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// attempt is the input of an operation: a take of one key.
type attempt struct {
	key  int
	cost int64
}

// answer is its output.
type answer struct {
	allowed   bool
	remaining int64
}

// TestLinearizable: what concurrent callers are told is what some order of their calls one after the other would
// have told them, each between its start and its end. Time stands still, so that a limit is a counter.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const quota, keys, callers, calls = 40, 6, 8, 30
	model := porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := make([][]porcupine.Operation, keys)
			for _, op := range history {
				key := op.Input.(attempt).key
				byKey[key] = append(byKey[key], op)
			}
			return byKey
		},
		Init: func() any { return int64(quota) },
		Step: func(state, input, output any) (bool, any) {
			left, cost, got := state.(int64), input.(attempt).cost, output.(answer)
			if got.allowed != (cost <= left) {
				return false, left
			}
			if got.allowed {
				left -= cost
			}
			return got.remaining == left, left
		},
	}
	for _, l := range []limit.Limit{
		limit.Fixed(quota, time.Hour), limit.Sliding(quota, time.Hour, time.Minute), limit.TokenBucket(1, time.Hour, quota),
	} {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			t.Parallel()
			b := openRedis(t, server.Addr, backend.RedisConfig{Prefix: newPrefix(), Now: func() time.Time { return now }})
			p := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
			began := time.Now()
			var mu sync.Mutex // guards history
			var history []porcupine.Operation
			var all sync.WaitGroup
			for caller := range callers {
				all.Go(func() {
					for range calls {
						in := attempt{rand.IntN(keys), 1 + rand.Int64N(3)}
						call := time.Since(began).Nanoseconds()
						r, err := b.Take(context.Background(), backend.Request{Key: fmt.Sprint("k", in.key), Policy: p, Cost: in.cost})
						end := time.Since(began).Nanoseconds()
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						history = append(history, porcupine.Operation{
							ClientId: caller, Input: in, Call: call, Output: answer{r.Allowed, r.Binding().Remaining}, Return: end,
						})
						mu.Unlock()
					}
				})
			}
			all.Wait()
			if result := porcupine.CheckOperationsTimeout(model, history, time.Minute); result != porcupine.Ok {
				t.Errorf("%d takes are %s", len(history), result)
			}
		})
	}
}
