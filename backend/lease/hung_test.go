package lease_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit/state"
)

// hung is a creditor that answers no charges of keys with a prefix until a call times out.
type hung struct{ *creditor }

func (h hung) Charge(ctx context.Context, req backend.Request, m state.Mark) (backend.Result, error) {
	if req.Key[0] == 'h' {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return backend.Result{}, &backend.Error{Op: "charge", Kind: backend.Unavailable, Err: errLost}
	}
	return h.creditor.Charge(ctx, req, m)
}

// TestHungServer: while the calls to a server that hangs take up all room, a take or a refund still sends what its own key owes.
func TestHungServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := hung{newCreditor(2 * time.Millisecond)}, minute(1000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.5, Processes: 2, Batch: -1, MaxKeys: 10_000})
		use := func(key string) {
			backendtesting.MustTake(t, ls, backend.Request{Key: key, Policy: p, Cost: 1})
		}
		const hang, others = 4000, 100
		for range 2 {
			for i := range others {
				use(fmt.Sprint("key", i))
			}
			for i := range hang {
				use(fmt.Sprint("h", i))
			}
		}
		time.Sleep(200 * time.Millisecond)
		for i := range others {
			key := fmt.Sprint("key", i)
			r := backendtesting.MustTake(t, ls, backend.Request{Key: key, Policy: p, Cost: 20})
			start := time.Now()
			if err := ls.Refund(context.Background(), backend.Request{Key: key, Policy: p}, r.Receipt(), 21); err != nil {
				t.Fatal(err)
			}
			large := backendtesting.MustTake(t, ls, backend.Request{Key: key, Policy: p, Cost: 300})
			if took := time.Since(start); took > 5*inner.trip || large.Source != backend.Primary {
				t.Fatalf("%s took %s, by %s", key, took, large.Source)
			}
			time.Sleep(10 * time.Millisecond)
			if used, err := inner.Peek(context.Background(), backend.Request{Key: key, Policy: p, Cost: 1}); err != nil ||
				used.Binding().Remaining != 1000-2-300 {
				t.Fatalf("%s: %d remain, %v", key, used.Binding().Remaining, err)
			}
		}
	})
}

// TestHungServerAmongOthers: what is owed to other servers is charged while thousands of charges to one server hang.
func TestHungServerAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := hung{newCreditor(2 * time.Millisecond)}, minute(1000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.5, Processes: 2, Batch: -1, MaxKeys: 10_000})
		const hang, others = 4000, 1000
		for range 2 {
			for i := range hang {
				backendtesting.MustTake(t, ls, backend.Request{Key: fmt.Sprint("h", i), Policy: p, Cost: 1})
				if i%(hang/others) == 0 {
					backendtesting.MustTake(t, ls, backend.Request{Key: fmt.Sprint("key", i), Policy: p, Cost: 1})
				}
			}
		}
		time.Sleep(1500 * time.Millisecond)
		late := 0
		for i := 0; i < hang; i += hang / others {
			used, err := inner.Peek(context.Background(), backend.Request{Key: fmt.Sprint("key", i), Policy: p, Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
			if used.Binding().Remaining != 1000-2 {
				late++
			}
		}
		if late > 0 {
			t.Errorf("%d of %d keys are not charged yet", late, others)
		}
	})
}

// Refund hangs like Charge.
func (h hung) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, n int64) error {
	if req.Key[0] == 'h' {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return &backend.Error{Op: "refund", Kind: backend.Unavailable, MayHaveCharged: true, Err: errLost}
	}
	return h.creditor.Refund(ctx, req, receipt, n)
}

// TestReturnsBesideAHungServer: what is left of leases goes back to other servers while hundreds of returns to one hang, on
// Close, too.
func TestReturnsBesideAHungServer(t *testing.T) {
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			inner, p := hung{newCreditor(2 * time.Millisecond)}, backendtesting.Hour(1000)
			ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 10, Steady: true, Processes: 1, MaxKeys: 10_000})
			const hang, others = 1000, 50
			var all sync.WaitGroup
			use := func(key string) {
				for range 2 {
					backendtesting.MustTake(t, ls, backend.Request{Key: key, Policy: p, Cost: 1})
				}
			}
			for i := range hang {
				all.Go(func() { use(fmt.Sprint("h", i)) })
			}
			for i := range others {
				all.Go(func() { use(fmt.Sprint("key", i)) })
			}
			all.Wait()
			if closes {
				if err := ls.Close(); err != nil {
					t.Fatal(err)
				}
			} else {
				time.Sleep(7 * time.Second) // 5 s of Life, and some
			}
			late := 0
			for i := range others {
				r, err := inner.Peek(context.Background(), backend.Request{Key: fmt.Sprint("key", i), Policy: p, Cost: 1})
				if err != nil {
					t.Fatal(err)
				}
				if r.Binding().Remaining != 1000-2 {
					late++
				}
			}
			if late > 0 {
				t.Errorf("closes %t: %d of %d leases are not returned: %+v", closes, late, others, ls.Stats())
			}
		})
	}
}
