package router

import (
	"math/rand/v2"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluice-go/sluice/backend"
)

// The window over which a breaker looks back, moved on in steps.
const (
	breakerWindow = 10 * time.Second
	breakerStep   = time.Second
	breakerLeast  = 20 // with fewer calls in the window a ratio means nothing
)

// breaker is the circuit breaker of a node. The type parameter of gobreaker stands for a call's result; ours leave
// theirs in a variable, so that one breaker serves every operation and a take pays no allocation for it.
type breaker = gobreaker.CircuitBreaker[struct{}]

// newBreaker returns a breaker that calls onChange whenever it opens or closes. onChange runs under the breaker's
// lock: it must not call back.
func newBreaker(cfg Config, onChange func(open bool)) *breaker {
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  1, // one call finds out whether the node is back; the others need not suffer
		Interval:     breakerWindow,
		BucketPeriod: breakerStep,
		Timeout:      jitter(cfg.OpenFor), // not in step with other processes that lost the same node
		ReadyToTrip:  func(c gobreaker.Counts) bool { return tripped(c, cfg.TripAfter) },
		IsSuccessful: func(err error) bool { return kindOf(err) != backend.Unavailable },
		IsExcluded:   func(err error) bool { return err == errUnchanged || kindOf(err) == backend.Interrupted },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to != gobreaker.StateHalfOpen { // which is as good as open until the trial succeeds
				onChange(to == gobreaker.StateOpen)
			}
		},
	})
}

func tripped(c gobreaker.Counts, after int) bool {
	if after < 0 {
		return false
	}
	ended := c.TotalSuccesses + c.TotalFailures // Requests has those under way and the interrupted ones, too
	return c.ConsecutiveFailures >= uint32(after) || ended >= breakerLeast && 2*c.TotalFailures >= ended
}

// refused reports whether a breaker didn't let a call through.
func breakerRefused(err error) bool {
	return err == gobreaker.ErrOpenState || err == gobreaker.ErrTooManyRequests
}

// jitter is d, give or take a fifth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
