//go:build unix

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// stage is what a process knows of the flag.
type stage struct {
	now atomic.Pointer[[2]uint64] // version and percent
}

func (s *stage) decide(key string) (useNew bool, version uint64) {
	hash, now := fnv.New32a(), s.now.Load()
	_, _ = hash.Write([]byte(key))
	return uint64(hash.Sum32()%100) < now[1], now[0]
}

func (s *stage) set(version, percent uint64) { s.now.Store(&[2]uint64{version, percent}) }

// TestFlagFlipped moves keys from Memcached to Redis and back under load, while the second of two processes learns of
// every change 300 ms later than the first. Without CarryOver the same run admits too much.
func TestFlagFlipped(t *testing.T) {
	t.Parallel()
	const keys = 40
	l := limit.PerHour(50)
	s, mc := startRedis(t), startMemcached(t)
	groups, _ := groupsOf(s.addr)
	play := func(prefix string, carryOver bool) (over int64, longest time.Duration) {
		var flags [2]stage
		c := (&contender{name: "Sluice"}).unhurried()
		for i := range flags {
			flags[i].set(1, 0)
			old, err := memcached.New([]string{mc}, memcached.Config{Prefix: prefix, Timeout: patient.Timeout})
			if err != nil {
				t.Fatal(err)
			}
			redis, err := router.Open(router.Topology{Groups: groups},
				router.Config{Backend: redisbackend.Config{Prefix: prefix, Timeout: patient.Timeout}})
			if err != nil {
				t.Fatal(err)
			}
			d, err := dual.New(dual.Config{
				Old: old, New: redis, Decide: flags[i].decide, CarryOver: carryOver,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			made, err := throttler.New(throttler.Config{Backend: d, Policy: one(l), Failure: throttler.FailClosed})
			if err != nil {
				t.Fatal(err)
			}
			defer made.Close()
			c.processes = append(c.processes, &sluice{Throttler: made})
		}
		var admitted [keys]atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var running sync.WaitGroup
		for caller := range 8 {
			running.Go(func() {
				for ctx.Err() == nil {
					n := rand.IntN(keys)
					ok, err := c.call(caller%2, fmt.Sprintf("user:%d", n))
					var failed *backend.Error
					if err != nil && !errors.As(err, &failed) {
						t.Errorf("no verdict: %v", err)
					}
					if ok {
						admitted[n].Add(1)
					}
					time.Sleep(rand.N(4 * time.Millisecond))
				}
			})
		}
		for i, percent := range []uint64{50, 100, 40, 0, 100} {
			time.Sleep(300 * time.Millisecond) // the schedule of the release, not a wait for anything
			flags[0].set(uint64(i+2), percent)
			time.Sleep(300 * time.Millisecond)
			flags[1].set(uint64(i+2), percent)
		}
		time.Sleep(300 * time.Millisecond)
		stop()
		running.Wait()
		if c.unknown.Load() > c.calls.Load()/20 {
			t.Errorf("%d of %d calls without a verdict", c.unknown.Load(), c.calls.Load())
		}
		for i := range admitted {
			over += max(0, admitted[i].Load()-l.Max)
		}
		return over, time.Duration(c.longest.Load())
	}
	over, longest := play("with:", true)
	without, _ := play("without:", false)
	if without < keys {
		t.Errorf("without CarryOver only %d are admitted above Max: the test doesn't show what it does", without)
	}
	shown := figures{over: over, longest: longest, note: fmt.Sprintf("without CarryOver over %d", without)}
	report(t, "flag-flipped", result{sluice: shown})
}
