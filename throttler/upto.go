package throttler

import (
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// AllowUpTo charges as much of cost as there is, and returns how much that is: for work that can be done in part, such as a
// page of results or a batch of mails. It is denied only if not even 1 fits, and RetryAfter is the time until that does. A cost
// above what a limit can ever hold counts as that much.
//
// Each charge is atomic and checked against every limit, as by AllowN. If cost doesn't fit, the reply that denied it says how
// much does, and a second call takes that. If others were faster at each of four tries, the request is denied although
// there may be some left. What a lease.Lease holds unspent is not counted as left.
func (t *Throttler) AllowUpTo(ctx context.Context, key string, cost int64) (taken int64, d Decision, err error) {
	start, view := t.now(), t.view()
	req, err := t.request(ctx, view, key, cost)
	c := charge{upTo: true}
	if errors.Is(err, limit.ErrCostExceedsLimit) {
		req.Cost, err = min(cost, least(req.Policy).Quota()), nil
	}
	err = t.resolveObserved(ctx, start, view, &req, err, &d, &c)
	switch {
	case err != nil || !d.Allowed:
	case d.Source == Listed:
		taken = cost
	default:
		taken = c.receipt.Cost
	}
	t.commit(c.event, false)
	return taken, d, err
}

// upToAttempts bounds the takes of one AllowUpTo.
const upToAttempts = 4

// takeUpTo takes as much of the request's cost as there is, and sets that to what it last tried.
func takeUpTo(ctx context.Context, b backend.Backend, req *backend.Request) (backend.Result, error) {
	for attempt := 1; ; attempt++ {
		result, err := b.Take(ctx, *req)
		if err != nil || result.Allowed || req.Cost == 1 || attempt == upToAttempts {
			return result, err
		}
		left := req.Cost
		for s := range result.All() {
			left = min(left, s.Remaining)
		}
		if left == 0 && !result.State.Empty() { // when 1 fits is known without a call
			known := result.State.Clone()
			if denied := known.Peek(req.Policy, state.Moment(req.Policy, req.Key, result.Now), 1); !denied.Allowed {
				result.Verdict = denied
				return result, nil
			}
		}
		req.Cost = max(left, 1)
	}
}

// least is the limit of a policy with the smallest quota.
func least(p *limit.Policy) *limit.Limit {
	l := &p.Limits[0]
	for i := range p.Limits {
		if p.Limits[i].Quota() < l.Quota() {
			l = &p.Limits[i]
		}
	}
	return l
}
