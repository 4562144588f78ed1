package throttler

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// charge is what an admitted take can give back.
type charge struct {
	backend backend.Backend
	req     backend.Request // as the caller made it
	receipt state.Receipt
	key     int     // of a Reservation: index of the key
	event   *Event  // of the take, until commit or free; nil without an Observer
	settler Settler // after commit; nil if there is nothing to call

	upTo      bool  // before a take: whether less than its cost may be taken
	ownCalls  int32 // before a take: how many of the calls on the key belong to the same AllowAll
	temporary bool  // after a denial: whether a provisional charge may be the reason
}

// decide decides one request. It fills in an empty decision and, if c isn't nil, an empty charge, which the caller commits or
// frees: both are large, and passing them by value takes longer than deciding.
func (t *Throttler) decide(ctx context.Context, view PolicyView, key string, cost int64, d *Decision, c *charge) error {
	if t.observer == nil {
		policy, err := t.policy(ctx, view, key, cost)
		return t.resolve(ctx, view, &backend.Request{Key: key, Policy: policy, Cost: cost}, err, d, c)
	}
	start := t.now()
	policy, err := t.policy(ctx, view, key, cost)
	return t.resolveObserved(ctx, start, view, &backend.Request{Key: key, Policy: policy, Cost: cost}, err, d, c)
}

// resolveObserved is resolve with the observer, if there is one, called around it.
func (t *Throttler) resolveObserved(
	ctx context.Context, start time.Duration, view PolicyView, req *backend.Request, err error, d *Decision, c *charge,
) error {
	if t.observer == nil || ctx == nil {
		return t.resolve(ctx, view, req, err, d, c)
	}
	ctx, e := t.startEvent(ctx, OpTake, start, view, req)
	err = t.resolve(ctx, view, req, err, d, c)
	e.Decision, e.Cost = *d, req.Cost
	t.endEvent(ctx, e, err)
	if c != nil {
		c.event = e
	} else {
		t.commit(e, false)
	}
	return err
}

// resolve answers a request, of which err is the problem so far.
func (t *Throttler) resolve(ctx context.Context, view PolicyView, req *backend.Request, err error, d *Decision, c *charge) error {
	switch {
	case t.listed(view, req.Key, err, d):
		return nil
	case err != nil:
		*d = refusal(req.Policy, err)
		return err
	}
	call, cancel := t.timeout(ctx)
	defer cancel()
	var result backend.Result
	if c != nil && c.upTo {
		result, err = takeUpTo(call, t.backend, req)
	} else {
		result, err = t.backend.Take(call, *req)
	}
	req.Trace = nil // it ends here: the charge may be given back much later
	if err != nil {
		return t.applyFailurePolicy(ctx, req, err, d, c)
	}
	if t.outages.on.Load() {
		t.endOutage(ctx, req.Policy, result.Source)
	}
	d.fill(&result)
	switch {
	case !d.Allowed:
		if t.provisionals.used.Load() {
			t.shortenRetryAfter(req, c, d)
		}
	case c != nil:
		*c = newCharge(t.backend, req, &result)
	}
	return nil
}

// newCharge is the charge of an admitted request.
func newCharge(by backend.Backend, req *backend.Request, result *backend.Result) charge {
	return charge{backend: by, req: *req, receipt: result.Receipt()}
}

// refusal is the decision beside an error about bad input. It matters where the cost can never fit.
func refusal(p *limit.Policy, err error) Decision {
	if !errors.Is(err, limit.ErrCostExceedsLimit) {
		return Decision{}
	}
	return Decision{Limit: *least(p), RetryAfter: limit.Never}
}

// settle gives back what a charge is above the actual cost, or charges what that is above it.
func (t *Throttler) settle(ctx context.Context, c *charge, actual int64) error {
	if over := actual - c.req.Cost; over > 0 {
		return t.overrun(ctx, c, over)
	}
	return t.giveBack(ctx, c, c.req.Cost-actual)
}

// overrun charges amount beside a charge.
func (t *Throttler) overrun(ctx context.Context, c *charge, amount int64) error {
	if c.receipt.Cost == 0 {
		return nil
	}
	req, e := c.req, (*Event)(nil)
	req.Cost = amount
	if t.observer != nil {
		ctx, e = t.startEvent(ctx, OpCharge, t.now(), nil, &req)
	}
	_, err := backend.Charge(ctx, c.backend, t.fallback.counted(t.cfg.Failure, c.backend, req), c.receipt.Mark())
	if err == nil && c.settler != nil {
		c.settler.Overrun(amount)
	}
	if e != nil {
		t.endEvent(ctx, e, err)
		e.free()
	}
	return err
}

// giveBack gives amount of a charge back.
func (t *Throttler) giveBack(ctx context.Context, c *charge, amount int64) error {
	if amount == 0 || c.receipt.Cost == 0 {
		return nil
	}
	var e *Event
	if t.observer != nil {
		refund := backend.Request{Key: c.req.Key, Policy: c.req.Policy, Cost: amount}
		ctx, e = t.startEvent(ctx, OpRefund, t.now(), nil, &refund)
	}
	err := backend.Refund(ctx, c.backend, t.fallback.counted(t.cfg.Failure, c.backend, c.req), c.receipt, amount)
	if err == nil && c.settler != nil {
		c.settler.GivenBack(amount)
	}
	if e != nil {
		t.endEvent(ctx, e, err)
		e.free()
	}
	return err
}
