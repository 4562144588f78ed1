//go:build unix

package integration_test

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestManyKeys asks for one hot key and for tens of thousands of keys that come once. It runs alone, for it looks at the
// memory and the goroutines of the whole process.
func TestManyKeys(t *testing.T) {
	const callers, random, views = 32, 50_000, 4096
	l := limit.PerDay(1000)
	s := startRedis(t)
	groups, _ := groupsOf(s.addr)
	play := func(c *contender) (over, connections int64, goroutines int, heap int64) {
		var next, hot atomic.Int64
		if ok, _ := c.call(0, "hot"); ok { // which also connects
			hot.Add(1)
		}
		connectedBefore := connected(t, s)
		heapBefore := heapInUse()
		base := runtime.NumGoroutine()
		var running sync.WaitGroup
		for range callers {
			running.Go(func() {
				for i := next.Add(1); i <= random; i = next.Add(1) {
					_, _ = c.call(0, "user:"+strconv.FormatInt(i, 36))
					if i%10 == 0 {
						if ok, _ := c.call(0, "hot"); ok {
							hot.Add(1)
						}
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { running.Wait(); close(done) }()
		for waiting := true; waiting; {
			select {
			case <-done:
				waiting = false
			case <-time.After(20 * time.Millisecond):
				goroutines = max(goroutines, runtime.NumGoroutine()-base)
				connections = max(connections, connected(t, s)-connectedBefore+1)
			}
		}
		return hot.Load() - l.Max, connections, goroutines, heapInUse() - heapBefore
	}
	c := ours(t, 1, setup{
		groups: groups, policy: one(l), failure: throttler.FailClosed, lease: &lease.Config{MaxKeys: views},
		router: router.Config{Backend: patient},
	}).unhurried()
	over, connections, goroutines, heap := play(c)
	if keys := c.sluiceOf(0).lease.Stats().Keys; keys > views*5/4 {
		t.Errorf("%d keys are remembered, the bound is about %d", keys, views)
	}
	if goroutines > callers+32 || connections > int64(10*runtime.GOMAXPROCS(0)) || heap > 16<<20 {
		t.Errorf("%d goroutines with %d callers, %d connections, %d bytes: not bounded", goroutines, callers, connections, heap)
	}
	shown := of(c, over)
	shown.note = fmt.Sprintf("%d connections, %d goroutines beside %d callers, heap grew by %.1f MB", connections,
		max(0, goroutines-callers-1), callers, float64(max(0, heap))/(1<<20))
	plain := redisRate(t, 1, s.addr, l)
	plainOver, connections, _, heap := play(plain)
	plainShown := of(plain, plainOver)
	plainShown.note = fmt.Sprintf("%d connections, heap grew by %.1f MB", connections, float64(max(0, heap))/(1<<20))
	report(t, "many-keys", result{sluice: shown, redisRate: &plainShown})
}

func connected(t *testing.T, s *server) int64 {
	n, _ := strconv.ParseInt(info(t, s, "clients")["connected_clients"], 10, 64)
	return n
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
