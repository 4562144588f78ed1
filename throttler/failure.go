package throttler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/limit"
)

// FailurePolicy decides a request when the backend gives no verdict: it is unreachable, too slow or misconfigured, or its reply
// was lost. It never applies to bad input or to a context of the caller that ended.
//
// It does not apply to contention (backend.Contended) either: the backend works and has charged nothing, but concurrent
// requests were faster at every try, as may happen on Memcached. Contention must not admit more than the limit, so the request
// is denied, with a RetryAfter of at most 100 ms and a Source of Unknown. Only FailError returns the error.
type FailurePolicy uint8

const (
	// FailLocal lets this process decide by itself, with its share of every limit: ceil(Max / Processes). All
	// processes together admit at most Processes x ceil(Max / Processes) per window beside what the backend
	// admitted. A request that costs more than the share is denied.
	FailLocal FailurePolicy = iota

	// FailClosed denies.
	FailClosed

	// FailOpen admits, up to OpenCap for the process as a whole, and denies beyond.
	FailOpen

	// FailError returns the backend's error.
	FailError
)

func (f FailurePolicy) String() string {
	names := [...]string{"local", "closed", "open", "error"}
	if int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("failure policy(%d)", uint8(f))
}

// contendedRetryAfter bounds the wait after contention.
const contendedRetryAfter = 100 * time.Millisecond

// applyFailurePolicy decides a request on which the backend gave no verdict.
func (t *Throttler) applyFailurePolicy(ctx context.Context, req *backend.Request, cause error, d *Decision, c *charge) error {
	end := deadline.Ended(ctx)
	if end != nil && !errors.Is(cause, end) {
		cause = errors.Join(end, cause)
	}
	if errors.As(cause, new(*limit.Error)) || errors.Is(cause, ErrClosed) || end != nil || t.cfg.Failure == FailError {
		return fmt.Errorf("throttler: %w", cause)
	}
	if failed, ok := errors.AsType[*backend.Error](cause); ok && failed.Kind == backend.Contended {
		t.log.warn(ctx, t.now(), "sluice: contention at the backend, request denied", cause)
		*d = denyWithoutLimit(req, Unknown, min(t.cfg.RetryAfter, contendedRetryAfter), cause)
		return nil
	}
	t.outage(ctx, req.Policy, cause)
	upTo := c != nil && c.upTo
	if local, ok := t.fallback.request(t.cfg.Failure, *req, upTo); ok {
		var result backend.Result
		var err error
		if upTo {
			result, err = takeUpTo(ctx, t.fallback.memory, &local)
			req.Cost = local.Cost
		} else {
			result, err = t.fallback.memory.Take(ctx, local)
		}
		if err != nil {
			return fmt.Errorf("throttler: %w", errors.Join(cause, err))
		}
		result.Source, result.Guarantee, result.Cause = Fallback, Bounded, cause
		d.fill(&result)
		if c != nil && d.Allowed {
			*c = newCharge(t.fallback.memory, req, &result)
		}
	} else {
		*d = denyWithoutLimit(req, Fallback, t.cfg.RetryAfter, cause)
	}
	if !d.Allowed && t.cfg.Failure == FailLocal && t.provisionals.used.Load() {
		t.shortenRetryAfter(req, c, d)
	}
	return nil
}

// denyWithoutLimit is a denial that no limit decided.
func denyWithoutLimit(req *backend.Request, by Source, retryAfter time.Duration, cause error) Decision {
	now := time.Now()
	return Decision{
		Limit: req.Policy.Limits[0], ResetAt: now.Add(retryAfter), At: now, RetryAfter: retryAfter,
		Source: by, Guarantee: Bounded, Cause: cause,
	}
}

// fallback counts in this process. Its counts outlive an outage, so that a flapping backend does not refill them.
type fallback struct {
	memory    *memory.Memory // nil where nothing is counted
	processes int64
	openCap   limit.Policy
}

func newFallback(cfg *Config) (f fallback, err error) {
	if cfg.Failure != FailLocal && cfg.Failure != FailOpen {
		return f, nil
	}
	f.processes = int64(cfg.Processes)
	f.openCap = limit.Policy{Name: "open cap", Limits: []limit.Limit{cfg.OpenCap}} // not a valid name, so no other policy has it
	f.memory, err = memory.New(memory.Config{MaxKeys: cfg.FallbackKeys})
	return f, err
}

// request is the request to the fallback's memory; upTo is whether less than the cost may be taken. It reports false if the
// request is denied without one.
func (f *fallback) request(how FailurePolicy, req backend.Request, upTo bool) (backend.Request, bool) {
	switch how {
	case FailLocal:
		req.Policy = f.share(req.Policy)
	case FailOpen:
		req.Key, req.Policy = "all", &f.openCap
	default:
		return req, false
	}
	req.Floor = nil
	if upTo {
		req.Cost = min(req.Cost, least(req.Policy).Quota())
	}
	return req, req.Policy.CheckCost(req.Cost) == nil
}

// counted is a request as the backend of its charge counts it.
func (f *fallback) counted(how FailurePolicy, by backend.Backend, req backend.Request) backend.Request {
	if by == backend.Backend(f.memory) {
		req, _ = f.request(how, req, false)
	}
	return req
}

// share is this process's part of a policy.
func (f *fallback) share(p *limit.Policy) *limit.Policy {
	if f.processes == 1 {
		return p
	}
	part := limit.Policy{Name: p.Name, Limits: make([]limit.Limit, len(p.Limits))}
	for i, l := range p.Limits {
		if l.IsCounter() {
			part.Limits[i] = l
			continue
		}
		l.Max = ceilDiv(l.Max, f.processes)
		l.Burst = ceilDiv(l.Burst, f.processes)
		part.Limits[i] = l
	}
	return &part
}

func ceilDiv(n, by int64) int64 { return (n + by - 1) / by }
