//go:build unix

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// groupsOf is groups "a", "b" and so on, of one primary each.
func groupsOf(addrs ...string) (groups []router.Group, shards map[string]string) {
	shards = make(map[string]string)
	for i, addr := range addrs {
		name := string(rune('a' + i))
		groups = append(groups, router.Group{Name: name, Primary: addr})
		shards[name] = addr
	}
	return groups, shards
}

// TestPrimaryKilled kills one of three primaries when 40 of 100 are taken.
func TestPrimaryKilled(t *testing.T) {
	t.Parallel()
	const processes, before = 4, 40
	l := limit.PerHour(100)
	a, b, c := startRedis(t), startRedis(t), startRedis(t)
	groups, shards := groupsOf(a.addr, b.addr, c.addr)
	cfg := router.Config{Backend: patient}
	local := ours(t, processes, setup{groups: groups, policy: one(l), failure: throttler.FailLocal, processes: processes, router: cfg}).unhurried()
	closed := ours(t, processes, setup{groups: groups, policy: one(l), failure: throttler.FailClosed, router: cfg}).unhurried()
	plain := redisRate(t, processes, a.addr, l)
	ring := rateRing(t, processes, shards, l)

	key := ownedBy(local.sluiceOf(0).router, "a", 0)
	other := ownedBy(local.sluiceOf(0).router, "a", 1)
	ringKey := ring.shardKey(t, a)
	at([]*contender{local, closed, plain, ring}, func(c *contender) {
		switch c {
		case closed:
			c.take(before, other)
		case ring:
			c.take(before-1, ringKey)
		default:
			c.take(before, key)
		}
	})
	if local.admitted.Load() != before || closed.admitted.Load() != before {
		t.Fatalf("%d and %d of %d admitted while all is well", local.admitted.Load(), closed.admitted.Load(), before)
	}

	a.kill()
	for i := range processes {
		calls := 0
		await(t, "the breaker opens", func() bool {
			calls++
			_, err := closed.call(i, other)
			return errors.Is(err, router.ErrBreakerOpen)
		})
		if calls > 10 {
			t.Errorf("the breaker opened after %d calls", calls)
		}
	}
	at([]*contender{local, closed, plain, ring}, func(c *contender) {
		switch c {
		case local:
			c.take(processes*40, key)
		case closed:
			c.take(processes*10, other)
		case plain:
			c.takeAtOnce(processes, 2, func(int) string { return key })
		case ring:
			c.exhaust(t, ringKey) // it fails until the Ring gives the key to another shard
		}
	})
	if got := closed.admitted.Load(); got != before {
		t.Errorf("FailClosed admitted %d without a primary", got-before)
	}
	for i := range 20 { // the others are exact
		alive := ownedBy(local.sluiceOf(0).router, string(rune('b'+i%2)), i)
		began := closed.unknown.Load()
		if got := closed.exhaust(t, alive); got > l.Max || got < l.Max-(closed.unknown.Load()-began) {
			t.Errorf("a key of another group: %d admitted of %d", got, l.Max)
		}
	}
	if owner := local.sluiceOf(0).router.Owner(key); owner != "a" {
		t.Errorf("the key moved to %s", owner)
	}

	a.restart()
	for i := range processes {
		await(t, "the primary decides again", func() bool {
			_, err := closed.call(i, other)
			return err == nil
		})
	}

	over := of(local, local.admitted.Load()-l.Max)
	over.note = "FailClosed admitted 0"
	plainOver, ringOver := of(plain, plain.admitted.Load()-l.Max), of(ring, ring.admitted.Load()-l.Max)
	plainOver.note, ringOver.note = "every call fails", "the key goes to another shard, with a fresh quota"
	report(t, "primary-killed", result{
		bound: before, formula: "40 before the loss + 4 x ceil(100 / 4) - 100", sluice: over, redisRate: &plainOver, goRing: &ringOver,
	})
}

// TestFrozenNode sends calls to a server that is frozen for longer than go-redis waits for a reply.
func TestFrozenNode(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	stall(t, "frozen-node", s, 6*time.Second, s.pause, s.resume)
}

// TestSlowNode keeps the server busy with a command of 2 s.
func TestSlowNode(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	var busy sync.WaitGroup
	stall(t, "slow-node", s, 2*time.Second, func() {
		client := plainClient(t, s.addr)
		_ = client.Ping(t.Context())
		busy.Go(func() { _ = client.Do(context.Background(), "DEBUG", "SLEEP", "2").Err() }) // it may run into its own timeout
	}, busy.Wait)
}

// stall makes calls while the server is stalled, and counts what it has counted afterwards.
func stall(t *testing.T, id string, s *server, span time.Duration, begin, end func()) {
	l := limit.PerDay(5000)
	groups, shards := groupsOf(s.addr)
	all := []*contender{
		ours(t, 2, setup{groups: groups, policy: one(l), failure: throttler.FailClosed}),
		redisRate(t, 2, s.addr, l),
		rateRing(t, 2, shards, l),
	}
	keyOf := func(c *contender) string { return "user:" + c.name }
	at(all, func(c *contender) { c.take(20, keyOf(c)) })

	begin()
	stalled, over := context.WithTimeout(t.Context(), span)
	defer over()
	var running sync.WaitGroup
	for _, c := range all {
		for caller := range 8 {
			running.Go(func() {
				for stalled.Err() == nil {
					_, _ = c.call(caller%2, keyOf(c))
					select {
					case <-stalled.Done():
					case <-time.After(20 * time.Millisecond):
					}
				}
			})
		}
	}
	<-stalled.Done()
	end()
	running.Wait()
	var shown [3]figures
	for i, c := range all {
		counted := c.settled(t, s.addr, keyOf(c), l)
		shown[i] = unlimited(c)
		shown[i].counts = float64(counted) / float64(c.maybe.Load())
		shown[i].note = fmt.Sprintf("%d of %d calls without a verdict", c.unknown.Load(), c.calls.Load())
	}
	if _, err := all[0].call(0, "another"); err != nil { // the breaker closes, here or soon
		await(t, "the server decides again", func() bool { _, err := all[0].call(0, "another"); return err == nil })
	}
	report(t, id, result{sluice: shown[0], redisRate: &shown[1], goRing: &shown[2]})
}

// retrying is what no Backend does: it sends a take again whose outcome it doesn't know.
type retrying struct{ backend.Backend }

func (r retrying) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	for try := 0; ; try++ {
		result, err := r.Backend.Take(ctx, req)
		var failed *backend.Error
		if try == 3 || !errors.As(err, &failed) || !failed.MayHaveCharged {
			return result, err
		}
	}
}
