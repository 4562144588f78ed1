//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestFrozenShard freezes one of three shards of a Redis Cluster under load on all keys. Those of the others are decided as
// before: neither pipelines nor heartbeats wait for the frozen one.
func TestFrozenShard(t *testing.T) {
	t.Parallel()
	const keys, span = 24, 3 * time.Second
	l := limit.PerDay(1_000_000)
	shards := testserver.Cluster(t, 3, 0, "--cluster-node-timeout", "600000") // or the others would refuse their keys, too
	servers := make([]*server, len(shards))
	group := router.Group{Name: "c"}
	for i, shard := range shards {
		servers[i] = ownProcess(shard.Primary)
		group.Cluster = append(group.Cluster, shard.Primary.Addr)
	}
	c := ours(t, 2, setup{
		groups: []router.Group{group}, policy: one(l), failure: throttler.FailClosed, router: router.Config{Backend: patient},
	})
	name := func(k int) string { return fmt.Sprintf("user:%d", k) }
	var admitted, maybe [keys]atomic.Int64
	take := func(k int) error {
		_, err := c.call(k%len(c.processes), name(k))
		if err == nil {
			admitted[k].Add(1)
		} else {
			maybe[k].Add(1)
		}
		return err
	}
	var onFrozen [keys]bool // whether the shard that will be frozen has it
	for k := range keys {
		await(t, "the key is taken", func() bool { return take(k) == nil })
		onFrozen[k] = servers[0].client.Exists(t.Context(), storedName(name(k))).Val() == 1
	}

	var refused, waited atomic.Int64 // of the keys of shards that are well, and of the other one
	run := func() (taken int64) {
		ctx, stop := context.WithTimeout(t.Context(), span)
		defer stop()
		var running sync.WaitGroup
		for k := range keys {
			running.Go(func() {
				for ctx.Err() == nil {
					if err := take(k); err != nil && onFrozen[k] {
						waited.Add(1)
					} else if err != nil {
						refused.Add(1)
						t.Logf("a key of a shard that is well: %v", err)
					}
				}
			})
		}
		running.Wait()
		for k := range keys {
			if !onFrozen[k] {
				taken += admitted[k].Load()
			}
		}
		return taken
	}
	before := run()
	servers[0].pause()
	beside := run() - before
	servers[0].resume()
	if waited.Load() == 0 {
		t.Error("no call waited for the frozen shard: the test shows nothing")
	}
	// A machine under load may keep a few calls waiting for as long as their deadline.
	if beside < before/100 || refused.Load() > beside/20 {
		t.Errorf("%d takes beside a frozen shard, %d without it; %d had no verdict", beside, before, refused.Load())
	}
	var sum, may int64
	for k := range keys {
		await(t, "all are decided again", func() bool { return take(k) == nil })
		d := peek(t, c.sluiceOf(0), name(k))
		used, sure := l.Max-d.Remaining, admitted[k].Load()
		if used < sure || used > sure+maybe[k].Load() {
			t.Errorf("a key is counted %d times after %d admitted calls and %d unknown ones", used, sure, maybe[k].Load())
		}
		sum, may = sum+used, may+sure+maybe[k].Load()
	}
	shown := unlimited(c)
	shown.counts = float64(sum) / float64(may)
	shown.note = fmt.Sprintf("at the other shards %d calls without a verdict, and %.1f times as many with one as before",
		refused.Load(), float64(beside)/float64(before))
	report(t, "frozen-shard", result{sluice: shown})
}
