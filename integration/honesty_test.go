//go:build unix

package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// A tally counts the decisions of a contender by how exact they claim to be.
type tally struct{ decided, exact, admitted, admittedExact int64 }

// exhaust calls in turn until a server has denied each process, and looks at every decision.
func (seen *tally) exhaust(t *testing.T, c *contender, key string) {
	t.Helper()
	denied := make(map[int]bool)
	end := time.Now().Add(patience)
	for i := 0; len(denied) < len(c.processes); i = (i + 1) % len(c.processes) {
		if time.Now().After(end) {
			t.Fatalf("not exhausted after %v", patience)
		}
		d, err := c.decide(i, key)
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		seen.decided++
		exact := d.Guarantee == throttler.Exact
		if !exact && !errors.Is(d.Cause, backend.ErrCountsLost) && !errors.Is(d.Cause, backend.ErrEvicted) {
			t.Fatalf("%s, because %v", d.Guarantee, d.Cause)
		}
		if exact {
			seen.exact++
		}
		if d.Allowed {
			seen.admitted++
			if exact {
				seen.admittedExact++
			}
		} else if d.Source == throttler.Primary {
			denied[i] = true
		}
	}
}

// TestHonestAfterLosses looks at the very next decisions after a server has lost counts, without floors.
func TestHonestAfterLosses(t *testing.T) {
	t.Parallel()
	const processes = 3
	l := limit.PerHour(200)
	play := func(t *testing.T, id, addr string, lose func()) {
		groups, _ := groupsOf(addr)
		c := ours(t, processes, setup{groups: groups, policy: one(l), failure: throttler.FailClosed, router: router.Config{Backend: patient, TripAfter: -1}})
		var before, after tally
		before.exhaust(t, c, "user:1")
		if before.admitted != l.Max || before.exact != before.decided {
			t.Fatalf("of a server that is well: %+v", before)
		}
		lose()
		after.exhaust(t, c, "user:1")
		if after.admitted < l.Max {
			t.Errorf("%d admitted after the loss: the test shows nothing", after.admitted)
		}
		if after.exact != 0 {
			t.Errorf("%d of %d decisions after the loss are called exact", after.exact, after.decided)
		}
		shown := of(c, before.admittedExact+after.admittedExact-l.Max)
		shown.note = fmt.Sprintf("%d admitted, %d called Exact; of %d decisions after it %d",
			before.admitted+after.admitted, before.admittedExact+after.admittedExact, after.decided, after.exact)
		report(t, id, result{formula: "of what is called Exact", sluice: shown})
	}
	t.Run("restart", func(t *testing.T) {
		t.Parallel()
		s := startRedis(t)
		play(t, "restart-next", s.addr, func() { s.restart() })
	})
	t.Run("promotion", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		play(t, "promotion-next", p.addr, func() { p.failOver(t) })
	})
}

// TestHonestUnderEviction uses a limit up on a server that other keys fill, by a plain Redis without floors, and behind a Lease.
func TestHonestUnderEviction(t *testing.T) {
	t.Parallel()
	l := limit.PerHour(200)
	var shown figures
	for _, leased := range []bool{false, true} {
		s := startRedis(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru")
		counts, err := redisbackend.Open(&redis.Options{Addr: s.addr}, patient)
		if err != nil {
			t.Fatal(err)
		}
		var b backend.Backend = counts
		if leased {
			if b, err = lease.New(counts, lease.Config{Processes: 1, Batch: 20}); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { _ = b.Close() })
		th, err := throttler.New(throttler.Config{Backend: b, Policy: one(l), Failure: throttler.FailClosed})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = th.Close() })
		c := &contender{name: "Sluice", processes: []limiter{&sluice{Throttler: th}}}
		filler := make([]byte, 10_000)
		var seen tally
		for range 10 {
			seen.exhaust(t, c, "user:1")
			for range 300 {
				if err := s.client.Set(t.Context(), fmt.Sprintf("filler:%d", rand.Int()), filler, time.Hour).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if seen.admitted <= l.Max && !leased { // a Lease carries a floor
			t.Errorf("%d admitted: the test shows nothing", seen.admitted)
		}
		if over := seen.admittedExact - l.Max; over > 0 {
			t.Errorf("leased %t: %d of %d admissions are called exact, the limit is %d", leased, seen.admittedExact, seen.admitted, l.Max)
		}
		if !leased {
			shown = of(c, seen.admittedExact-l.Max)
			shown.note = fmt.Sprintf("%d admitted, %d called Exact", seen.admitted, seen.admittedExact)
		}
	}
	report(t, "evicted-plain", result{formula: "of what is called Exact", sluice: shown})
}
