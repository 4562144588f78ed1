//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// every does something to every n-th script call, in turn the actions given.
func every(n int64, actions ...testserver.Action) testserver.Fault {
	var seen atomic.Int64
	return func(args []string) testserver.Action {
		if args[0] != "EVALSHA" {
			return testserver.Pass
		}
		if i := seen.Add(1); i%n == 0 {
			return actions[i/n%int64(len(actions))]
		}
		return testserver.Pass
	}
}

// TestReplyLost loses the reply of every third script call. A client that tries again counts such a call twice: that is
// what redis_rate shows, and what our own backend does once it is wrapped to do so.
func TestReplyLost(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	l := limit.PerDay(5000)
	through := func() (*testserver.Proxy, string) {
		p := testserver.NewProxy(t, s.addr)
		return p, p.Addr
	}
	var proxies [4]*testserver.Proxy
	var addrs [4]string
	for i := range proxies {
		proxies[i], addrs[i] = through()
	}
	groups, _ := groupsOf(addrs[0])
	ringGroups, _ := groupsOf(addrs[3])
	_, shards := groupsOf(addrs[2])
	all := []*contender{
		ours(t, 2, setup{groups: groups, policy: one(l), failure: throttler.FailClosed}),
		redisRate(t, 2, addrs[1], l),
		rateRing(t, 2, shards, l),
		ours(t, 2, setup{groups: ringGroups, policy: one(l), failure: throttler.FailClosed,
			wrap: func(b backend.Backend) backend.Backend { return retrying{b} }}),
	}
	keyOf := func(i int) string { return fmt.Sprintf("user:%d", i) }
	var shown [4]figures
	var running sync.WaitGroup
	for i, c := range all {
		c.take(4, keyOf(i)) // the script is there
		proxies[i].SetFault(every(3, testserver.CloseAfter))
		running.Go(func() { c.takeAtOnce(4, 40, func(int) string { return keyOf(i) }) })
	}
	running.Wait()
	for i, c := range all {
		proxies[i].SetFault(nil)
		counted := c.settled(t, s.addr, keyOf(i), l)
		shown[i] = unlimited(c)
		shown[i].counts = float64(counted) / float64(c.maybe.Load())
		shown[i].note = fmt.Sprintf("%d of %d calls without a verdict", c.unknown.Load(), c.calls.Load())
		if c.name == "Sluice" && c.admitted.Load()+c.unknown.Load() != c.calls.Load() {
			t.Errorf("%d calls, %d admitted, %d unknown: some are neither", c.calls.Load(), c.admitted.Load(), c.unknown.Load())
		}
	}
	if shown[0].counts == 0 || all[0].unknown.Load() == 0 {
		t.Error("no reply was lost: the test shows nothing")
	}
	if got := shown[3].counts; got < 1.1 {
		t.Errorf("with retries a call is counted %.2f times: the test would not detect them", got)
	}
	shown[0].note += fmt.Sprintf("; with retries counts %.2f", shown[3].counts)
	client := redis.NewClient(&redis.Options{Addr: s.addr})
	defer client.Close()
	if b, err := redisbackend.New(client, redisbackend.Config{}); err == nil {
		_ = b.Close()
		t.Error("a client that retries is accepted")
	}
	report(t, "reply-lost", result{sluice: shown[0], redisRate: &shown[1], goRing: &shown[2]})
}

// TestReplyBroken truncates some replies and holds others back until no caller waits for them. Every caller has a key with a
// Max of its own, so that an answer that was meant for another caller shows.
func TestReplyBroken(t *testing.T) {
	t.Parallel()
	const callers, calls = 6, 30
	s := startRedis(t)
	maxOf := func(caller int) int64 { return int64(caller+1) * 1000 }
	policies := make(map[string]*limit.Policy)
	for i := range callers {
		p := one(limit.PerDay(maxOf(i)))
		policies[fmt.Sprintf("user:%d", i)] = &p
	}
	proxies := [2]*testserver.Proxy{testserver.NewProxy(t, s.addr), testserver.NewProxy(t, s.addr)}
	groups, _ := groupsOf(proxies[0].Addr)
	c := ours(t, 1, setup{
		groups: groups, policy: one(limit.PerDay(1)), failure: throttler.FailClosed,
		router: router.Config{TripAfter: -1}, // with few callers an open breaker would keep most calls from the proxy
		throttler: func(cfg *throttler.Config) {
			cfg.PolicyFor = func(_ context.Context, key string) *limit.Policy { return policies[key] }
		},
	})
	plain := redisRate(t, 1, proxies[1].Addr, limit.PerDay(1))
	limiter := plain.processes[0].(rate).Limiter

	var foreign, answers [2]atomic.Int64
	check := func(which, caller int, remaining int64) {
		answers[which].Add(1)
		if most := maxOf(caller); remaining > most-1 || remaining < most-4*calls {
			foreign[which].Add(1)
		}
	}
	late := 2 * 250 * time.Millisecond // our timeout is 250 ms
	for i, p := range proxies {
		if i == 1 {
			late = 3500 * time.Millisecond // and go-redis waits for 3 s
		}
		p.SetFault(every(17, testserver.Truncate, testserver.Delay(late)))
	}
	var running sync.WaitGroup
	for caller := range callers {
		key := fmt.Sprintf("user:%d", caller)
		running.Go(func() {
			for range calls {
				if d, err := c.decide(0, key); err == nil {
					check(0, caller, d.Remaining)
				}
			}
		})
		running.Go(func() {
			for range calls {
				r, err := limiter.Allow(context.Background(), key, rateLimit(limit.PerDay(maxOf(caller))))
				plain.calls.Add(1)
				if err == nil {
					check(1, caller, int64(r.Remaining))
				}
			}
		})
	}
	running.Wait()
	var counted, plainCounted int64
	for caller := range callers {
		counted += c.settled(t, s.addr, fmt.Sprintf("user:%d", caller), limit.PerDay(maxOf(caller)))
		plainCounted += plain.settled(t, s.addr, fmt.Sprintf("user:%d", caller), limit.PerDay(maxOf(caller)))
	}
	if foreign[0].Load() > 0 || c.unknown.Load() == 0 || answers[0].Load() == 0 {
		t.Errorf("%d foreign answers of %d, %d calls without one", foreign[0].Load(), answers[0].Load(), c.unknown.Load())
	}
	shown, peer := unlimited(c), figures{over: unmeasured, counts: float64(plainCounted) / float64(plain.calls.Load())}
	shown.counts = float64(counted) / float64(c.maybe.Load())
	shown.note = fmt.Sprintf("%d foreign answers of %d", foreign[0].Load(), answers[0].Load())
	peer.note = fmt.Sprintf("%d foreign answers of %d", foreign[1].Load(), answers[1].Load())
	report(t, "reply-broken", result{sluice: shown, redisRate: &peer})
}

// TestPartition cuts one of two processes off from one of two servers.
func TestPartition(t *testing.T) {
	t.Parallel()
	l := limit.PerHour(100)
	a, b := startRedis(t), startRedis(t)
	link := testserver.NewProxy(t, a.addr)
	direct, shards := groupsOf(a.addr, b.addr)
	behind, shardsBehind := groupsOf(link.Addr, b.addr)
	s := setup{groups: direct, policy: one(l), failure: throttler.FailLocal, processes: 2, router: router.Config{Backend: patient}}
	c := ours(t, 1, s).unhurried()
	s.groups = behind
	c.processes = append(c.processes, newSluice(t, s))
	plain := redisRate(t, 1, a.addr, l)
	plain.processes = append(plain.processes, redisRate(t, 1, link.Addr, l).processes...)
	ring := rateRing(t, 1, shards, l)
	ring.processes = append(ring.processes, rateRing(t, 1, shardsBehind, l).processes...)
	key, ringKey := ownedBy(c.sluiceOf(0).router, "a", 0), ring.shardKey(t, a)

	link.Cut()
	at([]*contender{c, plain, ring}, func(c *contender) {
		switch c.name {
		case "go-redis Ring":
			c.exhaust(t, ringKey)
		case "redis_rate":
			for range 2 * l.Max {
				_, _ = c.call(0, key)
			}
			for range 3 {
				_, _ = c.call(1, key)
			}
		default:
			for range 2 * l.Max {
				for process := range 2 {
					_, _ = c.call(process, key)
				}
			}
		}
	})
	over := of(c, c.admitted.Load()-l.Max)
	late := c.unknown.Load()
	if got := c.exhaust(t, ownedBy(c.sluiceOf(0).router, "b", 0)); got > l.Max || got < l.Max-(c.unknown.Load()-late) {
		t.Errorf("a key of the server that both reach: %d admitted", got)
	}
	link.Heal()
	await(t, "the server decides again", func() bool { _, err := c.call(1, key); return err == nil })
	plainOver, ringOver := of(plain, plain.admitted.Load()-l.Max), of(ring, ring.admitted.Load()-l.Max)
	plainOver.note, ringOver.note = "every call of that process fails", "that process goes to another shard, with a fresh quota"
	report(t, "partition", result{
		bound: l.Max / 2, formula: "ceil(100 / 2)", sluice: over, redisRate: &plainOver, goRing: &ringOver,
	})
}
