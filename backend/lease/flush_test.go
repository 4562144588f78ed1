package lease_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
)

// TestFlushFails: what was certainly not executed stays pending, what has an unknown outcome is never sent again and is owed
// until its window is over.
func TestFlushFails(t *testing.T) {
	for _, test := range []struct {
		fate        fate
		used        int64 // after a while
		again       string
		lost        int64
		source      backend.Source
		nextsSource backend.Source
	}{
		{refused, 1 + 24, "charge 24", 0, backend.OnCredit, backend.OnCredit},
		{lostCall, 1, "", 24, backend.Primary, backend.OnCredit},
		{lostReply, 1 + 24, "", 24, backend.Primary, backend.OnCredit},
	} {
		synctest.Test(t, func(t *testing.T) {
			inner, p := newCreditor(2*time.Millisecond), minute(100)
			inner.fate = func(n int) fate {
				if n == 0 {
					return test.fate
				}
				return executed
			}
			ls := onCredit(t, inner)
			take(t, ls, p, 1)
			take(t, ls, p, 24)
			time.Sleep(55 * time.Millisecond)
			inner.sent()
			if s := ls.Stats(); s.Debt != 24 || s.LostCharges != test.lost {
				t.Errorf("%d: %+v", test.fate, s)
			}
			if r := take(t, ls, p, 1); r.Source != backend.Primary { // all of the allowance is owed
				t.Errorf("%d: by %s", test.fate, r.Source)
			}
			time.Sleep(500 * time.Millisecond)
			if used := inner.used(t, p); used != test.used+1 {
				t.Errorf("%d: %d are used, want %d", test.fate, used, test.used+1)
			}
			if r := take(t, ls, p, 1); r.Source != test.source {
				t.Errorf("%d: by %s, want %s", test.fate, r.Source, test.source)
			}
			time.Sleep(time.Minute)
			if r := take(t, ls, p, 1); r.Source != test.nextsSource {
				t.Errorf("%d: in the next window by %s, want %s", test.fate, r.Source, test.nextsSource)
			}
			time.Sleep(time.Second)
			if s := ls.Stats(); s.Debt != 0 {
				t.Errorf("%d: in the next window %+v", test.fate, s)
			}
		})
	}
}

// TestLostDebtEnds: a lost charge is no longer owed once its windows are over, also of a key without further requests.
func TestLostDebtEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(1000)
		inner.fate = func(int) fate { return lostCall }
		ls := onCredit(t, inner)
		take(t, ls, p, 1)
		take(t, ls, p, 5)
		time.Sleep(time.Second)
		if s := ls.Stats(); s.Debt != 5 {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Minute)
		if s := ls.Stats(); s.Debt != 0 || s.LostCharges != 5 {
			t.Errorf("after the window: %+v", s)
		}
	})
}

// TestFlushSlow: one charge per key is under way, and what it carries is owed until its reply.
func TestFlushSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(400*time.Millisecond), minute(100)
		ls := onCredit(t, inner)
		take(t, ls, p, 1)
		take(t, ls, p, 12)
		time.Sleep(100 * time.Millisecond) // the flush is under way
		take(t, ls, p, 12)
		if s := ls.Stats(); s.Debt != 24 || s.Flushes != 1 || s.OnCredit != 2 {
			t.Errorf("%+v", s)
		}
		time.Sleep(200 * time.Millisecond)
		if s := ls.Stats(); s.Flushes != 1 || s.DebtAge < 290*time.Millisecond {
			t.Errorf("%+v: want one charge under way", s)
		}
		if r := take(t, ls, p, 1); r.Source != backend.Primary {
			t.Errorf("by %s", r.Source)
		}
		time.Sleep(time.Second)
		if s := ls.Stats(); s.Flushes != 2 || s.Debt != 0 || inner.used(t, p) != 26 {
			t.Errorf("%d used, %+v", inner.used(t, p), s)
		}
	})
}

// TestFlushAhead: what is owed is charged before the allowance is used up, so that no caller waits, if it is for some requests,
// and not again right after the server has refused.
func TestFlushAhead(t *testing.T) {
	for _, test := range []struct {
		name           string
		max            int64
		requests, cost int64
		fate           fate
		sent           string
	}{
		{"far from the allowance", 1000, 60, 1, executed, "take"}, // 249
		{"each time", 100, 60, 1, executed, "take, charge 22, charge 18, charge 14"},
		{"four requests", 20, 4, 1, executed, "take, charge 4"},
		{"then three", 20, 6, 1, executed, "take, charge 4"},
		{"four large ones", 1000, 4, 50, executed, "take, charge 200"},
		{"refused", 100, 24, 1, refused, "take, charge 22"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, p := newCreditor(time.Millisecond), minute(test.max)
				inner.fate = func(int) fate { return test.fate }
				ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.5, Processes: 2, Batch: -1, Flush: time.Minute})
				take(t, ls, p, 1)
				for i := range test.requests {
					if r := take(t, ls, p, test.cost); r.Source != backend.OnCredit {
						t.Fatalf("request %d is decided by %s", i, r.Source)
					}
					time.Sleep(2 * time.Millisecond)
				}
				if sent := inner.sent(); sent != test.sent {
					t.Errorf("sent %q, want %q", sent, test.sent)
				}
			})
		})
	}
}

// TestFlushAheadIsBounded: while replies are slow, not every key that nears its allowance makes a call.
func TestFlushAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(time.Second), minute(100)
		ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.5, Processes: 2, Batch: -1, Flush: time.Minute})
		var asked sync.WaitGroup
		for i := range 300 {
			req := backend.Request{Key: fmt.Sprint("key ", i), Policy: p, Cost: 1}
			asked.Go(func() {
				for range 25 { // 24 of them on credit
					backendtesting.MustTake(t, ls, req)
				}
			})
		}
		asked.Wait()
		synctest.Wait()
		if n := strings.Count(inner.sent(), "charge"); n != 256 {
			t.Errorf("%d charges are under way, want 256", n)
		}
	})
}

// TestChargeAhead: what is owed is sent ahead of a take. The scheduler may turn a few around.
func TestChargeAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(1_000_000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.001, Processes: 2, Batch: -1}) // 500 on credit
		take(t, ls, p, 1)
		const rounds = 40
		ahead := 0
		for range rounds {
			take(t, ls, p, 10)
			inner.sent()
			take(t, ls, p, 1000)
			synctest.Wait()
			if inner.sent() == "charge 10, take" {
				ahead++
			}
		}
		if ahead < rounds/2 {
			t.Errorf("%d of %d charges were ahead of the take", ahead, rounds)
		}
	})
}

// TestCreditAfterALoss: a server that has lost its counts learns them by the second charge, but for what the first one counted.
func TestCreditAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(1000)
		ls := onCredit(t, inner)
		take(t, ls, p, 500)
		inner.mu.Lock()
		clear(inner.states)
		inner.mu.Unlock()
		for _, used := range []int64{10, 510} {
			take(t, ls, p, 10)
			time.Sleep(100 * time.Millisecond)
			if got := inner.used(t, p); got != used {
				t.Errorf("%d are used, want %d", got, used)
			}
		}
	})
}

// TestRefundOfCredit: a refund reduces what is pending without a call, waits for what is under way, and goes to the server then;
// where a charge was lost it is not sent.
func TestRefundOfCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p, ctx := newCreditor(2*time.Millisecond), minute(1000), context.Background()
		ls := onCredit(t, inner)
		refund := func(r backend.Result, n int64) {
			t.Helper()
			if err := ls.Refund(ctx, backend.Request{Key: "key", Policy: p}, r.Receipt(), n); err != nil {
				t.Fatal(err)
			}
		}
		take(t, ls, p, 1)
		inner.sent()
		refund(take(t, ls, p, 10), 4)
		if s := ls.Stats(); s.Debt != 6 || inner.sent() != "" {
			t.Errorf("%+v", s)
		}
		later := take(t, ls, p, 20)
		time.Sleep(100 * time.Millisecond)
		refund(later, 20)
		if sent, used := inner.sent(), inner.used(t, p); sent != "charge 26, refund" || used != 7 {
			t.Errorf("sent %q, %d used", sent, used)
		}
		take(t, ls, p, 2)
		inner.trip = 20 * time.Millisecond
		large := take(t, ls, p, 20)
		time.Sleep(52 * time.Millisecond)
		refund(large, 20)
		if sent, used := inner.sent(), inner.used(t, p); sent != "charge 22, refund" || used != 9 {
			t.Errorf("sent %q, %d used", sent, used)
		}
		inner.fate = func(int) fate { return lostCall }
		unknown := take(t, ls, p, 5)
		time.Sleep(100 * time.Millisecond)
		inner.sent()
		refund(unknown, 5)
		if s := ls.Stats(); inner.sent() != "" || s.Debt != 0 || s.LostCharges != 5 {
			t.Errorf("%+v", s)
		}
	})
}

// TestResetOfCredit: a reset forgives what was admitted before it.
func TestResetOfCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(1000)
		ls := onCredit(t, inner)
		take(t, ls, p, 1)
		take(t, ls, p, 10)
		if err := ls.Reset(context.Background(), backend.Request{Key: "key", Policy: p}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if used := inner.used(t, p); used != 0 {
			t.Errorf("%d are used after a reset", used)
		}
	})
}

// TestCloseCharges: Close charges what is owed; of a server that is away it gives up after 5 s, and says what is lost.
func TestCloseCharges(t *testing.T) {
	for _, away := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			inner, p := newCreditor(2*time.Millisecond), minute(1000)
			if away {
				inner.fate = func(int) fate { return refused }
			}
			ls := onCredit(t, inner)
			take(t, ls, p, 1)
			take(t, ls, p, 10)
			start := time.Now()
			if err := ls.Close(); err != nil {
				t.Fatal(err)
			}
			s, took := ls.Stats(), time.Since(start)
			if away && (s.LostCharges != 10 || took < 5*time.Second || took > 6*time.Second) {
				t.Errorf("away: %+v after %s", s, took)
			}
			if !away && (s.LostCharges != 0 || s.Flushes != 1 || took != inner.trip) {
				t.Errorf("%+v after %s", s, took)
			}
			if s.Debt != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
