package lease_test

import (
	"fmt"
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
// believes of windows for a while; on credit all readings are, as the connections that flushes open would correct the first.
// What it has leased of a window, or may admit on credit, is spent before others can begin the next one.
func TestLeaseEndsInTimeAfterASlowReading(t *testing.T) {
	t.Parallel()
	const late, perWindow = 200 * time.Millisecond, 1000
	server := testserver.Redis(t)
	fixed, sliding := limit.Fixed(perWindow, time.Second).Aligned(), limit.Sliding(2*perWindow, 2*time.Second, time.Second)
	leases, credit := lease.Config{Batch: 10, Steady: true, Processes: 1}, lease.Config{Batch: -1, Slack: 0.5, Processes: 1}
	for _, test := range []struct {
		limit  limit.Limit
		cfg    lease.Config
		source backend.Source
		enough int
	}{
		{fixed, leases, backend.Leased, 100}, {sliding, leases, backend.Leased, 100},
		{fixed, credit, backend.OnCredit, 30}, {sliding, credit, backend.OnCredit, 30},
	} {
		t.Run(fmt.Sprint(test.limit, "/", test.source), func(t *testing.T) {
			t.Parallel()
			l, local, spentLate := test.limit, 0, 0
			for round := 0; round < 3 || local < test.enough && round < 30; round++ { // more of them on a busy machine
				var read atomic.Bool
				proxy := testserver.NewProxy(t, server.Addr)
				proxy.SetFault(func(args []string) testserver.Action {
					if args[0] == "TIME" && (!read.Swap(true) || test.source == backend.OnCredit) {
						return testserver.Delay(late)
					}
					return testserver.Pass
				})
				for time.Duration(time.Now().Nanosecond()) < 300*time.Millisecond || time.Duration(time.Now().Nanosecond()) > 400*time.Millisecond {
					time.Sleep(5 * time.Millisecond) // the boundary comes before the clock is read again
				}
				inner := backendtesting.OpenRedis(t, proxy.Addr, redisbackend.Config{Prefix: backendtesting.NewPrefix()})
				ls := backendtesting.NewLease(t, inner, test.cfg)
				req := backend.Request{Key: "key", Policy: &limit.Policy{Limits: []limit.Limit{l}}, Cost: 1}
				for end := time.Now().Truncate(time.Second).Add(1300 * time.Millisecond); time.Now().Before(end); {
					asked := time.Now().UnixMicro() // by the clock of the server, which runs on this host
					r, err := ls.Take(t.Context(), req)
					if err != nil {
						t.Fatal(err)
					}
					if r.Source == test.source {
						local++
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
				t.Errorf("%d of %d takes were admitted after the end of what they are charged to", spentLate, local)
			}
			if local < test.enough {
				t.Errorf("only %d takes were admitted without a call: the test shows nothing", local)
			}
		})
	}
}
