//go:build unix

package throttler_test

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// A server's denial tells when 1 fits: an exhausted key costs one call.
func TestAllowUpToOnRedis(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	const period = 24 * time.Hour
	for _, l := range []limit.Limit{limit.PerDay(10), limit.Sliding(10, period, period/24), limit.TokenBucket(1, period, 10)} {
		th := throttlertesting.New(t, throttler.Config{
			Backend: openRedis(t, server.Addr, redisbackend.Config{}), Policy: throttlertesting.One(l),
		})
		if _, _, err := th.AllowUpTo(t.Context(), "first "+l.String(), 2); err != nil { // loads the scripts
			t.Fatal(err)
		}
		for _, want := range []struct{ cost, taken, calls int64 }{{7, 7, 1}, {7, 3, 2}, {7, 0, 1}} {
			server.ResetStats(t)
			taken, d, err := th.AllowUpTo(t.Context(), l.String(), want.cost)
			stats, calls := server.Stats(t), int64(0)
			for _, command := range []string{"eval", "evalsha"} {
				calls += stats[command]
			}
			if err != nil || taken != want.taken || calls != want.calls || d.RetryAfter > period+time.Second {
				t.Errorf("%v: %d in %d calls (%v), %+v, %v, want %+v", l, taken, calls, stats, d, err, want)
			}
		}
	}
}
