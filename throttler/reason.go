package throttler

import (
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Reason classifies an error, or the Cause of a Decision, as one of a few words by which metrics and traces can be grouped. It is
// empty for nil. docs/telemetry.md lists the words.
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
		{backend.ErrReplicaMayLag, "replica_may_lag"},
		{backend.ErrEvicted, "evicted"},
		{backend.ErrCountsLost, "counts_lost"},
		{backend.ErrBucketLeased, "bucket_leased"},
		{backend.ErrOnCredit, "on_credit"},
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
	if state.IsRedirect(err) { // to where this process can't follow
		return "moved"
	}
	return "other"
}
