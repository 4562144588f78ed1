package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
)

func refund(t *testing.T, ls *lease.Lease, p *limit.Policy, r backend.Result, n int64) {
	t.Helper()
	if err := ls.Refund(context.Background(), backend.Request{Key: "key", Policy: p}, r.Receipt(), n); err != nil {
		t.Error(err)
	}
}

// TestRefundsAfterALostCharge: a lost charge takes refunds up to its cost; the others are the server's.
func TestRefundsAfterALostCharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(1000)
		ls := onCredit(t, inner)
		inner.fate = func(n int) fate {
			if n == 0 {
				return lostReply
			}
			return executed
		}
		take(t, ls, p, 1)
		take(t, ls, p, 5)
		time.Sleep(100 * time.Millisecond) // lost
		for range 10 {
			r := take(t, ls, p, 20)
			time.Sleep(100 * time.Millisecond)
			refund(t, ls, p, r, 20)
		}
		if used := inner.used(t, p); used != 1+5+5 { // the lost charge was executed, and 5 were taken from it
			t.Errorf("%d are used", used)
		}
		if s := ls.Stats(); s.Debt != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestRefundsBesideARenewal: the receipt of an earlier offer may be for what is charged already. It doesn't take what is
// pending from later ones, whose refunds the server would not know.
func TestRefundsBesideARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(20*time.Millisecond), minute(1000)
		ls := onCredit(t, inner)
		take(t, ls, p, 1)
		charged := take(t, ls, p, 5)
		for ls.Stats().Flushes == 0 {
			time.Sleep(time.Millisecond)
		}
		beside := take(t, ls, p, 5)
		time.Sleep(inner.trip)
		later := take(t, ls, p, 5)
		if s := ls.Stats(); s.OnCredit != 3 || s.Flushes != 1 {
			t.Fatalf("%+v", s)
		}
		for _, r := range []backend.Result{charged, beside, later} {
			refund(t, ls, p, r, 5)
		}
		time.Sleep(time.Second)
		if used := inner.used(t, p); used != 1 {
			t.Errorf("%d are used, 1 was kept", used)
		}
	})
}

// TestRefundOfABucketForgivesNoLoss: the receipt of a bucket does not say which charge it is for, so a lost one stays owed.
func TestRefundOfABucketForgivesNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newCreditor(2 * time.Millisecond)
		p := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.TokenBucket(100, time.Second, 100)}}
		ls := onCredit(t, inner)
		old := take(t, ls, p, 25)
		time.Sleep(10 * time.Second) // refilled
		inner.fate = func(int) fate { return lostCall }
		take(t, ls, p, 1)
		take(t, ls, p, 20)
		time.Sleep(60 * time.Millisecond)
		before := ls.Stats()
		refund(t, ls, p, old, 25)
		if s := ls.Stats(); s.Debt != before.Debt || s.LostCharges != s.Debt || s.Debt == 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestRefundOfABusyKey: a refund to a key that owes at all times goes to the server once its own charge is made.
func TestRefundOfABusyKey(t *testing.T) {
	for _, l := range []limit.Limit{
		limit.PerMinute(10_000_000).Aligned(), limit.TokenBucket(1_000_000, time.Minute, 1_000_000),
	} {
		t.Run(l.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, p := newCreditor(2*time.Millisecond), &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
				ls := onCredit(t, inner)
				take(t, ls, p, 1)
				stop := make(chan struct{})
				defer close(stop)
				go func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(500 * time.Microsecond):
							_, _ = ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
						}
					}
				}()
				for range 20 {
					r := take(t, ls, p, 50_000)
					time.Sleep(100 * time.Millisecond)
					start := time.Now()
					refund(t, ls, p, r, 50_000)
					if took := time.Since(start); took > 4*inner.trip {
						t.Errorf("took %s", took)
					}
				}
				time.Sleep(100 * time.Millisecond)
				if l.Algorithm != limit.Bucket {
					if used := inner.used(t, p); used > 10_000 {
						t.Errorf("%d are used of what was refunded", used)
					}
				}
			})
		})
	}
}

// TestRefundWhileTheServerIsAway: a refund of what can't be charged fails.
func TestRefundWhileTheServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newCreditor(2 * time.Millisecond)
		p := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.TokenBucket(100, time.Minute, 100)}}
		ls := onCredit(t, inner)
		inner.fate = func(int) fate { return refused }
		take(t, ls, p, 1)
		r := take(t, ls, p, 5)
		err := ls.Refund(context.Background(), backend.Request{Key: "key", Policy: p}, r.Receipt(), 5)
		if sent := inner.sent(); err == nil || sent != "take, charge 5" {
			t.Errorf("%v, sent %q", err, sent)
		}
		if s := ls.Stats(); s.Debt != 5 {
			t.Errorf("%+v", s)
		}
		inner.mu.Lock()
		inner.fate = nil
		inner.mu.Unlock()
	})
}

// TestRefundFromBeforeAReset: a receipt from before a reset gives back nothing that was admitted since.
func TestRefundFromBeforeAReset(t *testing.T) {
	for _, l := range []limit.Limit{limit.PerMinute(1000).Aligned(), limit.Sliding(1000, time.Minute, time.Second)} {
		t.Run(l.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, p := newCreditor(2*time.Millisecond), &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
				ls := onCredit(t, inner)
				old := take(t, ls, p, 100)
				owed := take(t, ls, p, 50)
				if err := ls.Reset(context.Background(), backend.Request{Key: "key", Policy: p}); err != nil {
					t.Fatal(err)
				}
				take(t, ls, p, 1)
				young := take(t, ls, p, 150)
				refund(t, ls, p, old, 100)
				refund(t, ls, p, owed, 50)
				refund(t, ls, p, young, 10)
				time.Sleep(100 * time.Millisecond)
				if used := inner.used(t, p); used != 141 || young.Source != backend.OnCredit || owed.Source != backend.OnCredit {
					t.Errorf("%d are used of 141 admitted since the reset, by %s and %s", used, owed.Source, young.Source)
				}
			})
		})
	}
}
