//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestReshard adds a fourth group to three and removes it again, under load, while the three processes learn of each
// change up to two seconds apart: one has no local view, one has, and one has leases. Without the handover, which is how
// topologies without an epoch work, and on a Ring, which knows none, keys that moved have a fresh quota.
func TestReshard(t *testing.T) {
	t.Parallel()
	const keys, gap = 200, time.Second
	l := limit.PerHour(100)
	var addrs []string
	for range 4 {
		addrs = append(addrs, startRedis(t).addr)
	}
	groups, four := groupsOf(addrs...)
	_, three := groupsOf(addrs[:3]...)

	// open makes three processes on some groups, under an epoch.
	open := func(prefix string, groups []router.Group, epoch uint64) *contender {
		c := (&contender{name: "Sluice"}).unhurried()
		for _, ls := range []*lease.Config{nil, {Batch: -1}, {Batch: 5, Processes: 3}} {
			cfg := router.Config{Backend: patient}
			cfg.Backend.Prefix = prefix
			c.processes = append(c.processes, newSluice(t, setup{
				groups: groups, epoch: epoch, policy: one(l), failure: throttler.FailClosed, lease: ls, router: cfg,
			}))
		}
		return c
	}
	// load calls until it is stopped, which returns what was admitted above Max of all keys.
	load := func(c *contender) (stop func() (over int64)) {
		var admitted [keys]atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for caller := range 2 * len(c.processes) {
			running.Go(func() {
				for ctx.Err() == nil {
					k := rand.IntN(keys)
					if ok, _ := c.call(caller%len(c.processes), fmt.Sprintf("user:%d", k)); ok {
						admitted[k].Add(1)
					}
					time.Sleep(rand.N(2 * time.Millisecond))
				}
			})
		}
		return func() (over int64) {
			cancel()
			running.Wait()
			for k := range admitted {
				over += max(0, admitted[k].Load()-l.Max)
			}
			return over
		}
	}
	// use takes what there is of all keys, and adds it to what was admitted before.
	use := func(c *contender, admitted *[keys]int64) (over int64) {
		for k := range admitted {
			for range 2 * l.Max {
				ok, err := c.call(0, fmt.Sprintf("user:%d", k))
				if ok {
					admitted[k]++
				} else if err == nil {
					break
				}
			}
			over += max(0, admitted[k]-l.Max)
		}
		return over
	}

	c, restarted := open("with:", groups[:3], 1), open("without:", groups[:3], 0)
	again := open("without:", groups, 0)
	client := redis.NewRing(&redis.RingOptions{Addrs: three})
	defer client.Close()
	ring := &contender{name: "go-redis Ring", processes: []limiter{rate{redis_rate.NewLimiter(client), rateLimit(l)}}}

	var over, without, ringOver int64
	var all sync.WaitGroup
	all.Go(func() {
		stop := load(c)
		time.Sleep(gap / 4) // the schedule of the release, not a wait for anything
		for change, now := range [][]router.Group{groups, groups[:3]} {
			topology := router.Topology{Epoch: uint64(change + 2), Groups: now}
			for i := range c.processes {
				if err := c.sluiceOf((i + change) % len(c.processes)).router.Update(topology); err != nil {
					t.Error(err)
				}
				time.Sleep(gap)
			}
		}
		for begin := time.Now(); c.admitted.Load() < keys*l.Max/4 && time.Since(begin) < time.Minute; { // a busy machine admits fewer
			time.Sleep(10 * time.Millisecond)
		}
		over = stop()
	})
	all.Go(func() {
		var admitted, ringAdmitted [keys]int64
		use(restarted, &admitted)
		without = use(again, &admitted)
		use(ring, &ringAdmitted)
		client.SetAddrs(four)
		ringOver = use(ring, &ringAdmitted)
	})
	all.Wait()
	if c.unknown.Load() > c.calls.Load()/50 || c.admitted.Load() < keys*l.Max/4 {
		t.Errorf("%d of %d calls without a verdict, %d admitted", c.unknown.Load(), c.calls.Load(), c.admitted.Load())
	}
	if without < keys {
		t.Errorf("without the handover only %d are admitted above Max: the test doesn't show what it does", without)
	}
	shown, ringShown := of(c, over), of(ring, ringOver)
	shown.note = fmt.Sprintf("%d of %d admitted; without handover over %d", c.admitted.Load(), keys*l.Max, without)
	ringShown.note = "a fourth shard, once"
	report(t, "reshard", result{sluice: shown, goRing: &ringShown})
}
