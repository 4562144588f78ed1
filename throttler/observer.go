package throttler

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Observer is told of every request that a Throttler decides; package otelthrottle has one on OpenTelemetry. It is called
// on the caller's goroutine, and so must be quick and safe for concurrent use. Keys are not told: they are personal data,
// and there is no end of them. An Observer that is also a [RefundObserver], an [OutageObserver], an
// [OutageEndObserver], an [OperationObserver] or a [ShadowObserver] is told of that, too.
//
// Bad input is told of, too, unless it is a nil context. AllowAll and ReserveAll are told of key by key; of what they refuse
// without a charge, one key stands for all. An ErrUnsupported is no request.
//
// The manner is that of the tracers of github.com/jackc/pgx.
type Observer interface {
	// DecisionStart is called before a request is decided. The context that it returns is used for the rest of the call
	// and given to DecisionEnd. A Trace, if it returns one, must be empty; it is filled in with the way that the request
	// takes, which costs allocations. Nil: nothing is.
	DecisionStart(ctx context.Context, data DecisionStartData) (context.Context, *Trace)

	// DecisionEnd is called after each DecisionStart.
	DecisionEnd(ctx context.Context, data DecisionEndData)
}

// DecisionStartData is a request that is to be decided.
type DecisionStartData struct {
	Policy *limit.Policy // not to be changed or kept
	Cost   int64
}

// DecisionEndData is a request that was decided, or wasn't.
type DecisionEndData struct {
	Policy   *limit.Policy // not to be changed or kept
	Cost     int64
	Decision Decision
	Err      error         // nil if there is a verdict, a denial too
	Duration time.Duration // of the whole call, PolicyFor included
	Trace    *Trace        // what DecisionStart returned
}

// RefundObserver is an Observer that is told when some of a charge is given back: by Settle and Cancel, and by AllowAll
// for the keys that had admitted what another one denied.
type RefundObserver interface {
	Refund(ctx context.Context, data RefundData)
}

// RefundData is a refund that was tried.
type RefundData struct {
	Policy   *limit.Policy // not to be changed or kept
	Amount   int64
	Err      error // why it failed; nil otherwise
	Duration time.Duration
}

// Trace is the way that a request takes through the backends; see package backend.
type Trace = backend.Trace

// Call is one call to a server; see package backend.
type Call = backend.Call

// LeaseStats is what a lease.Lease has done; see package backend.
type LeaseStats = lease.Stats

// DualStats is what a dual.Dual has done; see package backend.
type DualStats = dual.Stats

// Reason is the reason that an error, or the Cause of a Decision, stands for, as one of some twenty words: what metrics
// and traces can be grouped by. It is empty for nil.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	if failed, ok := errors.AsType[*backend.Error](err); ok && !errors.Is(err, backend.ErrNotHandedOver) {
		return failed.Kind.String()
	}
	for _, known := range [...]struct {
		err  error
		word string
	}{
		{limit.ErrCostExceedsLimit, "cost_exceeds_limit"},
		{backend.ErrNotHandedOver, "not_handed_over"},
		{lease.ErrBucketLeased, "bucket_leased"},
		{backend.ErrReplicaMayLag, "replica_may_lag"},
		{backend.ErrEvicted, "evicted"},
		{backend.ErrCountsLost, "counts_lost"},
		{ErrClosed, "closed"},
		{ErrUnsupported, "unsupported"},
		{state.ErrCorruptState, "corrupt"},
		{context.Canceled, "interrupted"},
		{context.DeadlineExceeded, "interrupted"},
	} {
		if errors.Is(err, known.err) {
			return known.word
		}
	}
	if _, ok := errors.AsType[*limit.Error](err); ok {
		return "invalid"
	}
	return "other"
}

// observers are those of a Throttler; nil for none.
type observers struct {
	decisions Observer
	refunds   RefundObserver
	outages   OutageObserver
	shadows   ShadowObserver

	outageEnds OutageEndObserver
	operations OperationObserver
}

func newObservers(o Observer) (all observers) {
	all.decisions = o
	all.refunds, _ = o.(RefundObserver)
	all.outages, _ = o.(OutageObserver)
	all.shadows, _ = o.(ShadowObserver)
	all.outageEnds, _ = o.(OutageEndObserver)
	all.operations, _ = o.(OperationObserver)
	return all
}

// giveBack gives amount of a charge back.
func (t *Throttler) giveBack(ctx context.Context, c *charge, amount int64) error {
	if amount == 0 || c.receipt.Cost == 0 {
		return nil
	}
	if t.observers.refunds == nil {
		return t.refund(ctx, c, amount)
	}
	start := time.Now()
	err := t.refund(ctx, c, amount)
	t.observers.refunds.Refund(ctx, RefundData{
		Policy: c.req.Policy, Amount: amount, Err: err, Duration: time.Since(start),
	})
	return err
}
