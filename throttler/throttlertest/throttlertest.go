// Package throttlertest makes Throttlers for the tests of code that uses one. Each is a real *throttler.Throttler: the code under
// test needs no interface and no mock.
//
//	limits := throttlertest.Denying(30 * time.Second)
//	handler := newHandler(limits) // answers 429, Retry-After: 30
//
// [Allowing] and [Denying] always give one answer. [Scripted] gives the answers that the test lists, and records the calls. [New]
// counts in memory, by a [Clock] that the test moves.
//
// These Throttlers hold no goroutine and no connection, so a test may leave them open. They log nothing unless the Config has a
// Logger. They say nothing about Redis: docs/testing.md shows how to test with a server.
package throttlertest

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Allowing returns a Throttler that admits every request and charges nothing. Its policy is "test", 1,000,000 a minute, and all of
// it remains.
func Allowing() *throttler.Throttler {
	t, _ := Scripted(throttler.Config{}, Allow(testLimit.Max))
	return t
}

// Denying returns a Throttler that denies every request, with this RetryAfter. Its policy is that of [Allowing].
func Denying(retryAfter time.Duration) *throttler.Throttler {
	t, _ := Scripted(throttler.Config{}, Deny(retryAfter))
	return t
}

// Scripted returns a Throttler that answers by steps, and the [Script] that is its backend. Without a policy the Config gets that
// of [Allowing]; its Backend must be nil. Scripted panics if the Config is invalid.
func Scripted(cfg throttler.Config, steps ...Step) (*throttler.Throttler, *Script) {
	script := NewScript(steps...)
	checkBackend(&cfg)
	cfg.Backend = script
	if cfg.Policy.Name == "" && len(cfg.Policy.Limits) == 0 && cfg.Policies == nil {
		cfg.Policy = limit.Policy{Name: "test", Limits: []limit.Limit{testLimit}}
	}
	return open(cfg), script
}

// New returns a Throttler that counts in memory, as production code does, and the [Clock] by which its windows begin and end. The
// Config needs a policy; its Backend must be nil. New panics if the Config is invalid.
//
// Wait sleeps by the clock of the process: test it within testing/synctest, on a Throttler of throttler.New.
func New(cfg throttler.Config) (*throttler.Throttler, *Clock) {
	clock := NewClock()
	counts, err := memory.New(memory.Config{Now: clock.Now})
	if err != nil {
		panic(fmt.Sprintf("throttlertest: %v", err))
	}
	checkBackend(&cfg)
	cfg.Backend = counts
	return open(cfg), clock
}

var testLimit = limit.PerMinute(1_000_000)

func checkBackend(cfg *throttler.Config) {
	if cfg.Backend != nil {
		panic("throttlertest: Backend must be nil: throttler.New takes one")
	}
}

func open(cfg throttler.Config) *throttler.Throttler {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	t, err := throttler.New(cfg)
	if err != nil {
		panic(fmt.Sprintf("throttlertest: %v", err))
	}
	return t
}

// Clock is a time that only the test moves. Its Now is for the Config of any backend: memory.Config, redisbackend.Config. It is
// safe for concurrent use.
type Clock struct{ micros atomic.Int64 }

// NewClock returns a Clock that shows midnight of 2026-01-01 UTC, the beginning of an aligned second, minute, hour and day.
func NewClock() *Clock {
	c := new(Clock)
	c.micros.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

// Now returns the time, in UTC and to the microsecond.
func (c *Clock) Now() time.Time { return time.UnixMicro(c.micros.Load()).UTC() }

// Advance moves the clock by d, which may be negative.
func (c *Clock) Advance(d time.Duration) { c.micros.Add(d.Microseconds()) }
