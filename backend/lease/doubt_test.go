//go:build unix

package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit/state"
)

// failing is an instant place that can fail. What fails was not done, and says so or not.
type failing struct {
	instant
	err  error
	lost string // names the keys of which counts are missing
}

func newFailing(keys ...string) *failing {
	there := newPlace()
	for _, key := range keys {
		there.states[key] = new(state.State)
	}
	return &failing{instant: instant{there}}
}

func (f *failing) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if f.err != nil {
		return backend.Result{}, f.err
	}
	r, err := f.instant.Take(ctx, req)
	r.Lower(f.Doubt(req))
	return r, err
}

func (f *failing) Refund(context.Context, backend.Request, state.Receipt, int64) error { return f.err }
func (f *failing) Reset(context.Context, backend.Request) error                        { return f.err }

func (f *failing) Doubt(req backend.Request) error {
	if strings.Contains(f.lost, req.Key) {
		return backend.ErrCountsLost
	}
	return nil
}

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
				ls := backendtesting.NewLease(t, inner, lease.Config{Batch: batch, Recheck: time.Hour})
				p := backendtesting.Hour(3)
				first := takeKey(t, ls, p, 1, true)
				for range 2 {
					takeKey(t, ls, p, 1, true)
				}
				for range 2 {
					takeKey(t, ls, p, 1, false)
				}
				before := ls.Stats()
				inner.err = test.err
				req := backend.Request{Key: "key", Policy: p, Cost: 1}
				var err error
				if op == "refund" {
					err = ls.Refund(t.Context(), req, first.Receipt(), 1)
				} else {
					err = ls.Reset(t.Context(), req)
				}
				if !errors.Is(err, test.err) {
					t.Fatalf("%s, %s: %v", name, op, err)
				}
				for range 3 {
					r, err := ls.Take(t.Context(), req)
					if err != nil || r.Allowed || r.Source != backend.LocalDeny {
						t.Errorf("%s, %s, batches of %d: a key that is used up is allowed: %t, by %s; %v", name, op, batch, r.Allowed, r.Source, err)
					}
				}
				after := ls.Stats()
				if calls := after.Forwarded + after.Fetches - before.Forwarded - before.Fetches; (calls > 0) != test.asks {
					t.Errorf("%s, %s, batches of %d: 3 takes made %d calls", name, op, batch, calls)
				}
				inner.err = nil
				if r := takeKey(t, ls, p, 1, false); test.asks != (r.Source == backend.Primary) {
					t.Errorf("%s, %s, batches of %d: once it is well, %s denies", name, op, batch, r.Source)
				}
			}
		}
	}
}

// TestLeasesOfLostCounts: what was leased before a loss of counts that is known by now is not Exact; what is leased of keys
// that the loss doesn't concern is.
func TestLeasesOfLostCounts(t *testing.T) {
	inner := newFailing("key", "well", "new")
	ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 20, Steady: true, Processes: 1, Life: time.Hour})
	p := backendtesting.Hour(100)
	take := func(key string) backend.Result {
		return backendtesting.MustTake(t, ls, backend.Request{Key: key, Policy: p, Cost: 1})
	}
	for _, key := range []string{"key", "well"} {
		for range 3 {
			take(key)
		}
		if r := take(key); r.Source != backend.Leased || r.Guarantee != backend.Exact {
			t.Fatalf("before: %s, %s", r.Source, r.Guarantee)
		}
	}
	inner.lost = "key new"
	if r := take("new"); r.Guarantee == backend.Exact {
		t.Fatal("the reply does not tell of the loss")
	}
	for range 2 {
		if r := take("key"); r.Source != backend.Leased || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrCountsLost) {
			t.Errorf("of a key whose counts are lost: %s, %s, %v", r.Source, r.Guarantee, r.Cause)
		}
		if r := take("well"); r.Source != backend.Leased || r.Guarantee != backend.Exact {
			t.Errorf("of a key that is well: %s, %s, %v", r.Source, r.Guarantee, r.Cause)
		}
	}
	req := backend.Request{Key: "key", Policy: p, Cost: 1}
	if n := testing.AllocsPerRun(5, func() { _, _ = ls.Take(t.Context(), req) }); n != 0 {
		t.Errorf("a take that is leased makes %v allocations", n)
	}
}

// TestLeasesAfterRestart: once this process knows that the server has lost its counts, no lease of before is spent as Exact.
func TestLeasesAfterRestart(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	inner := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Timeout: backendtesting.Patient})
	ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 20, Steady: true, Processes: 1, Life: time.Hour})
	p := backendtesting.Hour(100)
	for range 3 {
		takeKey(t, ls, p, 1, true)
	}
	if r := takeKey(t, ls, p, 1, true); r.Source != backend.Leased || r.Guarantee != backend.Exact {
		t.Fatalf("before the restart: %s, %s", r.Source, r.Guarantee)
	}
	server.Restart()
	backendtesting.Await(t, "the loss is known", func() bool {
		r, err := ls.Take(t.Context(), backend.Request{Key: "other", Policy: p, Cost: 1})
		return err == nil && errors.Is(r.Cause, backend.ErrCountsLost)
	})
	if r := takeKey(t, ls, p, 1, true); r.Source != backend.Leased || r.Guarantee == backend.Exact || !errors.Is(r.Cause, backend.ErrCountsLost) {
		t.Errorf("after the loss is known: %s, %s, %v", r.Source, r.Guarantee, r.Cause)
	}
}
