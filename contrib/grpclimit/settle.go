package grpclimit

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sluice-go/sluice/throttler"
)

// settleTimeout bounds what is given back after the handler: it goes on when the client has gone.
const settleTimeout = time.Second

// charges is what one call was charged, key by key.
type charges struct{ reservations []*throttler.Reservation }

// reserve charges every key, or none. It is what Throttler.AllowAll is, with charges that can be given back.
func reserve(
	ctx context.Context, t *throttler.Throttler, keys []string, cost int64,
) (throttler.Decision, *charges, error) {
	held := &charges{reservations: make([]*throttler.Reservation, 0, len(keys))}
	var least, weakest throttler.Decision
	for i, key := range keys {
		r, err := t.Reserve(ctx, key, cost)
		if err != nil {
			return throttler.Decision{}, nil, errors.Join(err, held.giveBack(ctx))
		}
		d := r.Decision()
		if !d.Allowed {
			// What can't be given back stays charged until its windows end; the denial stands all the same.
			_ = held.giveBack(ctx)
			return d, nil, nil
		}
		held.reservations = append(held.reservations, r)
		if i == 0 || d.Remaining < least.Remaining {
			least = d
		}
		if i == 0 || d.Guarantee > weakest.Guarantee {
			weakest = d
		}
	}
	least.Guarantee, least.Cause = weakest.Guarantee, weakest.Cause
	return least, held, nil
}

// giveBack gives all of it back, also for a client who has gone.
func (c *charges) giveBack(ctx context.Context) error {
	if len(c.reservations) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	var errs []error
	for _, r := range c.reservations {
		if err := r.Cancel(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// settle gives a call's charges back if its outcome says so.
func (i *Interceptor) settle(ctx context.Context, c Call, held *charges, code codes.Code) {
	if held == nil || !i.cfg.Refund(code) {
		return
	}
	if err := held.giveBack(ctx); err != nil && i.cfg.OnError != nil {
		i.cfg.OnError(ctx, c, err)
	}
}
