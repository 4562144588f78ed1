package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/outcome"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func TestNothingExecuted(t *testing.T) {
	t.Parallel()
	failed := func(may bool, err error) error { return &backend.Error{Op: "refund", MayHaveCharged: may, Err: err} }
	bad, moved, lost := &limit.Error{Field: "key"}, &state.MovedError{}, errors.New("lost")
	for name, test := range map[string]struct {
		err            error
		nothing, retry bool
	}{
		"none":                               {nil, false, false},
		"unknown":                            {lost, false, false},
		"not sent":                           {failed(false, lost), true, true},
		"unknown outcome":                    {failed(true, lost), false, false},
		"unknown outcome, closed":            {failed(true, backend.ErrClosed), false, false},
		"unknown outcome, input":             {failed(true, bad), false, false},
		"unknown outcome, redirected":        {failed(true, moved), false, false},
		"unknown outcome, cancelled":         {fmt.Errorf("refund: %w", failed(true, context.Canceled)), false, false},
		"not sent, closed":                   {failed(false, backend.ErrClosed), true, true},
		"joined, one of unknown outcome":     {errors.Join(failed(false, lost), failed(true, lost)), false, false},
		"joined, one was certainly not sent": {errors.Join(failed(false, lost), backend.ErrClosed), true, true},
		"input":                              {bad, true, false},
		"closed":                             {fmt.Errorf("refund: %w", backend.ErrClosed), true, false},
		"unsupported":                        {backend.ErrUnsupported, true, false},
		"redirected":                         {moved, true, true},
		"floor wanted":                       {state.ErrFloorWanted, true, true},
		"cancelled":                          {context.Canceled, true, true},
		"overdue":                            {context.DeadlineExceeded, true, true},
	} {
		if got := outcome.NothingExecuted(test.err); got != test.nothing {
			t.Errorf("%s: nothing refunded %t, want %t", name, got, test.nothing)
		}
		if got := outcome.Retryable(test.err); got != test.retry {
			t.Errorf("%s: retryable %t, want %t", name, got, test.retry)
		}
	}
}
