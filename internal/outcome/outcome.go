// Package outcome makes and judges the errors of calls to a backend: whether a call may have been executed.
package outcome

import (
	"context"
	"errors"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// NothingExecuted reports whether the error of a take, charge or refund means that it was certainly not executed, as
// [backend.Refunder] defines it. A [*backend.Error] decides by its MayHaveCharged, whatever it wraps.
func NothingExecuted(err error) bool {
	if mayHaveRun, known := sent(err); known {
		return !mayHaveRun
	}
	if _, moved := errors.AsType[*state.MovedError](err); moved { // the key is elsewhere
		return true
	}
	if _, bad := errors.AsType[*limit.Error](err); bad { // refused before any I/O
		return true
	}
	for _, before := range [...]error{
		backend.ErrClosed, backend.ErrUnsupported, state.ErrFloorWanted, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, before) {
			return true
		}
	}
	return false
}

// Retryable reports whether nothing was executed and another try may succeed.
func Retryable(err error) bool {
	if _, known := sent(err); !known {
		_, bad := errors.AsType[*limit.Error](err)
		if bad || errors.Is(err, backend.ErrClosed) || errors.Is(err, backend.ErrUnsupported) {
			return false
		}
	}
	return NothingExecuted(err)
}

// sent reports whether any call may have run, by the outermost *backend.Error of each joined error. It is not known if there is
// none.
func sent(err error) (mayHaveRun, known bool) {
	switch e := err.(type) {
	case nil:
		return false, false
	case *backend.Error:
		return e.MayHaveCharged, true
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			may, is := sent(inner)
			mayHaveRun, known = mayHaveRun || may, known || is
		}
		return mayHaveRun, known
	}
	return sent(errors.Unwrap(err))
}

// Wrap wraps the error of a server's client in a [*backend.Error]. It returns nil, a [*backend.Error] and a redirect unchanged.
// classify returns the kind, whether the call may have run, and the error to show, which holds no key.
func Wrap(ctx context.Context, op, node string, err error,
	classify func(error) (kind backend.Kind, mayHaveRun bool, shown error)) error {
	if err == nil || state.IsRedirect(err) {
		return err
	}
	if made, already := errors.AsType[*backend.Error](err); already {
		return made
	}
	kind, mayHaveRun, err := classify(err)
	if end := deadline.Ended(ctx); kind == backend.Unavailable && end != nil {
		kind = backend.Interrupted
		if !errors.Is(err, end) {
			err = errors.Join(end, err)
		}
	}
	counts := op == "take" || op == "charge" || op == "refund" || op == "reset" || op == "grant"
	return &backend.Error{Op: op, Node: node, Kind: kind, MayHaveCharged: counts && mayHaveRun, Err: err}
}
