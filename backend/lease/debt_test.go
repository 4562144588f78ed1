package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func minute(max int64) *limit.Policy {
	return &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerMinute(max).Aligned()}}
}

// onCredit is a Lease without batches that may owe half of what remains, divided by two.
func onCredit(t testing.TB, inner backend.Backend) *lease.Lease {
	return backendtesting.NewLease(t, inner, lease.Config{Slack: 0.5, Processes: 2, Batch: -1})
}

func take(t testing.TB, b backend.Backend, p *limit.Policy, cost int64) backend.Result {
	t.Helper()
	return backendtesting.MustTake(t, b, backend.Request{Key: "key", Policy: p, Cost: cost})
}

// TestOnCredit: the first take of a key is a call; then a share of what remains is admitted without one and charged within Flush;
// beyond it takes go to the server, behind what is owed.
func TestOnCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(100)
		ls := onCredit(t, inner)
		if r := take(t, ls, p, 1); r.Source != backend.Primary || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrOnCredit) {
			t.Errorf("the first is decided by %s, %s, %v", r.Source, r.Guarantee, r.Cause)
		}
		for i := range int64(21) { // of floor(99 x 0.5 / 2)
			r := take(t, ls, p, 1)
			if r.Source != backend.OnCredit || r.Guarantee != backend.Bounded || r.Binding().Remaining != 98-i || !r.Allowed {
				t.Fatalf("%d: by %s, %s, %d remain", i, r.Source, r.Guarantee, r.Binding().Remaining)
			}
			if bound, ok := errors.AsType[*lease.BoundError](r.Cause); !ok || bound.Above(p.Limits[0]) != 50 {
				t.Fatalf("the cause is %v", r.Cause)
			}
		}
		if s := ls.Stats(); s.OnCredit != 21 || s.Debt != 21 || s.Flushes != 0 {
			t.Errorf("%+v", s)
		}
		inner.sent()
		start := time.Now()
		if r := take(t, ls, p, 4); r.Source != backend.Primary {
			t.Errorf("beyond the allowance: by %s", r.Source)
		}
		if sent, took := inner.sent(), time.Since(start); !strings.Contains(sent, "charge 21") || took != inner.trip {
			t.Errorf("sent %q in %s", sent, took)
		}
		synctest.Wait() // for the reply to the charge
		if r := take(t, ls, p, 5); r.Source != backend.OnCredit {
			t.Errorf("after the reply: %s", r.Source)
		}
		time.Sleep(60 * time.Millisecond)
		if s := ls.Stats(); inner.sent() != "charge 5" || s.Debt != 0 || s.DebtAge != 0 || inner.used(t, p) != 31 {
			t.Errorf("%d used, %+v", inner.used(t, p), s)
		}
		for range 200 {
			take(t, ls, p, 1)
		}
		time.Sleep(60 * time.Millisecond)
		if inner.used(t, p) != 100 || take(t, ls, p, 1).Source != backend.LocalDeny {
			t.Errorf("%d used", inner.used(t, p))
		}
	})
}

// TestPeekBesideCredit: what a server would admit is as Bounded as what it admits: processes may owe.
func TestPeekBesideCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(10)
		ls := onCredit(t, inner)
		req := backend.Request{Key: "key", Policy: p, Cost: 1}
		if r, err := ls.Peek(context.Background(), req); err != nil || !r.Allowed || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrOnCredit) {
			t.Errorf("allowed %t, %s, %v, %v", r.Allowed, r.Guarantee, r.Cause, err)
		}
		take(t, inner, p, 10)
		if r, err := ls.Peek(context.Background(), req); err != nil || r.Allowed || r.Guarantee != backend.Exact {
			t.Errorf("allowed %t, %s, %v, %v", r.Allowed, r.Guarantee, r.Cause, err)
		}
	})
}

// TestNoSlack: with Slack 0 nothing is on credit, nor Bounded.
func TestNoSlack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(100)
		ls := backendtesting.NewLease(t, inner, lease.Config{Least: 10, Batch: -1})
		for range 20 {
			if r := take(t, ls, p, 1); r.Source != backend.Primary || r.Guarantee != backend.Exact {
				t.Fatalf("%s, %s", r.Source, r.Guarantee)
			}
		}
		if strings.Contains(inner.sent(), "charge") {
			t.Error("something was charged")
		}
	})
}

// TestCreditAcrossWindows: what was admitted in a window is charged to it, also after it has ended; a new aligned window begins
// on credit, a window that starts at its first request with a call; a third window waits for the flush of the first.
func TestCreditAcrossWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newCreditor(2 * time.Millisecond)
		p := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(100, 20*time.Millisecond).Aligned(), limit.PerMinute(1000).Aligned()}}
		ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.5, Processes: 2, Batch: -1, Flush: time.Minute})
		time.Sleep(5 * time.Millisecond)
		take(t, ls, p, 1)
		for _, want := range []backend.Source{backend.OnCredit, backend.OnCredit, backend.Primary} {
			if r := take(t, ls, p, 3); r.Source != want {
				t.Errorf("decided by %s, want %s", r.Source, want)
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond)
		if used := inner.used(t, &limit.Policy{Name: "p", Limits: p.Limits[1:]}); used != 1+3+3 {
			t.Errorf("%d of a minute are used: the first segment should be charged, ahead of the take", used)
		}
		floating := &limit.Policy{Name: "q", Limits: []limit.Limit{limit.Fixed(100, 50*time.Millisecond)}}
		for _, want := range []backend.Source{backend.Primary, backend.OnCredit} {
			if r := take(t, ls, floating, 1); r.Source != want {
				t.Errorf("in a window: by %s, want %s", r.Source, want)
			}
		}
		time.Sleep(60 * time.Millisecond)
		if r := take(t, ls, floating, 1); r.Source != backend.Primary {
			t.Errorf("a new window was opened by %s", r.Source)
		}
	})
}

// TestCreditOfABucket: a bucket is charged for the moment of the admission, which is not long ago.
func TestCreditOfABucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newCreditor(2 * time.Millisecond)
		p := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.TokenBucket(100, 100*time.Second, 100)}}
		ls := onCredit(t, inner)
		for _, wait := range []time.Duration{time.Second, 10 * time.Second} {
			take(t, ls, p, 1)
			time.Sleep(wait)
			if r := take(t, ls, p, 20); r.Source != backend.OnCredit {
				t.Errorf("by %s", r.Source)
			}
			time.Sleep(100 * time.Millisecond)
			if used := inner.used(t, p); used != 20 {
				t.Errorf("%d are used of a bucket that was full", used)
			}
			time.Sleep(100 * time.Second)
		}
	})
}

// TestLeast: each process may admit Least on credit where its share is less, but no more than remains.
func TestLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(10)
		ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.01, Processes: 2, Batch: -1, Least: 3})
		take(t, ls, p, 1)
		for i, want := range []backend.Source{backend.OnCredit, backend.OnCredit, backend.OnCredit, backend.Primary} {
			if r := take(t, ls, p, 1); r.Source != want {
				t.Errorf("%d: by %s, want %s", i, r.Source, want)
			}
		}
		time.Sleep(100 * time.Millisecond)
		take(t, ls, p, 2)
		take(t, ls, p, 1)
		time.Sleep(100 * time.Millisecond) // 2 remain
		if r := take(t, ls, p, 3); r.Allowed {
			t.Errorf("3 of 2 that remain are admitted by %s", r.Source)
		}
		if r := take(t, ls, p, 2); r.Source != backend.OnCredit {
			t.Errorf("2 that remain: by %s", r.Source)
		}
	})
}

// TestDebtIsKept: keys that owe are not evicted; if all do, other keys are decided by the server.
func TestDebtIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(1000)
		inner.fate = func(int) fate { return refused }
		const most = 32
		ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.5, Processes: 2, Batch: -1, MaxKeys: most})
		owing := make(map[int]bool)
		for range 3 {
			for i := range 10 * most {
				for range 2 {
					r := backendtesting.MustTake(t, ls, backend.Request{Key: fmt.Sprint(i), Policy: p, Cost: 1})
					if owing[i] && r.Source != backend.OnCredit {
						t.Fatalf("key %d, which owes, was decided by %s", i, r.Source)
					}
					owing[i] = owing[i] || r.Source == backend.OnCredit
				}
			}
		}
		if s := ls.Stats(); s.Debt != s.OnCredit || s.Keys > most || len(owing) == 0 {
			t.Fatalf("%d keys owe, %+v", len(owing), s)
		}
	})
}

// TestCreditConfig: bad settings are refused with the field and the value.
func TestCreditConfig(t *testing.T) {
	m := backendtesting.NewMemory(t, memory.Config{})
	for field, cfg := range map[string]lease.Config{
		"lease: Slack":     {Slack: 1, Processes: 2},
		"lease: Processes": {Slack: 0.1},
		"lease: Flush":     {Slack: 0.1, Processes: 2, Flush: time.Microsecond},
		"lease: Least":     {Slack: 0.1, Processes: 2, Least: -1},
	} {
		_, err := lease.New(m, cfg)
		if all := fielderrors.All(err); len(all) != 1 || all[0].Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := lease.New(m, lease.Config{Slack: math.NaN(), Processes: 2}); err == nil {
		t.Error("NaN is no Slack")
	}
	if _, err := lease.New(noCharges{m}, lease.Config{Slack: 0.1, Processes: 2}); err == nil {
		t.Error("a backend that can't charge can't be owed")
	}
}

// noCharges is a backend that can't charge.
type noCharges struct{ inner *memory.Memory }

func (n noCharges) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	return n.inner.Take(ctx, req)
}

func (n noCharges) Refund(ctx context.Context, req backend.Request, r state.Receipt, amount int64) error {
	return n.inner.Refund(ctx, req, r, amount)
}
func (n noCharges) Close() error { return n.inner.Close() }

// TestCreditAllocations: a decision on credit allocates nothing.
func TestCreditAllocations(t *testing.T) {
	inner := newCreditor(0)
	for _, l := range []limit.Limit{limit.PerHour(1 << 40), limit.Sliding(1<<40, time.Hour, time.Minute), limit.TokenBucket(1<<30, time.Second, 1<<40)} {
		p := &limit.Policy{Name: l.String(), Limits: []limit.Limit{l}}
		ls := backendtesting.NewLease(t, inner, lease.Config{Slack: 0.5, Processes: 2, Batch: -1, Flush: time.Minute})
		req := backend.Request{Key: "key", Policy: p, Cost: 1}
		take(t, ls, p, 1)
		take(t, ls, p, 1)
		if r := take(t, ls, p, 1); r.Source != backend.OnCredit {
			t.Fatalf("%s: by %s", l, r.Source)
		}
		ctx := context.Background()
		if n := testing.AllocsPerRun(100, func() { _, _ = ls.Take(ctx, req) }); n != 0 {
			t.Errorf("%s: %v allocations", l, n)
		}
	}
}

// TestCreditAfterSeed: what this process has seeded is part of what it knows.
func TestCreditAfterSeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newCreditor(2*time.Millisecond), minute(100)
		ls := onCredit(t, inner)
		for range 2 {
			take(t, ls, p, 1)
		}
		req := backend.Request{Key: "key", Policy: p}
		var seeded state.State
		seeded.Take(p, state.Moment(p, req.Key, time.Now().UnixMicro()), 100)
		if err := ls.Seed(context.Background(), req, seeded); err != nil {
			t.Fatal(err)
		}
		if r := take(t, ls, p, 1); r.Allowed {
			t.Errorf("admitted by %s", r.Source)
		}
	})
}
