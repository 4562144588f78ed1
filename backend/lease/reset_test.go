package lease_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
)

// TestLeaseReset: a reset drops what this process has leased or is fetching; it is not spent as well.
func TestLeaseReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p, ctx := newDistant(t, 100*time.Millisecond), backendtesting.Hour(1000), context.Background()
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 20, Steady: true, Processes: 1})
		req := backend.Request{Key: "key", Policy: p, Cost: 1}
		takeKey(t, ls, p, 1, true)
		takeKey(t, ls, p, 1, true)
		if s := ls.Stats(); s.Stranded != 19 {
			t.Fatalf("%+v", s)
		}
		if err := ls.Reset(ctx, req); err != nil {
			t.Fatal(err)
		}
		takeKey(t, ls, p, 1000-19, true)
		if s := ls.Stats(); s.Stranded != 0 {
			t.Errorf("after a reset: %+v", s)
		}
		time.Sleep(10 * time.Second) // what was leased has gone back, and was worth nothing
		takeKey(t, ls, p, 20, false)
		takeKey(t, ls, p, 19, true)
	})
}

// TestResetDuringFetch: what a fetch brings that a reset has overtaken is not leased, for it was given back.
func TestResetDuringFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newDistant(t, 100*time.Millisecond), backendtesting.Hour(1000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 20, Steady: true, Processes: 1})
		takeKey(t, ls, p, 1, true)
		var all sync.WaitGroup
		all.Go(func() { takeKey(t, ls, p, 1, true) }) // a fetch
		time.Sleep(75 * time.Millisecond)             // it is charged, and the reply is under way
		if err := ls.Reset(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1}); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		time.Sleep(time.Second) // it has gone back, and was worth nothing
		if s := ls.Stats(); s.Fetches != 1 || s.Stranded != 0 || s.Leased != 0 {
			t.Errorf("%+v", s)
		}
		takeKey(t, ls, p, 1000, true)
		takeKey(t, ls, p, 1, false)
	})
}

// slowly is a creditor whose resets are slow on their way there, and whose replies to takes of cost 2 are slow on their way back.
type slowly struct {
	*creditor
	reset, reply time.Duration
	away         bool
}

func (s *slowly) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if s.away {
		return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Unavailable, Err: errLost}
	}
	r, err := s.creditor.Take(ctx, req)
	if req.Cost == 2 {
		time.Sleep(s.reply)
	}
	return r, err
}

func (s *slowly) Reset(ctx context.Context, req backend.Request) error {
	time.Sleep(s.reset)
	return s.creditor.Reset(ctx, req)
}

// TestFetchDuringReset: what is fetched while a reset is on its way may be given back by that, and is not spent after it.
func TestFetchDuringReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := &slowly{creditor: newCreditor(2 * time.Millisecond), reset: 100 * time.Millisecond}, minute(1000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 20, Steady: true, Processes: 1})
		take(t, ls, p, 1)
		var all sync.WaitGroup
		all.Go(func() {
			if err := ls.Reset(context.Background(), backend.Request{Key: "key", Policy: p}); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(50 * time.Millisecond)
		take(t, ls, p, 1)
		if s := ls.Stats(); s.Stranded != 19 {
			t.Errorf("%+v: want a batch", s)
		}
		all.Wait()
		admitted := 0
		for range 1100 {
			if take(t, ls, p, 1).Allowed {
				admitted++
			}
		}
		if admitted > 1000 {
			t.Errorf("%d of 1000 were admitted after the reset", admitted)
		}
	})
}

// TestReplyFromBeforeAReset: a reply that a reset has overtaken denies nothing.
func TestReplyFromBeforeAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := &slowly{creditor: newCreditor(20 * time.Millisecond), reply: 100 * time.Millisecond}, minute(10)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: -1, Recheck: time.Hour})
		take(t, ls, p, 8)
		var all sync.WaitGroup
		all.Go(func() { take(t, ls, p, 2) }) // its reply is late
		time.Sleep(30 * time.Millisecond)
		if err := ls.Reset(context.Background(), backend.Request{Key: "key", Policy: p}); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		for range 5 {
			all.Go(func() {
				if r := take(t, ls, p, 1); !r.Allowed {
					t.Errorf("denied by %s after the reset", r.Source)
				}
			})
		}
		all.Wait()
	})
}

// TestOutageAfterAReset: a key that was reset is not denied for what it had used: the failure policy decides.
func TestOutageAfterAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := &slowly{creditor: newCreditor(2 * time.Millisecond)}, minute(10)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: -1, Recheck: time.Hour})
		req := backend.Request{Key: "key", Policy: p, Cost: 1}
		take(t, ls, p, 10)
		if r := take(t, ls, p, 1); r.Allowed || r.Source != backend.LocalDeny {
			t.Fatalf("allowed %t by %s", r.Allowed, r.Source)
		}
		if err := ls.Reset(context.Background(), req); err != nil {
			t.Fatal(err)
		}
		inner.away = true
		if r, err := ls.Take(context.Background(), req); !errors.Is(err, errLost) {
			t.Errorf("allowed %t by %s, %v", r.Allowed, r.Source, err)
		}
	})
}
