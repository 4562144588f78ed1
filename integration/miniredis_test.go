//go:build unix

package integration_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

// miniredisTimeout is how long a call may take: Lua on miniredis is slow, and the machine may be busy.
const miniredisTimeout = 30 * time.Second

// startMiniredis starts a Redis server in this process. Its INFO says too little of itself for decisions to be exact.
func startMiniredis(t *testing.T) *miniredis.Miniredis {
	m := miniredis.RunT(t)
	m.Server().SetPreHook(func(c *miniserver.Peer, cmd string, _ ...string) bool {
		if cmd != "INFO" {
			return false
		}
		c.WriteBulk("run_id:miniredis\r\nrole:master\r\nevicted_keys:0\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n")
		return true
	})
	return m
}

func TestOnMiniredis(t *testing.T) {
	m, clock := startMiniredis(t), throttlertest.NewClock()
	counts, err := redisbackend.Open(&redis.Options{Addr: m.Addr()}, redisbackend.Config{Now: clock.Now, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	limits, err := throttler.New(throttler.Config{
		Backend: counts, Failure: throttler.FailError,
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(2)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer limits.Close()
	for i, want := range []bool{true, true, false} {
		if d, err := limits.Allow(t.Context(), "user:42"); err != nil || d.Allowed != want || d.Guarantee != throttler.Exact {
			t.Errorf("request %d: %+v, %v", i, d, err)
		}
	}
	clock.Advance(time.Minute)
	if d, err := limits.Allow(t.Context(), "user:42"); err != nil || !d.Allowed {
		t.Errorf("in the next window: %+v, %v", d, err)
	}
	m.Close()
	if d, err := limits.Allow(t.Context(), "user:42"); err == nil {
		t.Errorf("without a server: %+v", d)
	}
}

// All scripts do on miniredis what they do on Redis: it passes the suite of all backends.
func TestMiniredisConformance(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
		b, err := redisbackend.Open(&redis.Options{Addr: startMiniredis(t).Addr()}, redisbackend.Config{Now: now, Timeout: miniredisTimeout})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	})
}

// Without the answer to INFO the same requests are admitted and denied, and no decision is exact.
func TestPlainMiniredisIsBounded(t *testing.T) {
	t.Parallel()
	counts, err := redisbackend.Open(&redis.Options{Addr: miniredis.RunT(t).Addr()}, redisbackend.Config{Timeout: miniredisTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	limits, err := throttler.New(throttler.Config{Backend: counts, Policy: one(limit.PerHour(2))})
	if err != nil {
		t.Fatal(err)
	}
	defer limits.Close()
	for i, want := range []bool{true, true, false} {
		d, err := limits.Allow(t.Context(), "user:42")
		if err != nil || d.Allowed != want || d.Source != throttler.Primary || throttler.Reason(d.Cause) != "counts_lost" {
			t.Errorf("request %d: %+v, %v", i, d, err)
		}
	}
}

// A router of several groups and leases work on miniredis, too, with its own clock.
func TestRouterAndLeasesOnMiniredis(t *testing.T) {
	t.Parallel()
	groups, err := router.Open(router.Topology{Groups: []router.Group{
		{Name: "a", Primary: startMiniredis(t).Addr()}, {Name: "b", Primary: startMiniredis(t).Addr()},
	}}, router.Config{Backend: redisbackend.Config{Timeout: miniredisTimeout}})
	if err != nil {
		t.Fatal(err)
	}
	counts, err := lease.New(groups, lease.Config{Processes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	limits, err := throttler.New(throttler.Config{
		Backend: counts, Failure: throttler.FailError, Policy: one(limit.PerHour(1000)), RequireReachable: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer limits.Close()
	for _, key := range []string{"user:1", "user:2", "user:3", "user:4"} {
		admitted := 0
		for range 1100 {
			d, err := limits.Allow(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				admitted++
			}
		}
		if admitted != 1000 {
			t.Errorf("%s: %d admitted, want 1000", key, admitted)
		}
	}
}
