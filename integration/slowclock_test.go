//go:build unix

package integration_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestSlowClock lets two processes with leases share windows of a second, while what one of them knows of the server's clock
// rests on a reading that was 200 ms late.
func TestSlowClock(t *testing.T) {
	t.Parallel()
	const late = 200 * time.Millisecond
	l := limit.Fixed(100, time.Second).Aligned()
	s := startRedis(t)
	perSecond := make(map[int64]int64)
	var leased int
	full := func() int {
		n := 0
		for _, admitted := range perSecond {
			if admitted >= l.Max*9/10 {
				n++
			}
		}
		return n
	}
	for round := 0; leased < 200 || full() < 3; round++ {
		if round == 30 { // a busy machine needs more rounds until it fills a window
			t.Fatalf("%d decided by leases, %d full windows: the test shows nothing", leased, full())
		}
		var read atomic.Bool
		proxy := testserver.NewProxy(t, s.addr)
		proxy.SetFault(func(args []string) testserver.Action {
			if args[0] == "TIME" && !read.Swap(true) {
				return testserver.Delay(late)
			}
			return testserver.Pass
		})
		into := func() time.Duration { return time.Duration(time.Now().Nanosecond()) }
		await(t, "the boundary comes before the clock is read again", func() bool {
			return into() > 300*time.Millisecond && into() < 400*time.Millisecond
		})
		boundary := time.Now().Truncate(time.Second).Add(time.Second)
		open := func(addr string) *contender {
			return ours(t, 1, setup{
				groups: []router.Group{{Name: "a", Primary: addr}}, policy: one(l), failure: throttler.FailClosed,
				router: router.Config{Heartbeat: -1, Backend: patient}, lease: &lease.Config{Batch: 40, Steady: true, Processes: 1},
			})
		}
		// The slow one leases within the first window, and spends on; the other one begins to ask with the second.
		slow, quick := open(proxy.Addr), open(s.addr)
		var mu sync.Mutex
		note := func(asked time.Time, d throttler.Decision, err error) {
			if err != nil || !d.Allowed {
				return
			}
			second := d.ResetAt.Unix() - 1 // the server counts for no earlier window once another one has begun
			mu.Lock()
			defer mu.Unlock()
			if d.Source == throttler.Leased { // but leases are not asked of it
				leased++
				second = max(second, asked.Unix())
			}
			perSecond[second]++
		}
		var both sync.WaitGroup
		both.Go(func() {
			for asked := time.Now(); asked.Before(boundary.Add(500 * time.Millisecond)); asked = time.Now() {
				d, err := slow.decide(0, "user:1")
				note(asked, d, err)
				time.Sleep(12 * time.Millisecond)
			}
		})
		both.Go(func() {
			time.Sleep(time.Until(boundary.Add(time.Millisecond)))
			for asked := time.Now(); asked.Before(boundary.Add(500 * time.Millisecond)); asked = time.Now() {
				d, err := quick.decide(0, "user:1")
				note(asked, d, err)
			}
		})
		both.Wait()
	}
	var over, most int64
	for _, n := range perSecond {
		over += max(0, n-l.Max)
		most = max(most, n)
	}
	shown := figures{over: over, note: fmt.Sprintf("%d of %d at most in a second, %d decided by leases", most, l.Max, leased)}
	report(t, "slow-clock", result{sluice: shown})
}
