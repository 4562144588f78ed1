//go:build unix

package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestRollover: processes with floors call while windows end, each by a clock that lags a little behind the server's. What
// one of them knows of the window before must not count in the next.
func TestRollover(t *testing.T) {
	t.Parallel()
	for _, l := range []limit.Limit{limit.Fixed(100_000, 200*time.Millisecond), limit.Fixed(100_000, 200*time.Millisecond).Aligned()} {
		s := startRedis(t)
		groups, _ := groupsOf(s.addr)
		c := ours(t, 5, setup{groups: groups, policy: one(l), failure: throttler.FailClosed, floors: true, router: router.Config{Backend: patient}})
		var mu sync.Mutex
		admitted, used := map[int64]int64{}, map[int64]int64{}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for p := range 20 {
			all.Go(func() {
				for ctx.Err() == nil {
					d, err := c.decide(p%5, "user:1")
					if err != nil {
						continue
					}
					mu.Lock()
					w := d.ResetAt.UnixMicro()
					if d.Allowed {
						admitted[w]++
					}
					used[w] = max(used[w], l.Max-d.Remaining)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		unknown := c.unknown.Load()
		for reset := range used {
			if used[reset] > admitted[reset]+unknown {
				t.Errorf("%s: a window counts %d, and %d were admitted", l, used[reset], admitted[reset])
			}
		}
	}
}
