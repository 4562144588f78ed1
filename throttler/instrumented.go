package throttler

import (
	"context"
	"time"

	"github.com/sluice-go/sluice/backend"
)

// decideInstrumented is decide for a Throttler that has more to do than to decide: observers to tell, lists to look at. The two have
// a few lines in common: as one function, or with these in a third, they took a request that nobody attends to 12 ns more,
// a tenth of what a leased one takes (BenchmarkAllow).
func (t *Throttler) decideInstrumented(ctx context.Context, live *policies, key string, cost int64, d *Decision, c *charge) error {
	if t.observers.decisions != nil {
		return t.decideObserved(ctx, live, key, cost, d, c)
	}
	policy, err := t.policy(ctx, live, key, cost)
	req := backend.Request{Key: key, Policy: policy, Cost: cost}
	err = t.resolve(ctx, live, &req, err, d, c)
	t.count(key, policy, d, err)
	return err
}

// decideObserved is decideInstrumented under the eyes of an observer.
func (t *Throttler) decideObserved(ctx context.Context, live *policies, key string, cost int64, d *Decision, c *charge) error {
	start := time.Now()
	policy, err := t.policy(ctx, live, key, cost)
	if ctx == nil { // there is nothing to tell of it by
		t.count(key, policy, d, err)
		return err
	}
	ctx, trace := t.observers.decisions.DecisionStart(ctx, DecisionStartData{Policy: policy, Cost: cost})
	req := backend.Request{Key: key, Policy: policy, Cost: cost, Trace: trace}
	err = t.resolve(ctx, live, &req, err, d, c)
	t.count(key, policy, d, err)
	t.observers.decisions.DecisionEnd(ctx, DecisionEndData{
		Policy: policy, Cost: cost, Decision: *d, Err: err, Duration: time.Since(start), Trace: trace,
	})
	return err
}

// refuse tells of a request that err keeps from being decided, and is the decision beside it.
func (t *Throttler) refuse(ctx context.Context, start time.Time, req *backend.Request, err error) Decision {
	d := refusal(req.Policy, err)
	t.count(req.Key, req.Policy, &d, err)
	if o := t.observers.decisions; o != nil && ctx != nil {
		ctx, trace := o.DecisionStart(ctx, DecisionStartData{Policy: req.Policy, Cost: req.Cost})
		o.DecisionEnd(ctx, DecisionEndData{
			Policy: req.Policy, Cost: req.Cost, Decision: d, Err: err, Duration: time.Since(start), Trace: trace,
		})
	}
	return d
}

// resolve finds a decision on a request, of which err says what is wrong with it.
func (t *Throttler) resolve(
	ctx context.Context, live *policies, req *backend.Request, err error, d *Decision, c *charge,
) error {
	switch {
	case t.listed(live, req.Key, err, d):
		return nil
	case err != nil:
		*d = refusal(req.Policy, err)
		return err
	}
	return t.takeTraced(ctx, live, *req, d, c)
}

// takeTraced decides a good request that is on no list, and lets its trace be filled in.
func (t *Throttler) takeTraced(ctx context.Context, live *policies, req backend.Request, d *Decision, c *charge) error {
	call, cancel := t.timeout(ctx)
	defer cancel()
	result, err := t.backend.Take(call, req)
	req.Trace = nil // it ends here; a charge may be given back much later
	if err != nil {
		return t.fallBack(ctx, req.Key, req.Policy, req.Cost, err, d, c)
	}
	if t.outages.on.Load() {
		t.endOutage(ctx, req.Policy, result.Source)
	}
	d.fill(&result)
	switch {
	case !d.Allowed:
		if t.provisionals.used.Load() {
			t.shortenRetryAfter(&req, c, d)
		}
	case c != nil: // it may go back at once: whoever keeps it calls commit
		*c = newCharge(t.backend, &req, &result)
	default:
		t.enqueueShadow(live, &req, nil)
		t.near.record(&req, d)
	}
	return nil
}

// commit tells shadows, and of near limits, of a charge that take has made, once it is sure that it stands.
func (t *Throttler) commit(live *policies, d *Decision, c *charge) {
	if c.backend == nil || d.Source == Fallback { // the backend has not admitted it
		return
	}
	t.enqueueShadow(live, &c.req, c)
	t.near.record(&c.req, d)
}
