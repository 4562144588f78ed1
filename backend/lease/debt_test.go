package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
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

// fate is what becomes of a charge.
type fate int

const (
	executed  fate = iota
	refused        // certainly not executed
	lostCall       // not executed, which nobody knows
	lostReply      // executed, which nobody knows
)

// creditor is a server a round trip away that decides by the algebra. Charges have a fate.
type creditor struct {
	trip time.Duration

	mu      sync.Mutex // guards all below
	states  map[string]*state.State
	fate    func(n int) fate
	calls   []string // takes, charges and refunds, as they are sent
	charges int

	chargedTo map[int64]int64 // by the end of the window or sub-bucket
}

func newCreditor(trip time.Duration) *creditor {
	return &creditor{trip: trip, states: make(map[string]*state.State), chargedTo: make(map[int64]int64)}
}

// travel notes a call as it is sent, and takes it to the server.
func (d *creditor) travel(call string) {
	d.mu.Lock()
	d.calls = append(d.calls, call)
	d.mu.Unlock()
	time.Sleep(d.trip / 2)
}

func (d *creditor) do(req *backend.Request, do func(*state.State, state.At)) (r backend.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.states[req.Key]
	if s == nil {
		s = new(state.State)
		d.states[req.Key] = s
	}
	at := state.Moment(req.Policy, req.Key, time.Now().UnixMicro())
	if req.Floor != nil {
		s.Join(req.Policy, at, req.Floor)
	}
	do(s, at)
	return backend.Result{Now: at.Micros, State: s.Clone(), Source: backend.Primary}
}

func (d *creditor) Take(_ context.Context, req backend.Request) (r backend.Result, err error) {
	d.travel("take")
	var verdict state.Verdict
	r = d.do(&req, func(s *state.State, at state.At) {
		verdict = s.Take(req.Policy, at, req.Cost)
		d.noteLocked(&verdict, req.Cost)
	})
	r.Verdict = verdict
	time.Sleep(d.trip / 2)
	return r, nil
}

// noteLocked notes where cost is charged.
func (d *creditor) noteLocked(v *state.Verdict, cost int64) {
	receipt := v.Receipt()
	if receipt.Cost == 0 {
		return
	}
	if end, position, _ := receipt.Charge(0); position > 0 {
		d.chargedTo[end] += cost
	}
}

func (d *creditor) Peek(_ context.Context, req backend.Request) (r backend.Result, err error) {
	var verdict state.Verdict
	r = d.do(&req, func(s *state.State, at state.At) { verdict = s.Peek(req.Policy, at, req.Cost) })
	r.Verdict = verdict
	return r, nil
}

func (d *creditor) Refund(_ context.Context, req backend.Request, receipt state.Receipt, n int64) error {
	d.travel("refund")
	d.do(&req, func(s *state.State, at state.At) { s.Refund(at, &receipt, n) })
	time.Sleep(d.trip / 2)
	return nil
}

func (d *creditor) Reset(_ context.Context, req backend.Request) error {
	d.travel("reset")
	d.do(&req, func(s *state.State, at state.At) { s.Reset(req.Policy, at) })
	time.Sleep(d.trip / 2)
	return nil
}

func (d *creditor) Charge(ctx context.Context, req backend.Request, mark state.Mark) (r backend.Result, err error) {
	d.travel(fmt.Sprint("charge ", req.Cost))
	d.mu.Lock()
	fate := executed
	if d.fate != nil {
		fate = d.fate(d.charges)
	}
	d.charges++
	d.mu.Unlock()
	if fate == executed || fate == lostReply {
		var verdict state.Verdict
		r = d.do(&req, func(s *state.State, at state.At) {
			verdict = s.Charge(req.Policy, at, mark, req.Cost)
			d.noteLocked(&verdict, req.Cost)
		})
		r.Verdict = verdict
	}
	select {
	case <-time.After(d.trip / 2):
	case <-ctx.Done():
	}
	if fate != executed {
		return backend.Result{}, &backend.Error{Op: "charge", Kind: backend.Unavailable, MayHaveCharged: fate != refused, Err: errLost}
	}
	return r, nil
}

func (d *creditor) Close() error { return nil }

func (d *creditor) sent() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.calls = nil }()
	return strings.Join(d.calls, ", ")
}

func (d *creditor) used(t *testing.T, p *limit.Policy) int64 {
	t.Helper()
	r, err := d.Peek(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
	if err != nil {
		t.Fatal(err)
	}
	return p.Limits[0].Quota() - r.Binding().Remaining
}

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
		for i := range int64(24) { // floor(99 x 0.5 / 2)
			r := take(t, ls, p, 1)
			if r.Source != backend.OnCredit || r.Guarantee != backend.Bounded || r.Binding().Remaining != 98-i || !r.Allowed {
				t.Fatalf("%d: by %s, %s, %d remain", i, r.Source, r.Guarantee, r.Binding().Remaining)
			}
			if bound, ok := errors.AsType[*lease.BoundError](r.Cause); !ok || bound.Above(p.Limits[0]) != 50 {
				t.Fatalf("the cause is %v", r.Cause)
			}
		}
		if s := ls.Stats(); s.OnCredit != 24 || s.Debt != 24 || s.Flushes != 0 {
			t.Errorf("%+v", s)
		}
		inner.sent()
		start := time.Now()
		if r := take(t, ls, p, 1); r.Source != backend.Primary {
			t.Errorf("beyond the allowance: by %s", r.Source)
		}
		if sent, took := inner.sent(), time.Since(start); !strings.Contains(sent, "charge 24") || took != inner.trip {
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
		large := take(t, ls, p, 20)
		inner.trip = 20 * time.Millisecond
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
