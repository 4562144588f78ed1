//go:build unix

package backend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// failing is an instant place that can fail. What fails was not done, and says so or not.
type failing struct {
	instant
	err error
}

func newFailing(keys ...string) *failing {
	there := newPlace()
	for _, key := range keys {
		there.states[key] = new(limit.State)
	}
	return &failing{instant: instant{there}}
}

func (f *failing) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if f.err != nil {
		return backend.Result{}, f.err
	}
	return f.instant.Take(ctx, req)
}

func (f *failing) Refund(context.Context, backend.Request, limit.Receipt, int64) error { return f.err }
func (f *failing) Reset(context.Context, backend.Request) error                        { return f.err }

// TestDenialsOutliveFailedRefunds: a key that is used up stays denied in an outage, whatever is given back in vain meanwhile. What
// was certainly not sent changes nothing: the denials go on without calls.
func TestDenialsOutliveFailedRefunds(t *testing.T) {
	t.Parallel()
	down := func(mayHaveCharged bool) error {
		return &backend.Error{Op: "refund", Kind: backend.Unavailable, MayHaveCharged: mayHaveCharged, Err: errLost}
	}
	for name, test := range map[string]struct {
		err  error
		asks bool // whether it may have been done, so that takes ask
	}{
		"not sent": {down(false), false}, "unsupported": {backend.ErrUnsupported, false}, "cancelled": {context.Canceled, false},
		"unknown": {down(true), true},
	} {
		for _, op := range []string{"refund", "reset"} {
			for _, batch := range []int64{-1, 2} {
				inner := newFailing("key")
				lease := newLease(t, inner, backend.LeaseConfig{Batch: batch, Recheck: time.Hour})
				p := hour(3)
				first := takeKey(t, lease, p, 1, true)
				for range 2 {
					takeKey(t, lease, p, 1, true)
				}
				for range 2 {
					takeKey(t, lease, p, 1, false)
				}
				before := lease.Stats()
				inner.err = test.err
				req := backend.Request{Key: "key", Policy: p, Cost: 1}
				var err error
				if op == "refund" {
					err = lease.Refund(t.Context(), req, first.Receipt(), 1)
				} else {
					err = lease.Reset(t.Context(), req)
				}
				if !errors.Is(err, test.err) {
					t.Fatalf("%s, %s: %v", name, op, err)
				}
				for range 3 {
					r, err := lease.Take(t.Context(), req)
					if err != nil || r.Allowed || r.Source != backend.LocalDeny {
						t.Errorf("%s, %s, batches of %d: a key that is used up is allowed: %t, by %s; %v", name, op, batch, r.Allowed, r.Source, err)
					}
				}
				after := lease.Stats()
				if calls := after.Straight + after.Fetches - before.Straight - before.Fetches; (calls > 0) != test.asks {
					t.Errorf("%s, %s, batches of %d: 3 takes made %d calls", name, op, batch, calls)
				}
				inner.err = nil
				if r := takeKey(t, lease, p, 1, false); test.asks != (r.Source == backend.Primary) {
					t.Errorf("%s, %s, batches of %d: once it is well, %s denies", name, op, batch, r.Source)
				}
			}
		}
	}
}
