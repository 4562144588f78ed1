//go:build unix

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestRedirections moves slots of a Redis Cluster under load, each with a key in it, and kills one of the shards, which makes
// the others refuse everything until the test allows it. A call follows MOVED, and ASK, which is said of a key on its way;
// it has no verdict where it meets CLUSTERDOWN.
func TestRedirections(t *testing.T) {
	t.Parallel()
	const keys, callers, moves = 40, 4, 3
	l := limit.PerDay(100_000)
	shards := testserver.Cluster(t, 3, 0, "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "yes")
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
	for k := range keys {
		_, _ = c.call(0, name(k)) // all are there
	}

	var admitted, maybe [keys]atomic.Int64
	var wrong, downs atomic.Int64
	var killed atomic.Bool
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for caller := range callers {
		running.Go(func() {
			for ctx.Err() == nil {
				k := rand.IntN(keys)
				ok, err := c.call(caller%len(c.processes), name(k))
				var failed *backend.Error
				switch {
				case ok:
					admitted[k].Add(1)
				case err == nil:
					t.Error("denied without a limit reached")
				case !errors.As(err, &failed):
					wrong.Add(1)
				case failed.MayHaveCharged:
					maybe[k].Add(1)
				}
				if err != nil {
					text := err.Error()
					down := strings.Contains(text, "CLUSTERDOWN")
					if down {
						downs.Add(1)
					}
					if down && (kind(err) != backend.Unavailable || failed.MayHaveCharged) || strings.Contains(text, "user:") ||
						strings.HasPrefix(text, "ASK") || !killed.Load() {
						wrong.Add(1)
						t.Logf("no such error: %v", err)
					}
				}
				time.Sleep(rand.N(2 * time.Millisecond))
			}
		})
	}
	defer running.Wait()
	defer stop()

	for k := range moves {
		moveSlot(t, servers, storedName(name(k)), func() {
			before, since := replies(t, servers, "ASK"), admitted[k].Load()
			await(t, "the key is taken on its way", func() bool {
				return admitted[k].Load() > since+3 && replies(t, servers, "ASK") > before
			})
		})
		since := admitted[k].Load()
		await(t, "the key is taken where it is now", func() bool { return admitted[k].Load() > since+3 })
	}
	moved, asked := replies(t, servers, "MOVED"), replies(t, servers, "ASK")
	if moved == 0 || asked == 0 {
		t.Errorf("%d times MOVED and %d times ASK: the test shows nothing", moved, asked)
	}

	dead := servers[0]
	lost := make(map[int]bool)
	for k := range keys {
		lost[k] = dead.client.Exists(t.Context(), storedName(name(k))).Val() == 1
	}
	killed.Store(true)
	dead.kill()
	await(t, "the cluster is down", func() bool { return downs.Load() > 20 })
	for _, s := range servers[1:] {
		command(t, s, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	for k := range keys {
		since := admitted[k].Load()
		if !lost[k] {
			await(t, "a key of a living shard is taken", func() bool { return admitted[k].Load() > since })
		}
	}
	stop()
	running.Wait()

	var sum, may int64
	for k := range keys {
		if lost[k] {
			continue
		}
		d := peek(t, c.sluiceOf(0), name(k))
		used, sure := l.Max-d.Remaining, admitted[k].Load()+1
		if used < sure || used > sure+maybe[k].Load() {
			t.Errorf("a key is counted %d times after %d admitted calls and %d unknown ones", used, sure, maybe[k].Load())
		}
		sum, may = sum+used, may+sure+maybe[k].Load()
	}
	if wrong.Load() > 0 {
		t.Errorf("%d errors are not what they should be", wrong.Load())
	}
	shown := unlimited(c)
	shown.counts = float64(sum) / float64(may)
	shown.note = fmt.Sprintf("of %d calls %d were answered MOVED, %d ASK, %d CLUSTERDOWN", c.calls.Load(), moved, asked, downs.Load())
	report(t, "redirections", result{sluice: shown})
}

// moveSlot moves the slot of a stored key to the next shard, with that key, and waits between the two. Other keys of the
// slot there are none.
func moveSlot(t *testing.T, shards []*server, stored string, between func()) {
	t.Helper()
	var from, to *server
	for i, s := range shards {
		if s.client.Exists(t.Context(), stored).Val() == 1 {
			from, to = s, shards[(i+1)%len(shards)]
		}
	}
	if from == nil {
		t.Fatal("no shard has the key")
	}
	slot := from.client.ClusterKeySlot(t.Context(), stored).Val()
	id := func(s *server) string { return s.client.ClusterMyID(t.Context()).Val() }
	command(t, to, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from))
	command(t, from, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to))
	command(t, from, "MIGRATE", to.peerHost, to.peerPt, stored, 0, 5000)
	between()
	command(t, to, "CLUSTER", "SETSLOT", slot, "NODE", id(to))
	command(t, from, "CLUSTER", "SETSLOT", slot, "NODE", id(to))
	// The next move must not take the same epoch: who has the slots would then be a matter of chance for a while.
	await(t, "all shards know of the move", func() bool {
		known := make(map[string]bool)
		for _, s := range shards {
			for line := range strings.Lines(s.client.ClusterInfo(t.Context()).Val()) {
				if strings.HasPrefix(line, "cluster_current_epoch:") {
					known[line] = true
				}
			}
			ranges, _ := s.client.Do(t.Context(), "CLUSTER", "SLOTS").Slice() // CLUSTER SHARDS came with Redis 7
			for _, r := range ranges {                                        // first slot, last slot, nodes
				if r := r.([]any); r[0].(int64) <= slot && slot <= r[1].(int64) {
					known[fmt.Sprint(r[2])] = true
				}
			}
		}
		return len(known) == 2 // one epoch and one place
	})
}

// replies is how often servers have answered with an error.
func replies(t *testing.T, servers []*server, prefix string) (n int64) {
	t.Helper()
	for _, s := range servers {
		count := strings.TrimPrefix(info(t, s, "errorstats")["errorstat_"+prefix], "count=")
		i, _ := strconv.ParseInt(count, 10, 64)
		n += i
	}
	return n
}
