package throttler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Peek is PeekN with a cost of 1.
func (t *Throttler) Peek(ctx context.Context, key string) (Decision, error) {
	return t.PeekN(ctx, key, 1)
}

// PeekN looks without charging: Allowed is whether AllowN with this cost would pass, Remaining what is left now. A replica that
// lags may answer it. In an outage it fails: the failure policy decides requests only. A cost that a limit can never hold is a
// limit.ErrCostExceedsLimit.
func (t *Throttler) PeekN(ctx context.Context, key string, cost int64) (Decision, error) {
	var d Decision
	err := t.operate(ctx, OpPeek, key, cost, &d, func(ctx context.Context, view PolicyView, req backend.Request) error {
		if t.listed(view, key, nil, &d) {
			return nil
		}
		result, err := backend.Peek(ctx, t.backend, req)
		if err != nil {
			return fmt.Errorf("throttler: %w", err)
		}
		d.fill(&result)
		return nil
	})
	return d, err
}

// Usage returns the cost that was charged to key within the last interval and not given back, by the sliding limit with the
// finest precision whose window covers the interval. It is blurred by that precision, and a replica may answer it. If no
// sliding limit covers the interval it fails with a *limit.Error, and if the key has moved to where this process can't follow,
// with a *state.MovedError. The idea is Chris O'Hara's ("Rate limiting with Redis").
func (t *Throttler) Usage(ctx context.Context, key string, interval time.Duration) (used int64, err error) {
	err = t.operate(ctx, OpUsage, key, 1, nil, func(ctx context.Context, _ PolicyView, req backend.Request) error {
		var nothing state.State
		if _, _, ok := nothing.Usage(req.Policy, state.At{}, interval); !ok {
			return &limit.Error{Field: "interval", Value: interval.String(),
				Bound: "must be positive and within the window of a sliding limit of the policy"}
		}
		snapshot, err := backend.Load(ctx, t.backend, req)
		if err != nil {
			return fmt.Errorf("throttler: %w", err)
		}
		if err := errors.Join(snapshot.Moved(), snapshot.Lacks); state.IsRedirect(err) {
			return fmt.Errorf("throttler: %w", err)
		}
		used, _, _ = snapshot.State.Usage(req.Policy, state.At{Micros: snapshot.Now}, interval)
		return nil
	})
	return used, err
}

// Reset gives a key its full quota back, under the policy that it has now.
func (t *Throttler) Reset(ctx context.Context, key string) error {
	return t.operate(ctx, OpReset, key, 1, nil, func(ctx context.Context, _ PolicyView, req backend.Request) error {
		if err := backend.Reset(ctx, t.backend, req); err != nil {
			return fmt.Errorf("throttler: %w", err)
		}
		if t.cfg.Failure != FailLocal { // what FailOpen counts is of all keys together
			return nil
		}
		req.Policy = t.fallback.share(req.Policy)
		return t.fallback.memory.Reset(ctx, req)
	})
}

// Grant lets a key spend up to extra more until its windows end, under each limit of the policy that it has now: what support
// staff give a customer who is blocked. It gives back what was used, so the key never has more than its quota left: for more than
// that raise the policy's Max, which applies at once. Of a sliding window the latest use is given back, which would have counted
// longest; of a token bucket at most its burst. A window admits at most Max and what was granted in it. Extra is from 1 to
// limit.MaxCount. The backend must be a backend.Granter.
func (t *Throttler) Grant(ctx context.Context, key string, extra int64) error {
	return t.operate(ctx, OpGrant, key, extra, nil, func(ctx context.Context, _ PolicyView, req backend.Request) error {
		if err := backend.Grant(ctx, t.backend, req, extra); err != nil {
			return fmt.Errorf("throttler: %w", err)
		}
		if t.cfg.Failure != FailLocal { // what FailOpen counts is of all keys together
			return nil
		}
		req.Policy = t.fallback.share(req.Policy)
		return t.fallback.memory.Grant(ctx, req, ceilDiv(extra, t.fallback.processes))
	})
}

// operate checks the input of an operation, bounds its call and calls the observer. D is the decision that the call makes, or nil.
func (t *Throttler) operate(
	ctx context.Context, op Operation, key string, cost int64, d *Decision,
	call func(context.Context, PolicyView, backend.Request) error,
) error {
	start, view := t.now(), t.view()
	checked := int64(1) // what is given back is not bounded by a quota
	if op == OpPeek {
		checked = cost
	}
	req, err := t.request(ctx, view, key, checked)
	req.Cost = cost
	var e *Event
	if t.observer != nil && ctx != nil {
		ctx, e = t.startEvent(ctx, op, start, view, &req)
	}
	if err == nil {
		bounded, cancel := t.timeout(ctx)
		err = call(bounded, view, req)
		cancel()
	} else if d != nil && t.listed(view, key, err, d) {
		err = nil
	} else if d != nil {
		*d = refusal(req.Policy, err)
	}
	if e != nil {
		if d != nil {
			e.Decision = *d
		}
		t.endEvent(ctx, e, err)
		e.free()
	}
	return err
}
