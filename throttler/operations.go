package throttler

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Operation is a call to a Throttler that decides no request.
type Operation uint8

// The operations.
const (
	OpPeek Operation = iota
	OpUsage
	OpReset
)

func (o Operation) String() string {
	names := [...]string{"peek", "usage", "reset"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("operation(%d)", uint8(o))
}

// OperationObserver is an Observer that is told of each Peek, Usage and Reset, too.
type OperationObserver interface {
	Operation(ctx context.Context, data OperationData)
}

// OperationData is an operation that was tried.
type OperationData struct {
	Operation Operation
	Policy    *limit.Policy // not to be changed or kept
	Decision  Decision      // of a Peek
	Err       error         // why it failed; nil otherwise
	Duration  time.Duration
}

// Peek looks without charging: Allowed says whether a request of cost 1 would pass. It may be answered by a replica
// that lags behind. During an outage it fails: the failure policy decides requests only.
func (t *Throttler) Peek(ctx context.Context, key string) (Decision, error) {
	peeker, ok := t.backend.(backend.Peeker)
	if !ok {
		return Decision{}, fmt.Errorf("throttler: peek: %w", ErrUnsupported)
	}
	var d Decision
	err := t.operate(ctx, OpPeek, key, &d, func(ctx context.Context, live *policies, req backend.Request) error {
		if t.listed(live, key, nil, &d) {
			return nil
		}
		result, err := peeker.Peek(ctx, req)
		if err != nil {
			return fmt.Errorf("throttler: %w", err)
		}
		d.fill(&result)
		return nil
	})
	return d, err
}

// Usage is the cost that was charged to key and not given back within the last interval, from the sliding limit
// with the finest precision whose window covers it; it is blurred by that precision, and may come from a replica.
// Where no sliding limit covers the interval it fails with a *limit.Error. The idea is Chris O'Hara's ("Rate
// limiting with Redis").
func (t *Throttler) Usage(ctx context.Context, key string, interval time.Duration) (used int64, err error) {
	loader, ok := t.backend.(backend.Loader)
	if !ok {
		return 0, fmt.Errorf("throttler: usage: %w", ErrUnsupported)
	}
	err = t.operate(ctx, OpUsage, key, nil, func(ctx context.Context, _ *policies, req backend.Request) error {
		var nothing state.State
		if _, _, ok := nothing.Usage(req.Policy, state.At{}, interval); !ok {
			return &limit.Error{Field: "interval", Value: interval.String(),
				Bound: "must be positive and within the window of a sliding limit of the policy"}
		}
		snapshot, err := loader.Load(ctx, req)
		if err != nil {
			return fmt.Errorf("throttler: %w", err)
		}
		used, _, _ = snapshot.State.Usage(req.Policy, state.At{Micros: snapshot.Now}, interval)
		return nil
	})
	return used, err
}

// Reset gives a key its full quota back, under the policy that it has now; in the background under its shadow, too.
// OnNearLimit isn't told of the key again in a window in which it was told before.
func (t *Throttler) Reset(ctx context.Context, key string) error {
	resetter, ok := t.backend.(backend.Resetter)
	if !ok {
		return fmt.Errorf("throttler: reset: %w", ErrUnsupported)
	}
	return t.operate(ctx, OpReset, key, nil, func(ctx context.Context, live *policies, req backend.Request) error {
		if err := resetter.Reset(ctx, req); err != nil {
			return fmt.Errorf("throttler: %w", err)
		}
		t.resetShadow(live, &req)
		if t.fallback.memory == nil {
			return nil
		}
		return t.fallback.memory.Reset(ctx, req)
	})
}

// operate checks the input of an operation, bounds its call and tells of it. D is what the call may fill in; nil for
// nothing.
func (t *Throttler) operate(
	ctx context.Context, op Operation, key string, d *Decision, call func(context.Context, *policies, backend.Request) error,
) error {
	start := time.Now()
	live := t.live()
	req, err := t.request(ctx, live, key, 1)
	if err == nil {
		bounded, cancel := t.timeout(ctx)
		err = call(bounded, live, req)
		cancel()
	}
	if t.observers.operations == nil || ctx == nil {
		return err
	}
	data := OperationData{Operation: op, Policy: req.Policy, Err: err, Duration: time.Since(start)}
	if d != nil {
		data.Decision = *d
	}
	t.observers.operations.Operation(ctx, data)
	return err
}
