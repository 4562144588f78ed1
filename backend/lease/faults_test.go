package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// tardy is a distant backend whose refunds take their time, and whose replies to takes are lost on demand.
type tardy struct {
	*distant
	back  time.Duration
	loses bool
	err   error // of takes whose replies are lost
}

func (d *tardy) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	r, err := d.distant.Take(ctx, req)
	if d.loses {
		return backend.Result{}, d.err
	}
	return r, err
}

func (d *tardy) Refund(ctx context.Context, req backend.Request, r state.Receipt, n int64) error {
	select {
	case <-time.After(d.back):
	case <-ctx.Done():
		return ctx.Err()
	}
	return d.Memory.Refund(ctx, req, r, n)
}

func (d *tardy) used(t *testing.T, p *limit.Policy) int64 {
	t.Helper()
	r, err := d.Memory.Peek(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
	if err != nil {
		t.Fatal(err)
	}
	return p.Limits[0].Max - r.Binding().Remaining
}

// TestFetchRepliesLost: while replies are lost, what is charged in vain is one batch and then no more than was asked for.
func TestFetchRepliesLost(t *testing.T) {
	lost := &backend.Error{Op: "take", Kind: backend.Unavailable, MayHaveCharged: true, Err: errLost}
	refused := &backend.Error{Op: "move", Kind: backend.Unavailable, Err: errLost}
	for err, steady := range map[error]bool{lost: true, errors.Join(refused, lost): false, errLost: true} {
		synctest.Test(t, func(t *testing.T) {
			inner, p := &tardy{distant: newDistant(t, 10*time.Millisecond), err: err}, backendtesting.Hour(100_000)
			ls := backendtesting.NewLease(t, inner, lease.Config{Steady: steady})
			backendtesting.Warm(t, ls, p)
			inner.loses = true
			for range 40 {
				_, _ = ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
			}
			const batch = 100_000 / 1000
			if used := inner.used(t, p); used > 1+batch+39 {
				t.Errorf("steady %t: 40 calls of cost 1 that failed charged %d", steady, used-1)
			}
			if s := ls.Stats(); s.Lost != batch {
				t.Errorf("%+v: want a batch of %d to be told as lost", s, batch)
			}
			inner.loses = false
			for range 3 {
				backendtesting.Warm(t, ls, p)
			}
			if s := ls.Stats(); s.Fetches != 2 {
				t.Errorf("%+v: want leases again once a take has succeeded", s)
			}
		})
	}
}

// TestGivingBackIsNobodysWait: a caller who finds a lease over doesn't wait for it to go back; until it has, the key gets no
// other batch; and a view that is forgotten meanwhile loses nothing.
func TestGivingBackIsNobodysWait(t *testing.T) {
	for _, keys := range []int{1, 1000} {
		synctest.Test(t, func(t *testing.T) {
			inner, p := &tardy{distant: newDistant(t, 10*time.Millisecond), back: 100 * time.Millisecond}, backendtesting.Hour(100_000)
			ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 100, Steady: true, MaxKeys: keys})
			backendtesting.Warm(t, ls, p)
			backendtesting.Warm(t, ls, p)
			time.Sleep(4 * time.Second)
			backendtesting.Warm(t, ls, p)
			time.Sleep(time.Second + 60*time.Millisecond) // the lease is over, and the sweeper has not come
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
					defer cancel()
					r, err := ls.Take(ctx, backend.Request{Key: "key", Policy: p, Cost: 1})
					if err != nil || !r.Allowed {
						t.Errorf("a take that needs 10 ms had 30: %v", err)
					}
				})
				time.Sleep(5 * time.Millisecond)
			}
			if s := ls.Stats(); s.Stranded > 99 {
				t.Errorf("%+v: more than a batch less one is stranded", s)
			}
			_, _ = ls.Take(context.Background(), backend.Request{Key: "other", Policy: p, Cost: 1})
			all.Wait()
			time.Sleep(time.Minute)
			if s := ls.Stats(); inner.used(t, p) != 6 || s.Lost != 0 || s.Stranded != 0 {
				t.Errorf("%d charged, 6 admitted: %+v", inner.used(t, p), s)
			}
		})
	}
}

// TestResetElsewhereMintsNothing: what was leased before another process reset the key is worth nothing when it goes back.
func TestResetElsewhereMintsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p, ctx := &tardy{distant: newDistant(t, 10*time.Millisecond)}, backendtesting.Hour(100_000), context.Background()
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 100, Steady: true})
		for range 41 {
			backendtesting.Warm(t, ls, p)
		}
		if err := inner.Memory.Reset(ctx, backend.Request{Key: "key", Policy: p}); err != nil {
			t.Fatal(err)
		}
		_, _ = inner.Memory.Take(ctx, backend.Request{Key: "key", Policy: p, Cost: 500})
		if r, err := ls.Take(ctx, backend.Request{Key: "key", Policy: p, Cost: 61}); err != nil || !r.Allowed { // a fetch
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if used := inner.used(t, p); used != 561 {
			t.Errorf("561 were admitted since the reset, and %d are used", used)
		}
	})
}

// TestCloseGivesBackWhatIsDue: also what the sweeper had in hand.
func TestCloseGivesBackWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := &tardy{distant: newDistant(t, 2*time.Millisecond), back: 20 * time.Millisecond}, backendtesting.Hour(100_000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 100, Steady: true, Life: time.Second})
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				for range 3 {
					_, _ = ls.Take(context.Background(), backend.Request{Key: fmt.Sprint(i), Policy: p, Cost: 1})
				}
			})
		}
		all.Wait()
		time.Sleep(1150 * time.Millisecond) // their lives are over: the sweeper is at it
		begin := time.Now()
		if err := ls.Close(); err != nil {
			t.Fatal(err)
		}
		if s := ls.Stats(); s.Lost != 0 || s.Returned != 98*1000-s.Stranded || s.Stranded != 0 {
			t.Errorf("Close took %s: %+v", time.Since(begin), s)
		}
	})
}
