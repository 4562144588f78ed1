//go:build unix

package integration_test

import (
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

// TestSoakKeys is TestManyKeys with ten million keys, through leases on a server and through memory alone; with a hundredth
// of them without -soak.
func TestSoakKeys(t *testing.T) {
	const callers, views = 64, 4096
	keys := int64(100_000)
	if *soak > 0 {
		keys = 10_000_000
	}
	l := limit.PerSecond(1000) // the server forgets them as they come
	s := startRedis(t)
	groups, _ := groupsOf(s.addr)
	leased := ours(t, 1, setup{groups: groups, policy: one(l), failure: throttler.FailClosed, lease: &lease.Config{MaxKeys: views},
		router: router.Config{Backend: patient}}).unhurried()
	alone, err := throttler.New(throttler.Config{Policy: one(l)})
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	for _, c := range []*contender{leased, {name: "Sluice in memory", processes: []limiter{&sluice{Throttler: alone}}}} {
		t.Run(c.name, func(t *testing.T) {
			var next atomic.Int64
			var mu sync.Mutex
			hot := make(map[time.Time]int64) // admitted, by the end of its window
			before, base := heapInUse(), runtime.NumGoroutine()
			begin := time.Now()
			var running sync.WaitGroup
			for range callers {
				running.Go(func() {
					for i := next.Add(1); i <= keys; i = next.Add(1) {
						_, _ = c.call(0, "user:"+strconv.FormatInt(i, 36))
						if i%10 != 0 {
							continue
						}
						if d, err := c.decide(0, "hot"); err == nil && d.Allowed {
							mu.Lock()
							hot[d.ResetAt]++
							mu.Unlock()
						}
					}
				})
			}
			done := make(chan struct{})
			go func() { running.Wait(); close(done) }()
			var goroutines int
			var connections, heap int64
			for printed := time.Now(); ; {
				goroutines = max(goroutines, runtime.NumGoroutine()-base)
				connections = max(connections, connected(t, s))
				running := true
				select {
				case <-done:
					running = false
				case <-time.After(20 * time.Millisecond):
				}
				if running && time.Since(printed) < 10*time.Second {
					continue
				}
				printed, heap = time.Now(), max(heap, heapInUse()-before)
				t.Logf("%d of %d keys after %v: %d goroutines beside %d callers, %d connections, heap grew by %.1f MB",
					min(next.Load(), keys), keys, time.Since(begin).Round(time.Second), max(0, goroutines-callers-1), callers,
					connections, float64(heap)/(1<<20))
				if !running {
					break
				}
			}
			for _, n := range hot {
				if n > l.Max {
					t.Errorf("%d admitted of the hot key in a window", n)
				}
			}
			if lost := c.unknown.Load(); lost > keys/100 {
				t.Errorf("%d of %d calls without a verdict", lost, c.calls.Load())
			}
			if longest := time.Duration(c.longest.Load()); longest > deadline+slack {
				t.Errorf("a call took %v", longest)
			}
			if goroutines > callers+64 || connections > int64(10*runtime.GOMAXPROCS(0))+2 || heap > 512<<20 {
				t.Errorf("%d goroutines with %d callers, %d connections, %d bytes: not bounded", goroutines, callers, connections, heap)
			}
		})
	}
}
