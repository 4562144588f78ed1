//go:build unix

package backend_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/anishathalye/porcupine"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// attempt is the input of an operation on one key: a take or a peek, or a refund, which has no output.
type attempt struct {
	op   string
	key  int
	cost int64
}

// answer is the output of a take or a peek.
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
	const quota, keys, callers, calls = 40, 6, 8, 50
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
		Step: func(st, input, output any) (bool, any) {
			left, in, got := st.(int64), input.(attempt), output.(answer)
			switch {
			case in.op == "refund":
				return true, left + in.cost
			case got.allowed != (in.cost <= left):
				return false, left
			case in.op == "take" && got.allowed:
				left -= in.cost
			}
			return got.remaining == left, left
		},
	}
	for _, l := range []limit.Limit{
		limit.Fixed(quota, time.Hour), limit.Sliding(quota, time.Hour, time.Minute), limit.TokenBucket(1, time.Hour, quota),
	} {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			t.Parallel()
			b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Prefix: backendtesting.NewPrefix(), Now: func() time.Time { return now }})
			p := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
			began := time.Now()
			var mu sync.Mutex // guards history
			var history []porcupine.Operation
			var all sync.WaitGroup
			for caller := range callers {
				all.Go(func() {
					var open []state.Receipt // of the takes of this caller
					var of []int             // their keys
					for range calls {
						in := attempt{"take", rand.IntN(keys), 1 + rand.Int64N(3)}
						switch n := rand.IntN(6); {
						case n == 0:
							in.op = "peek"
						case n < 3 && len(open) > 0 && l.Algorithm != limit.Bucket: // a bucket may give back less
							in = attempt{"refund", of[0], open[0].Cost}
						}
						req := backend.Request{Key: fmt.Sprint("k", in.key), Policy: p, Cost: in.cost}
						var r backend.Result
						var err error
						call := time.Since(began).Nanoseconds()
						switch in.op {
						case "take":
							r, err = b.Take(context.Background(), req)
						case "peek":
							r, err = b.Peek(context.Background(), req)
						case "refund":
							err = b.Refund(context.Background(), req, open[0], in.cost)
							open, of = open[1:], of[1:]
						}
						end := time.Since(began).Nanoseconds()
						if err != nil {
							t.Error(err)
							return
						}
						if in.op == "take" && r.Allowed {
							open, of = append(open, r.Receipt()), append(of, in.key)
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
				t.Errorf("%d calls are %s", len(history), result)
			}
		})
	}
}
