//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// watched is a primary and a replica, over which three sentinels watch who call it "main".
type watched struct {
	primary   *server
	sentinels []string
	ask       *redis.SentinelClient // one of them
}

func startWatched(t *testing.T) *watched {
	t.Helper()
	primary := testserver.Redis(t)
	testserver.Replica(t, primary)
	w := &watched{primary: ownProcess(primary)}
	for _, s := range testserver.Sentinels(t, "main", primary, 1) {
		w.sentinels = append(w.sentinels, s.Addr)
		w.ask = s.Sentinel()
	}
	return w
}

// moved reports whether the sentinels name another primary than the first.
func (w *watched) moved() bool {
	named, err := w.ask.GetMasterAddrByName(context.Background(), "main").Result()
	return err == nil && len(named) == 2 && net.JoinHostPort(named[0], named[1]) != w.primary.addr
}

// rateSentinel makes a contender of n processes that use redis_rate on a go-redis client which follows sentinels.
func rateSentinel(t testing.TB, n int, sentinels []string, l limit.Limit) *contender {
	c := &contender{name: "redis_rate"}
	for range n {
		client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: sentinels})
		t.Cleanup(func() { _ = client.Close() })
		c.processes = append(c.processes, rate{redis_rate.NewLimiter(client), rateLimit(l)})
	}
	return c
}

// TestSentinelFailover kills the primary under load and looks how long after the sentinels have named another one calls
// are decided again, and what the writes cost that were not replicated yet.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	const (
		processes = 5
		heartbeat = 200 * time.Millisecond
		busy      = 10 * time.Second // how late a machine may be that has other things to do
	)
	// failOver returns how long the sentinels took, and how long calls took from then on.
	failOver := func(w *watched, c *contender) (over, bound int64, named, resumed time.Duration) {
		var h history
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		running := h.load(ctx, c, "user:1")
		defer running.Wait()
		defer stop()
		await(t, "more than half is admitted", func() bool { return h.admitted() >= 600 })
		w.primary.kill()
		died := time.Now()
		h.lose(false, func() {}) // only now: what it admitted at the last moment is among the newest
		decided := func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.all) > 0 && h.all[len(h.all)-1].begin.After(died)
		}
		await(t, "another primary decides", func() bool {
			if named == 0 && w.moved() {
				named = time.Since(died)
			}
			if resumed == 0 && decided() {
				resumed = time.Since(died)
			}
			return named > 0 && resumed > 0
		})
		await(t, "all are denied", func() bool { return h.exhausted(processes) })
		stop()
		running.Wait()
		return h.admitted() - thousand.Max, h.bound(), named, max(0, resumed-named)
	}
	ws := [2]*watched{startWatched(t), startWatched(t)}
	var changed atomic.Int64
	group := router.Group{Name: "a", Sentinels: ws[0].sentinels, Master: "main"}
	c := ours(t, processes, setup{
		groups: []router.Group{group}, policy: one(thousand), failure: throttler.FailClosed, floors: true,
		router: router.Config{Heartbeat: heartbeat, Backend: patient, OnEvent: func(e router.Event) {
			if e.Kind == router.PrimaryChanged && e.From == ws[0].primary.addr {
				changed.Add(1)
			}
		}},
	})
	plain := rateSentinel(t, processes, ws[1].sentinels, thousand)
	over, bound, named, resumed := failOver(ws[0], c)
	if resumed > heartbeat+busy {
		t.Errorf("calls were decided only %v after the sentinels had named another primary", resumed)
	}
	await(t, "every process has the event", func() bool { return changed.Load() == processes })
	plainOver, _, plainNamed, plainResumed := failOver(ws[1], plain)

	note := func(named, resumed time.Duration) string {
		return fmt.Sprintf("named after %d ms, decided %d ms later", named.Milliseconds(), resumed.Milliseconds())
	}
	r := result{bound: bound, formula: "as measured; without floors Max", sluice: of(c, over)}
	r.sluice.note = note(named, resumed)
	peer := of(plain, plainOver)
	peer.note = note(plainNamed, plainResumed)
	r.redisRate = &peer
	report(t, "sentinel-failover", r)
}
