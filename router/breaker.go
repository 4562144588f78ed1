package router

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluice-go/sluice/backend"
)

// The window in which a breaker counts calls, moved on in steps.
const (
	failureWindow = 10 * time.Second
	failureStep   = time.Second
	minCalls      = 20 // with fewer calls in the window a ratio means nothing
)

// newBreaker returns a breaker that calls onChange whenever it opens or closes, with the failure that opened it. onChange
// runs under the breaker's lock: it must not call back.
//
// The breaker's type parameter stands for a call's result. Callers here leave theirs in a variable, so that one breaker serves
// every operation and a take doesn't allocate.
func newBreaker(cfg Config, onChange func(open bool, failure error)) *gobreaker.CircuitBreaker[struct{}] {
	var failure error // the latest; guarded by the breaker's lock
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  1, // one call finds out whether the node is back, at no cost to others
		Interval:     failureWindow,
		BucketPeriod: failureStep,
		Timeout:      max(jitter(cfg.OpenFor), 1), // processes that lost the same node don't try it in step; 0 is a minute
		ReadyToTrip:  func(c gobreaker.Counts) bool { return tripped(c, cfg.TripAfter) },
		IsSuccessful: func(err error) bool {
			if kindOf(err) == backend.Unavailable {
				failure = err
				return false
			}
			return true
		},
		IsExcluded: func(err error) bool { return err == errNothingWritten || kindOf(err) == backend.Interrupted },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			switch to { // half open is as good as open until the trial succeeds
			case gobreaker.StateOpen:
				onChange(true, failure)
			case gobreaker.StateClosed:
				onChange(false, nil)
			}
		},
	})
}

func tripped(c gobreaker.Counts, after int) bool {
	if after < 0 {
		return false
	}
	ended := c.TotalSuccesses + c.TotalFailures // Requests includes those in progress and interrupted ones
	return int64(c.ConsecutiveFailures) >= int64(after) || ended >= minCalls && 2*int64(c.TotalFailures) >= int64(ended)
}

// breakerChanged notes and reports that the breaker opened or closed.
func (n *node) breakerChanged(open bool, failure error) {
	before := n.open.Swap(open)
	switch {
	case before == open: // a trial failed
	case open:
		n.emit(Event{Kind: BreakerOpened, Err: failure})
	default:
		n.emit(Event{Kind: BreakerClosed})
	}
}

// jitter is d, give or take a fifth, or the longest Duration.
func jitter(d time.Duration) time.Duration {
	varied := float64(d) * (0.8 + 0.4*rand.Float64())
	if varied >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(varied)
}
