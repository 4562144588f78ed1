//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// TestFrozenMemcached freezes one of three Memcached servers while more callers ask for its keys than may call a server at
// once. Keys of the others are decided as before (P15).
func TestFrozenMemcached(t *testing.T) {
	t.Parallel()
	const span, maxCalls, waiting, callers = 2 * time.Second, 32, 64, 8
	servers := make([]*testserver.Server, 3)
	addrs := make([]string, len(servers))
	for i := range servers {
		servers[i] = testserver.Memcached(t)
		addrs[i] = servers[i].Addr
	}
	open := func(addrs []string) *memcached.Memcached {
		m, err := memcached.New(addrs, memcached.Config{Timeout: patient.Timeout, MaxCalls: maxCalls})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	policy, first := one(limit.PerDay(1_000_000)), open(addrs[:1])
	made, err := throttler.New(throttler.Config{Backend: open(addrs), Policy: policy, Failure: throttler.FailClosed})
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	c := &contender{name: "Sluice", processes: []limiter{&sluice{Throttler: made}}}

	var theirs, others []string // keys of the server that will be frozen, and of the others
	for n := 0; len(theirs) < waiting || len(others) < callers; n++ {
		key := fmt.Sprintf("user:%d", n)
		await(t, "the key is taken", func() bool { _, err := c.call(0, key); return err == nil })
		there, err := first.Load(t.Context(), backend.Request{Key: key, Policy: &policy})
		if err != nil {
			t.Fatal(err)
		}
		if !there.State.Empty() {
			theirs = append(theirs, key)
		} else {
			others = append(others, key)
		}
	}
	run := func(theirs []string) (taken, refused, waited int64) {
		var ok, failed, hung atomic.Int64
		ctx, stop := context.WithTimeout(t.Context(), span)
		defer stop()
		var running sync.WaitGroup
		for i, key := range slices.Concat(theirs, others[:callers]) {
			running.Go(func() {
				for ctx.Err() == nil {
					switch _, err := c.call(0, key); {
					case i < len(theirs) && err != nil:
						hung.Add(1)
					case i < len(theirs):
					case err != nil:
						failed.Add(1)
						t.Logf("a key of a server that is well: %v", err)
					default:
						ok.Add(1)
					}
				}
			})
		}
		running.Wait()
		return ok.Load(), failed.Load(), hung.Load()
	}
	before, refusedBefore, _ := run(nil)
	servers[0].Pause()
	beside, refused, waited := run(theirs[:waiting])
	servers[0].Resume()
	if waited == 0 {
		t.Error("no call waited for the frozen server: the test shows nothing")
	}
	// A machine under load may keep a few calls waiting for as long as their deadline.
	if beside < before/10 || refused > beside/1000 {
		t.Errorf("%d takes beside a frozen server, %d without it; %d had no verdict", beside, before, refused)
	}
	shown := unlimited(c)
	shown.note = fmt.Sprintf("at the other servers %d of %d calls without a verdict, without the frozen one %d of %d",
		refused, beside+refused, refusedBefore, before+refusedBefore)
	report(t, "frozen-memcached", result{sluice: shown})
}
