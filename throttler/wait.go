package throttler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// Wait repeats AllowN until the request passes, and sleeps for RetryAfter after each denial; after one by the failure policy for
// at most Config.RetryAfter, because the backend may be back long before the end of a window. The request is charged once. If
// the context's deadline is before the next chance, Wait returns the denial and a context.DeadlineExceeded at once. For a
// key on a deny list the error is ErrDenyListed, after Close it is ErrClosed. Wait is not fair: a later caller may pass first.
func (t *Throttler) Wait(ctx context.Context, key string, cost int64) (Decision, error) {
	for {
		d, err := t.AllowN(ctx, key, cost)
		if err != nil || d.Allowed {
			return d, err
		}
		if d.Source == Listed {
			return d, ErrDenyListed
		}
		if d.RetryAfter == limit.Never {
			return d, fmt.Errorf("throttler: the request can never pass: %w", limit.ErrCostExceedsLimit)
		}
		wait := d.RetryAfter
		if d.Source == Fallback {
			wait = min(wait, t.cfg.RetryAfter)
		}
		spread := min(wait/10, 20*time.Millisecond)
		if deadline, ok := ctx.Deadline(); ok {
			slack := time.Until(deadline) - wait
			if slack <= 0 {
				return d, fmt.Errorf("throttler: the request could pass in %s at the earliest: %w",
					wait, context.DeadlineExceeded)
			}
			spread = min(spread, slack/2)
		}
		// The spread keeps callers that wait for the same reset from retrying in the same instant.
		timer := time.NewTimer(max(wait+rand.N(spread+1), time.Millisecond))
		select {
		case <-timer.C:
		case <-t.done:
			timer.Stop()
			return d, ErrClosed
		case <-ctx.Done():
			timer.Stop()
			return d, fmt.Errorf("throttler: %w", ctx.Err())
		}
	}
}
