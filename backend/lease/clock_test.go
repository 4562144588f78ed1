package lease_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// TestLeaseEndsInTimeAfterASlowReading: the first reading of a server's clock is 200 ms late, and so is all that the process
// believes of windows for a while. What it has leased of a window is spent before others can begin the next one.
func TestLeaseEndsInTimeAfterASlowReading(t *testing.T) {
	t.Parallel()
	const late, perWindow = 200 * time.Millisecond, 1000
	server := testserver.Redis(t)
	for _, l := range []limit.Limit{
		limit.Fixed(perWindow, time.Second).Aligned(), limit.Sliding(2*perWindow, 2*time.Second, time.Second),
	} {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			leased, spentLate := 0, 0
			for round := 0; round < 3 || leased < 100 && round < 30; round++ { // more of them on a busy machine
				var read atomic.Bool
				proxy := testserver.NewProxy(t, server.Addr)
				proxy.SetFault(func(args []string) testserver.Action {
					if args[0] == "TIME" && !read.Swap(true) {
						return testserver.Delay(late)
					}
					return testserver.Pass
				})
				for time.Duration(time.Now().Nanosecond()) < 300*time.Millisecond || time.Duration(time.Now().Nanosecond()) > 400*time.Millisecond {
					time.Sleep(5 * time.Millisecond) // the boundary comes before the clock is read again
				}
				inner := backendtesting.OpenRedis(t, proxy.Addr, redisbackend.Config{Prefix: backendtesting.NewPrefix()})
				ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 10, Steady: true, Processes: 1})
				req := backend.Request{Key: "key", Policy: &limit.Policy{Limits: []limit.Limit{l}}, Cost: 1}
				for end := time.Now().Truncate(time.Second).Add(1300 * time.Millisecond); time.Now().Before(end); {
					asked := time.Now().UnixMicro() // by the clock of the server, which runs on this host
					r, err := ls.Take(t.Context(), req)
					if err != nil {
						t.Fatal(err)
					}
					if r.Source == backend.Leased {
						leased++
						receipt := r.Receipt()
						before, _, _ := receipt.Charge(0)
						if l.Algorithm == limit.SlidingWindow {
							before -= (l.Window - l.Precision).Microseconds()
						}
						if asked >= before {
							spentLate++
						}
					}
					time.Sleep(2 * time.Millisecond)
				}
			}
			if spentLate > 0 {
				t.Errorf("%d of %d leased takes were spent after the end of what they were charged to", spentLate, leased)
			}
			if leased < 100 {
				t.Errorf("only %d takes were leased: the test shows nothing", leased)
			}
		})
	}
}
