//go:build unix

package redisbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// The cases of the articles that the design draws on, and of the faults in the code published with them.

// Josiah Carlson's cases on a real server: 240 an hour in minutes, limits in any order, only what is admitted counts.
func TestCarlson(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	now := backendtesting.NewClock()
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Now: now.Now})
	hour, second := limit.Sliding(240, time.Hour, time.Minute), limit.PerSecond(10)
	take := func(key string, p *limit.Policy, cost int64) bool {
		t.Helper()
		r := backendtesting.MustTake(t, b, backend.Request{Key: key, Policy: p, Cost: cost})
		return r.Allowed
	}
	t.Run("any order", func(t *testing.T) {
		orders := []*limit.Policy{
			{Name: "one", Limits: []limit.Limit{hour, second}}, {Name: "two", Limits: []limit.Limit{second, hour}},
		}
		admitted := [2]int{}
		for i := range 600 { // ten seconds at 60 a second
			now.Set(time.Duration(i) * time.Second / 60)
			for j, p := range orders {
				if take("user", p, 1) {
					admitted[j]++
				}
			}
		}
		if admitted != [2]int{100, 100} {
			t.Errorf("admitted %v, want 100 each", admitted)
		}
	})
	t.Run("only what is admitted counts", func(t *testing.T) {
		p := &limit.Policy{Name: "three", Limits: []limit.Limit{hour}}
		admitted := 0
		for i := range 3600 { // an hour at one a second; package limit/state does it at a hundred
			now.Set(time.Duration(i) * time.Second)
			if take("user", p, 1) {
				admitted++
			}
		}
		if admitted != 240 {
			t.Errorf("admitted %d, want 240", admitted)
		}
	})
	t.Run("20 of 6:05 are back at 7:05", func(t *testing.T) {
		p := &limit.Policy{Name: "four", Limits: []limit.Limit{hour}}
		now.Set(5*time.Minute + 30*time.Second)
		take("user", p, 20)
		now.Set(40 * time.Minute)
		take("user", p, 220)
		for _, step := range []struct {
			at   time.Duration
			cost int64
			want bool
		}{
			{65*time.Minute - time.Millisecond, 1, false},
			{65 * time.Minute, 21, false},
			{65 * time.Minute, 20, true},
			{65 * time.Minute, 1, false},
		} {
			now.Set(step.at)
			if got := take("user", p, step.cost); got != step.want {
				t.Errorf("%d at 6:00 + %s: %t, want %t", step.cost, step.at, got, step.want)
			}
		}
	})
}

// Two keys that a script with derived names would mix up are strangers.
func TestAliceHasNoExpiry(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	p := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(1)}}
	for _, key := range []string{"alice", "alice:exp", "alice:reset_at", "p:alice"} {
		if r := backendtesting.MustTake(t, b, backend.Request{Key: key, Policy: p, Cost: 1}); !r.Allowed {
			t.Errorf("%s pays for another key", key)
		}
	}
}

// GitHub's: the reset is chosen once and stored. However the takes fall, the callers of one window see one reset, and
// windows don't overlap.
func TestOneResetPerWindow(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	const takes = 10_000
	for name, l := range map[string]limit.Limit{"first": limit.PerSecond(50), "aligned": limit.PerSecond(50).Aligned()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := backendtesting.NewClock()
			b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Now: c.Now, Prefix: backendtesting.NewPrefix()})
			policy := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
			var reset time.Time
			windows, admitted := 0, 0
			for range takes {
				c.Step(10*time.Millisecond + 7*time.Microsecond)
				r := backendtesting.MustTake(t, b, backend.Request{Key: "alice", Policy: policy, Cost: 1})
				now, got := c.Now(), r.Binding().ResetAt
				switch {
				case now.Before(reset) && !got.Equal(reset):
					t.Fatalf("at %s the reset moved from %s to %s", now, reset, got)
				case !now.Before(reset):
					if admitted > 50 {
						t.Fatalf("the window until %s admitted %d", reset, admitted)
					}
					reset, admitted = got, 0
					windows++
				}
				if left := got.Sub(now); left <= 0 || left > time.Second {
					t.Fatalf("at %s the reset is %s", now, got)
				}
				if r.Allowed {
					admitted++
				}
			}
			if want := takes / 100; windows < want*97/100 || windows > want+2 {
				t.Errorf("%d takes in %d seconds met %d windows", takes, want, windows)
			}
		})
	}
}

// A negative cost mints quota in a script that increments by it; it must not even reach the server.
func TestNegativeCostNeverLeaves(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	server.ResetStats(t)
	for _, cost := range []int64{-1, -1_000_000, -1 << 63, 0, 1_000_001, 1 << 53} {
		req := backend.Request{Key: backendtesting.Secret, Policy: backendtesting.Hourly, Cost: cost}
		if _, err := b.Take(context.Background(), req); err == nil {
			t.Errorf("a take of %d is admitted", cost)
		}
		if _, err := b.Peek(context.Background(), req); err == nil {
			t.Errorf("a peek of %d is answered", cost)
		}
	}
	for _, amount := range []int64{-1, 0, -1 << 63} {
		if err := b.Refund(context.Background(), backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), amount); err != nil {
			t.Errorf("a refund of %d: %v", amount, err)
		}
	}
	stats := server.Stats(t)
	delete(stats, "info")
	delete(stats, "config|resetstat")
	if len(stats) > 0 {
		t.Errorf("the server saw %v", stats)
	}
}
