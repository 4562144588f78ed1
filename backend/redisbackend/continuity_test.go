//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

var fivePerMinute = &limit.Policy{Name: "five", Limits: []limit.Limit{limit.PerMinute(5)}}

// openers make a Redis of each kind of client.
var openers = map[string]func(t *testing.T, addr string) *redisbackend.Redis{
	"own": func(t *testing.T, addr string) *redisbackend.Redis {
		return backendtesting.OpenRedis(t, addr, redisbackend.Config{})
	},
	"own, one connection": func(t *testing.T, addr string) *redisbackend.Redis {
		return backendtesting.OpenRedisWith(t, &redis.Options{Addr: addr, PoolSize: 1}, redisbackend.Config{})
	},
	"the caller's": func(t *testing.T, addr string) *redisbackend.Redis {
		client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = client.Close() })
		b, err := redisbackend.New(client, redisbackend.Config{Timeout: backendtesting.Patient})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	},
}

// takeFive takes until five are admitted, or as often as is given, and returns how many were, and were as Exact.
func takeFive(t *testing.T, b backend.Backend, p *limit.Policy, key string, times int) (admitted, exact int) {
	t.Helper()
	for range times {
		r, err := b.Take(t.Context(), backend.Request{Key: key, Policy: p, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		if r.Guarantee == backend.Exact {
			exact++
		} else if r.Guarantee != backend.Bounded || r.Cause == nil {
			t.Fatalf("%s, because %v", r.Guarantee, r.Cause)
		}
		if r.Allowed {
			admitted++
		}
	}
	return admitted, exact
}

// TestRestartIsNotExact takes five a minute, restarts the server empty, and takes five more.
func TestRestartIsNotExact(t *testing.T) {
	t.Parallel()
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			b := open(t, server.Addr)
			if admitted, exact := takeFive(t, b, fivePerMinute, "k", 6); admitted != 5 || exact != 6 {
				t.Fatalf("of a server that is well, %d are admitted and %d of 6 decisions are exact", admitted, exact)
			}
			server.Restart()
			admitted, exact := takeFive(t, b, fivePerMinute, "k", 6)
			if admitted != 5 || exact != 0 {
				t.Errorf("after a restart %d are admitted, and %d of 6 decisions are called exact", admitted, exact)
			}
			r, err := b.Take(t.Context(), backend.Request{Key: "k", Policy: fivePerMinute, Cost: 1})
			if err != nil || !errors.Is(r.Cause, backend.ErrCountsLost) {
				t.Errorf("the cause is %v, error %v", r.Cause, err)
			}
			if p, err := b.Peek(t.Context(), backend.Request{Key: "k", Policy: fivePerMinute, Cost: 1}); err != nil || p.Guarantee != backend.Bounded {
				t.Errorf("a look says %s, error %v", p.Guarantee, err)
			}
			late := open(t, server.Addr) // begins after the loss, and learns of it
			if _, exact := takeFive(t, late, fivePerMinute, "other", 3); exact != 0 {
				t.Errorf("a process that begins after the loss calls %d decisions exact", exact)
			}
			// A window that is shorter than the time since the restart lost nothing.
			short := &limit.Policy{Name: "short", Limits: []limit.Limit{limit.Fixed(5, 50*time.Millisecond)}}
			backendtesting.Await(t, "decisions are exact again", func() bool {
				_, exact := takeFive(t, b, short, "k", 1)
				return exact == 1
			})
			if _, exact := takeFive(t, b, fivePerMinute, "k", 1); exact != 0 {
				t.Error("of a longer window they are exact, too")
			}
		})
	}
}

// TestPromotionIsNotExact promotes a replica that had not got the last writes.
func TestPromotionIsNotExact(t *testing.T) {
	t.Parallel()
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := testserver.Redis(t)
			old, young := open(t, primary.Addr), backend.Backend(nil)
			if _, exact := takeFive(t, old, fivePerMinute, "k", 1); exact != 1 {
				t.Fatal("not exact")
			}
			replica := testserver.Replica(t, primary)
			young = open(t, replica.Addr)
			if _, err := young.Take(t.Context(), backend.Request{Key: "k", Policy: fivePerMinute, Cost: 1}); err == nil {
				t.Fatal("a replica takes")
			}
			if err := young.(backend.Pinger).Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := replica.Client().ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
				t.Fatal(err)
			}
			takeFive(t, old, fivePerMinute, "k", 4)
			for who, b := range map[string]backend.Backend{"one who knew it as a replica": young, "one who comes": open(t, replica.Addr)} {
				if _, exact := takeFive(t, b, fivePerMinute, "k", 3); exact != 0 {
					t.Errorf("%s calls %d of 3 decisions exact", who, exact)
				}
			}
		})
	}
}

// TestPromotionIsSeenByLooks promotes a replica that nobody takes at.
func TestPromotionIsSeenByLooks(t *testing.T) {
	t.Parallel()
	primary := testserver.Redis(t)
	takeFive(t, backendtesting.OpenRedis(t, primary.Addr, redisbackend.Config{}), fivePerMinute, "k", 1)
	replica := testserver.Replica(t, primary)
	b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: replica.Addr, PoolSize: 1}, redisbackend.Config{}) // a second connection would ask
	look := func() backend.Result {
		t.Helper()
		r, err := b.Peek(t.Context(), backend.Request{Key: "k", Policy: fivePerMinute, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	look()
	if err := replica.Client().ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	backendtesting.Await(t, "a look tells of the promotion", func() bool { return errors.Is(look().Cause, backend.ErrCountsLost) })
}

// TestFlushIsNotExact empties the server: the run id stays, and the marker is gone.
func TestFlushIsNotExact(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	takeFive(t, b, fivePerMinute, "k", 5)
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	backendtesting.Await(t, "the flush is noticed", func() bool {
		_, exact := takeFive(t, b, fivePerMinute, "k", 1)
		return exact == 0
	})
	if _, exact := takeFive(t, backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{}), fivePerMinute, "k", 1); exact != 0 {
		t.Error("a process that begins after the flush calls its decision exact")
	}
}

// TestFlushIsNotExactWhenTimeGoesBack empties the server after its clock was set back: it is asked no later for that.
func TestFlushIsNotExactWhenTimeGoesBack(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	var back atomic.Int64
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Now: func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }})
	if _, exact := takeFive(t, b, fivePerMinute, "k", 1); exact != 1 {
		t.Error("a server that is well is not exact")
	}
	back.Store(int64(time.Hour))
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	backendtesting.Await(t, "the flush is noticed", func() bool {
		_, exact := takeFive(t, b, fivePerMinute, "k", 1)
		return exact == 0
	})
}

// TestFlushIsNotExactBehindAnother empties the server, and a process that has never seen it calls before one that has.
func TestFlushIsNotExactBehindAnother(t *testing.T) {
	t.Parallel()
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			old := open(t, server.Addr)
			if admitted, exact := takeFive(t, old, fivePerMinute, "k", 6); admitted != 5 || exact != 6 {
				t.Fatalf("of a server that is well, %d are admitted and %d of 6 decisions are exact", admitted, exact)
			}
			if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			young := open(t, server.Addr)
			takeFive(t, young, fivePerMinute, "other", 1)
			backendtesting.Await(t, "the flush to be noticed by who knew the server before", func() bool {
				_, exact := takeFive(t, old, fivePerMinute, "k", 1)
				return exact == 0
			})
			backendtesting.Await(t, "the young one to be told", func() bool {
				_, exact := takeFive(t, young, fivePerMinute, "other", 1)
				return exact == 0
			})
			if _, exact := takeFive(t, open(t, server.Addr), fivePerMinute, "k", 3); exact != 0 {
				t.Errorf("a process that begins later calls %d of 3 decisions exact", exact)
			}
		})
	}
}

// TestEvictionIsNotExact fills a server that evicts while a limit is used up again and again.
func TestEvictionIsNotExact(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"allkeys-lru", "volatile-lru", "volatile-ttl"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t, "--maxmemory", "3mb", "--maxmemory-policy", policy)
			b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
			const most = 20
			hour := &limit.Policy{Name: "hour", Limits: []limit.Limit{limit.PerHour(most)}}
			var admitted, exact int
			filler := strings.Repeat("x", 10_000)
			for i := 0; admitted <= 3*most; i++ {
				r, err := b.Take(t.Context(), backend.Request{Key: "k", Policy: hour, Cost: 1})
				if err != nil {
					t.Fatal(err)
				}
				if r.Allowed {
					admitted++
					if r.Guarantee == backend.Exact {
						exact++
					}
				}
				if r.Guarantee != backend.Exact && !errors.Is(r.Cause, backend.ErrEvicted) {
					t.Fatalf("the cause is %v", r.Cause)
				}
				for j := range 20 {
					if err := server.Client().Set(t.Context(), fmt.Sprintf("filler:%d:%d", i, j), filler, time.Hour).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if exact > most {
				t.Errorf("%d of %d admissions above %d are called exact", exact, admitted, most)
			}
			if err := server.Client().ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
				t.Fatal(err)
			}
			backendtesting.Await(t, "the cause is what it has evicted", func() bool {
				r, err := b.Take(t.Context(), backend.Request{Key: "k", Policy: hour, Cost: 1})
				if err != nil || r.Guarantee == backend.Exact {
					t.Fatalf("%s, error %v", r.Guarantee, err)
				}
				return errors.Is(r.Cause, backend.ErrCountsLost)
			})
			late := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
			if _, exact := takeFive(t, late, hour, "other", 3); exact != 0 {
				t.Errorf("a process that begins after evictions calls %d decisions exact", exact)
			}
		})
	}
}

// TestRoomIsExact trusts a server that may evict while it has room for more than can come.
func TestRoomIsExact(t *testing.T) {
	t.Parallel()
	for most, exact := range map[string]int{"64gb": 3, "100mb": 0} {
		server := testserver.Redis(t, "--maxmemory", most, "--maxmemory-policy", "volatile-lru")
		if _, got := takeFive(t, backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{}), fivePerMinute, "k", 3); got != exact {
			t.Errorf("with room for %s, %d of 3 decisions are exact, want %d", most, got, exact)
		}
	}
	server := testserver.Redis(t, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
	if _, got := takeFive(t, backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{}), fivePerMinute, "k", 3); got != 3 {
		t.Errorf("of a server that never evicts %d of 3 decisions are exact", got)
	}
}

// TestRightsOfTheMarker counts under a login that may not see the marker, and under one that may not ask the server at all.
func TestRightsOfTheMarker(t *testing.T) {
	t.Parallel()
	for rights, well := range map[string]int{"~sl:five:* +@all": 3, "~sl:* +@all -info": 0, "~sl:five:* +@all -info": 0} {
		server := testserver.Redis(t)
		args := []any{"acl", "setuser", "app", "on", ">pass"}
		for _, right := range strings.Fields(rights) {
			args = append(args, right)
		}
		if err := server.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
		b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: server.Addr, Username: "app", Password: "pass"}, redisbackend.Config{})
		if admitted, exact := takeFive(t, b, fivePerMinute, "k", 3); admitted != 3 || exact != well {
			t.Errorf("%s: %d admitted, %d exact, want 3 and %d", rights, admitted, exact, well)
		}
	}
}

// TestFailoverOfAShardIsNotExact has a replica of a Redis Cluster take over without asking its primary.
func TestFailoverOfAShardIsNotExact(t *testing.T) {
	t.Parallel()
	shards := testserver.Cluster(t, 3, 1)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{shards[0].Primary.Addr, shards[1].Primary.Addr}, MaxRedirects: -1, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	b, err := redisbackend.New(client, redisbackend.Config{Timeout: backendtesting.Patient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	keys := make(map[int]string) // one of each shard
	for i := 0; len(keys) < 3; i++ {
		key := fmt.Sprintf("k%d", i)
		node, err := client.MasterForKey(t.Context(), "sl:five:"+key)
		if err != nil {
			t.Fatal(err)
		}
		for s := range shards {
			if node.Options().Addr == shards[s].Primary.Addr {
				keys[s] = key
			}
		}
	}
	for _, key := range keys {
		if _, exact := takeFive(t, b, fivePerMinute, key, 5); exact != 5 {
			t.Fatalf("%d of 5 decisions of a cluster that is well are exact", exact)
		}
	}
	if err := shards[0].Replicas[0].Client().Do(t.Context(), "cluster", "failover", "takeover").Err(); err != nil {
		t.Fatal(err)
	}
	backendtesting.Await(t, "the shard takes again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := b.Take(ctx, backend.Request{Key: keys[0], Policy: fivePerMinute, Cost: 1})
		return err == nil && errors.Is(r.Cause, backend.ErrCountsLost)
	})
	look := func(key string) (backend.Result, error) {
		req := backend.Request{Key: key, Policy: fivePerMinute, Cost: 1}
		r, err := b.Peek(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return r, b.Doubt(req)
	}
	if r, doubt := look(keys[0]); !errors.Is(r.Cause, backend.ErrCountsLost) || !errors.Is(doubt, backend.ErrCountsLost) {
		t.Errorf("a look at the shard says %s, because %v; Doubt is %v", r.Guarantee, r.Cause, doubt)
	}
	for s := range 2 {
		if r, doubt := look(keys[s+1]); r.Guarantee != backend.Exact || doubt != nil {
			t.Errorf("a look at another shard says %s, because %v; Doubt is %v", r.Guarantee, r.Cause, doubt)
		}
		if _, exact := takeFive(t, b, fivePerMinute, keys[s+1], 3); exact != 3 {
			t.Errorf("%d of 3 decisions of another shard are exact", exact)
		}
	}
}
