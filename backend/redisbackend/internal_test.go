//go:build unix

package redisbackend

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/testclock"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// TestRedisOldClock: a reading of the server's clock that is too old, or that this host may have slept since, is
// renewed before it decides; one that is only aging is not waited for.
func TestRedisOldClock(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b, err := Open(&redis.Options{Addr: server.Addr}, Config{Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	req := backend.Request{Key: "alice", Cost: 1, Policy: &limit.Policy{Limits: []limit.Limit{limit.PerHour(1000)}}}
	const wrong = 4_000_000_000_000_000 // what the server said is far from what it would say
	for name, test := range map[string]struct {
		at      time.Time
		renewed bool
	}{
		"fresh":   {time.Now(), false},
		"old":     {time.Now().Add(-clockTrusted - time.Second), true},
		"aging":   {time.Now().Add(-clockTrusted / 2), false},
		"slept":   {testclock.MonotonicAhead(time.Now(), 2*clockJump), true},
		"stepped": {testclock.MonotonicAhead(time.Now(), -2*clockJump), true},
	} {
		b.syncing.Store(true) // nothing is renewed in the background meanwhile
		b.clock.last.Store(&reading{micros: wrong, at: test.at})
		r, err := b.Take(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		if renewed := r.Now < wrong; renewed != test.renewed {
			t.Errorf("%s: decided at %d us, renewed: %t, want %t", name, r.Now, renewed, test.renewed)
		}
	}
}
