package router_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
)

// TestOneResetPerWindow: over 10,000 takes across many second boundaries, every path tells one reset for a window:
// takes that are admitted and denied on the primary, peeks on the replica, and the state that a take leaves behind. A
// reset that wobbles by a second is what GitHub's users complained of.
func TestOneResetPerWindow(t *testing.T) {
	t.Parallel()
	const takes = 10_000
	c := startCluster(t, 1, 1)
	var now atomic.Int64
	now.Store(time.Now().UnixMicro())
	r := dial(t, c.topology, router.Config{Backend: redisbackend.Config{
		Timeout: 5 * time.Second, Now: func() time.Time { return time.UnixMicro(now.Load()) },
	}})
	await(t, "the replica is read", func() bool { return status(r, c.replicas["a"][0]).Readable })

	for _, l := range []limit.Limit{limit.PerSecond(20), limit.PerSecond(20).Aligned(), limit.PerSecond(20).Staggered()} {
		t.Run(l.String(), func(t *testing.T) {
			policy := limit.Policy{Name: "reset", Limits: []limit.Limit{l}}
			req := backend.Request{Key: "user:" + l.Alignment.String(), Policy: &policy, Cost: 1}
			var reset time.Time // of the window that now is in
			windows, denied, peeks := 0, 0, 0
			tell := func(path string, result backend.Result, err error) {
				t.Helper()
				at, got := time.UnixMicro(now.Load()), result.Binding().ResetAt
				switch {
				case err != nil:
					t.Fatalf("%s: %v", path, err)
				case reset.After(at) && !got.Equal(reset):
					t.Fatalf("%s: reset %v in a window that ends at %v", path, got, reset)
				case !got.After(at) || got.After(at.Add(time.Second)):
					t.Fatalf("%s at %v: reset %v", path, at, got)
				case !reset.After(at):
					reset = got
					windows++
				}
			}
			before := time.Now()
			for i := range takes {
				elapsed := time.Since(before) // by the server's clock, which ends the lives of its keys
				before = before.Add(elapsed)
				now.Add(max(rand.Int64N(8000), elapsed.Microseconds()))
				result, err := r.Take(t.Context(), req)
				tell("take", result, err)
				if !result.Allowed {
					denied++
				}
				if i%100 == 0 {
					c.replicas["a"][0].AwaitSync(c.primaries["a"])
					peeked, err := r.Peek(t.Context(), req)
					tell("peek", peeked, err)
					if peeked.Source == backend.Replica {
						peeks++
					}
					again := result.State.Peek(&policy, state.At{Micros: now.Load()}, 1)
					tell("state", backend.Result{Verdict: again}, nil)
				}
			}
			if windows < 30 || denied < 1000 || peeks < 90 {
				t.Errorf("%d windows, %d denials, %d peeks on the replica: the test shows too little", windows, denied, peeks)
			}
		})
	}
}
