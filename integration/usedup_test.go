//go:build unix

package integration_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestUsedUpAddress lets a caller whose address is exhausted ask for another caller's user, 32 times at once in each of two
// processes. That caller comes from other addresses.
func TestUsedUpAddress(t *testing.T) {
	t.Parallel()
	const processes, atOnce, requests = 2, 32, 15
	l := limit.PerHour(20)
	s := startRedis(t)
	groups, _ := groupsOf(s.addr)
	play := func(n int, userFirst, ls, attacked bool) (denied int, longest, p50 time.Duration) {
		made := setup{groups: groups, policy: one(l), failure: throttler.FailError, router: router.Config{Backend: patient}}
		if ls {
			made.lease = &lease.Config{}
		}
		c := ours(t, processes, made)
		user, usedUp := fmt.Sprintf("user:%d", n), fmt.Sprintf("used up:%d", n)
		keys := func(address string) []string {
			both := []string{user, address}
			if !userFirst {
				slices.Reverse(both)
			}
			return both
		}
		if d, err := c.sluiceOf(0).AllowN(t.Context(), usedUp, l.Max); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		var attackers sync.WaitGroup
		var stop atomic.Bool
		for i := range processes * atOnce {
			attackers.Go(func() {
				for attacked && !stop.Load() {
					runtime.Gosched() // a local view denies without a pause
					if d, err := c.sluiceOf(i%processes).AllowAll(t.Context(), keys(usedUp), 1); err != nil || d.Allowed {
						t.Errorf("a used-up address: %+v, %v", d, err)
						return
					}
				}
			})
		}
		var took []time.Duration
		for i := range requests {
			begin := time.Now()
			d, err := c.sluiceOf(i%processes).AllowAll(t.Context(), keys(fmt.Sprintf("address:%d:%d", n, i)), 1)
			if err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(begin))
			if !d.Allowed {
				denied++
				longest = max(longest, d.RetryAfter)
			}
		}
		stop.Store(true)
		attackers.Wait()
		slices.Sort(took)
		return denied, longest, took[requests/2]
	}
	var n, all int
	var with, without, longest time.Duration
	for _, userFirst := range []bool{true, false} {
		for _, ls := range []bool{false, true} {
			for _, attacked := range []bool{false, true} {
				n++
				denied, wait, p50 := play(n, userFirst, ls, attacked)
				if all += denied; denied > 0 {
					t.Errorf("user first %t, lease %t: %d of %d denied, to retry after %s", userFirst, ls, denied, requests, wait)
				}
				longest = max(longest, wait)
				if attacked {
					with = max(with, p50)
				} else {
					without = max(without, p50)
				}
			}
		}
	}
	shown := figures{over: unmeasured}
	shown.note = fmt.Sprintf("%d of %d requests denied, longest RetryAfter %s; p50 %s, without the address %s", all, n*requests, longest,
		with.Round(10*time.Microsecond), without.Round(10*time.Microsecond))
	report(t, "used-up-address", result{sluice: shown})
}
