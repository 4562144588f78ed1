package throttler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/outcome"
	"github.com/sluice-go/sluice/limit"
)

// ErrSettled is returned by a second Settle or Cancel.
var ErrSettled = errors.New("throttler: the reservation is settled")

// Reservation is a charge made before work whose cost is not known yet. Settle it once the cost is known: the rest is given
// back, and an overrun is charged. A Reservation that is never settled stays charged in full until its windows end.
//
// Charging at the start and giving back by outcome is how GitHub handles a 304 ("Lessons learned implementing a
// sharded, replicated rate limiter with Redis").
type Reservation struct {
	decision Decision
	throttle *Throttler
	cost     int64
	keys     int
	charges  []charge // that may have to be given back; empty ones for keys on an allow list
	settled  atomic.Bool
}

// Reserve charges cost as AllowN does. If the request is denied the Reservation says so, holds nothing, and settling
// it does nothing. A cost that a limit can never hold is a limit.ErrCostExceedsLimit, unless Config.ClampReserve is set. The
// backend must be a backend.Refunder.
func (t *Throttler) Reserve(ctx context.Context, key string, cost int64) (*Reservation, error) {
	if _, ok := t.backend.(backend.Refunder); !ok {
		return nil, fmt.Errorf("throttler: reserve: %w", ErrUnsupported)
	}
	var d Decision
	var c charge
	view := t.view()
	cost = t.clamp(ctx, view, cost, key)
	err := t.decide(ctx, view, key, cost, &d, &c)
	c.settler = t.commit(c.event, true)
	if err != nil {
		return nil, err
	}
	return &Reservation{decision: d, throttle: t, cost: cost, keys: 1, charges: []charge{c}}, nil
}

// ReserveAll is Reserve on several keys, as AllowAll charges them, and with its decision. Settle settles the charge of each
// key alike, SettleEach each on its own.
func (t *Throttler) ReserveAll(ctx context.Context, keys []string, cost int64) (*Reservation, error) {
	if _, ok := t.backend.(backend.Refunder); !ok {
		return nil, fmt.Errorf("throttler: reserve all: %w", ErrUnsupported)
	}
	view := t.view()
	cost = t.clamp(ctx, view, cost, keys...)
	d, charges, err := t.takeAll(ctx, view, keys, cost, true)
	if err != nil {
		return nil, err
	}
	return &Reservation{decision: d, throttle: t, cost: cost, keys: len(keys), charges: charges}, nil
}

// clamp returns the cost to reserve for each of the keys.
func (t *Throttler) clamp(ctx context.Context, view PolicyView, cost int64, keys ...string) int64 {
	if !t.cfg.ClampReserve {
		return cost
	}
	for _, key := range keys {
		p, err := t.policy(ctx, view, key, cost)
		if errors.Is(err, limit.ErrCostExceedsLimit) { // otherwise it fits, or is refused
			cost = min(cost, least(p).Quota())
		}
	}
	return cost
}

// Decision returns the decision on the reservation.
func (r *Reservation) Decision() Decision { return r.decision }

// Cost returns what was reserved for each key: the cost given to Reserve, or less with Config.ClampReserve.
func (r *Reservation) Cost() int64 { return r.cost }

// Settle makes the charge what the work has cost: it gives back cost - actual, or charges actual - cost. Actual is from 0 to
// limit.MaxCount.
//
// An overrun is charged whether or not the limits have room, in the windows in which the reservation was charged: what has
// been spent counts in full, and requests are denied until it has left. It needs a backend.Charger; without one it fails with
// ErrUnsupported, and the reservation may be settled by less. Windows that have ended are not touched; a token bucket gets
// back what has not refilled.
//
// A context that has ended settles nothing: that of a request ends when its client leaves. Use context.WithoutCancel of it, with
// a timeout, or the reservation may stay charged in full.
//
// A second Settle is an ErrSettled. After an error that certainly gave nothing back and charged nothing, Settle may be called
// again; it then settles the keys for which that is so.
func (r *Reservation) Settle(ctx context.Context, actual int64) error {
	return r.settle(ctx, func(int) int64 { return actual }, checkActual(actual))
}

// SettleEach is Settle with an actual cost for each key, in the order of ReserveAll's keys.
func (r *Reservation) SettleEach(ctx context.Context, actual []int64) error {
	var bad error
	if len(actual) != r.keys {
		bad = &limit.Error{
			Field: "actual costs", Value: strconv.Itoa(len(actual)), Bound: "must be one for each of the " + strconv.Itoa(r.keys) + " keys",
		}
	}
	for _, cost := range actual {
		bad = errors.Join(bad, checkActual(cost))
	}
	return r.settle(ctx, func(key int) int64 { return actual[key] }, bad)
}

func checkActual(actual int64) error {
	if actual >= 0 && actual <= limit.MaxCount {
		return nil
	}
	return &limit.Error{
		Field: "actual cost", Value: strconv.FormatInt(actual, 10), Bound: fmt.Sprintf("must be from 0 to %d", limit.MaxCount),
	}
}

// settle makes each key's charge what that has cost. Bad is what is wrong with the actual costs, or nil.
func (r *Reservation) settle(ctx context.Context, actual func(key int) int64, bad error) error {
	switch {
	case ctx == nil:
		return fielderrors.ErrNilContext
	case !r.decision.Allowed:
		return nil
	case bad != nil:
		return bad
	case r.throttle.closed.Load():
		return ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("throttler: settle: %w", ctx.Err())
	case r.settled.Swap(true):
		return ErrSettled
	}
	ctx, cancel := r.throttle.timeout(ctx)
	defer cancel()
	if err := r.settleCharges(ctx, actual); err != nil {
		return fmt.Errorf("throttler: settle: %w", err)
	}
	return nil
}

// settleCharges settles all charges concurrently. Those for which that certainly failed are kept for the next Settle.
func (r *Reservation) settleCharges(ctx context.Context, actual func(key int) int64) error {
	if len(r.charges) == 1 {
		err := r.throttle.settle(ctx, &r.charges[0], actual(r.charges[0].key))
		r.settled.Store(!outcome.NothingExecuted(err))
		return err
	}
	errs := make([]error, len(r.charges))
	var all sync.WaitGroup
	for i := range r.charges {
		all.Go(func() { errs[i] = r.throttle.settle(ctx, &r.charges[i], actual(r.charges[i].key)) })
	}
	all.Wait()
	var open []charge
	for i, err := range errs {
		if outcome.NothingExecuted(err) {
			open = append(open, r.charges[i])
		}
	}
	if len(open) > 0 {
		r.charges = open
		r.settled.Store(false)
	}
	return errors.Join(errs...)
}

// Cancel is Settle with an actual cost of 0: all of it is given back.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Settle(ctx, 0) }
