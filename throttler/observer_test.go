package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// notes is an observer that keeps what it is called with.
type notes struct {
	mu         sync.Mutex // guards all below
	trace      bool       // whether to ask for a trace
	started    []throttler.Event
	ended      []throttler.Event
	refunds    []throttler.Event
	operations []throttler.Event
	outages    []throttler.Outage
	ends       []throttler.Outage // outages that are over
}

type noted struct{}

func (n *notes) Start(ctx context.Context, e *throttler.Event) context.Context {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.Op != throttler.OpTake {
		return ctx
	}
	n.started = append(n.started, *e)
	if !n.trace {
		return ctx
	}
	e.Trace = new(backend.Trace)
	return context.WithValue(ctx, noted{}, len(n.started))
}

func (n *notes) End(ctx context.Context, e *throttler.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch e.Op {
	case throttler.OpTake:
		if number, _ := ctx.Value(noted{}).(int); n.trace && number != len(n.started) {
			panic("another context than Start returned")
		}
		n.ended = append(n.ended, *e)
	case throttler.OpRefund:
		n.refunds = append(n.refunds, *e)
	default:
		n.operations = append(n.operations, *e)
	}
}

func (n *notes) Outage(_ context.Context, o throttler.Outage) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o.Over {
		n.ends = append(n.ends, o)
	} else {
		n.outages = append(n.outages, o)
	}
}

// last is the last decision observed, which must be what the caller got, but for the verdict.
func (n *notes) last(t *testing.T, d throttler.Decision, err error) throttler.Event {
	t.Helper()
	if len(n.ended) == 0 || len(n.ended) != len(n.started) {
		t.Fatalf("%d decisions began, %d ended", len(n.started), len(n.ended))
	}
	last, first := n.ended[len(n.ended)-1], n.started[len(n.started)-1]
	if first.Policy != last.Policy || first.Cost != last.Cost {
		t.Errorf("began as %+v, ended as %+v", first, last)
	}
	if last.Duration <= 0 || (last.Trace != nil) != n.trace {
		t.Errorf("took %s, trace %v", last.Duration, last.Trace)
	}
	if got := fmt.Sprint(last.Decision, last.Err); got != fmt.Sprint(d, err) {
		t.Errorf("observed %s, the caller got %v %v", got, d, err)
	}
	return last
}

func TestObserver(t *testing.T) {
	t.Parallel()
	for _, trace := range []bool{false, true} {
		book, b := &notes{trace: trace}, newSpy(t, nil)
		tier := limit.Policy{Name: "tier", Limits: []limit.Limit{limit.PerHour(3)}}
		th := throttlertesting.New(t, throttler.Config{
			Backend: carrying{b, t, trace}, Policy: throttlertesting.One(limit.PerHour(100)), Observer: book, Processes: 2,
			PolicyFor: func(context.Context, string) *limit.Policy { return &tier },
		})
		for _, test := range []struct {
			cost    int64
			fail    error
			allowed bool
			source  throttler.Source
			is      error
		}{
			{2, nil, true, throttler.Local, nil},
			{2, nil, false, throttler.Local, nil},
			{4, nil, false, throttler.Source(0), limit.ErrCostExceedsLimit},
			{2, throttlertesting.Outage(false), true, throttler.Fallback, nil},
			{2, throttlertesting.Outage(false), false, throttler.Fallback, nil},
			{2, backend.ErrClosed, false, throttler.Source(0), backend.ErrClosed},
		} {
			b.failWith(func(string) error { return test.fail })
			d, err := th.AllowN(t.Context(), "k", test.cost)
			last := book.last(t, d, err)
			if d.Allowed != test.allowed || d.Source != test.source || !errors.Is(err, test.is) {
				t.Errorf("%+v: %+v, %v", test, d, err)
			}
			if last.Cost != test.cost || test.cost < 4 && last.Policy != &tier {
				t.Errorf("%+v: observed %+v", test, last)
			}
		}
		if len(book.outages) != 1 || book.outages[0].Failure != throttler.FailLocal || book.outages[0].Policy != &tier ||
			throttler.Reason(book.outages[0].Cause) != "unavailable" {
			t.Errorf("observed the outages %+v, want one", book.outages)
		}
		var none context.Context
		if _, err := th.Allow(none, "k"); err == nil || len(book.started) != 6 {
			t.Errorf("no context: %v, %d decisions", err, len(book.started))
		}
	}
}

// carrying wants each take to carry a trace, or none, and the observer's context.
type carrying struct {
	*spy
	t     *testing.T
	trace bool
}

func (c carrying) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if (req.Trace != nil) != c.trace || (ctx.Value(noted{}) != nil) != c.trace {
		c.t.Errorf("a take with trace %v and context %v", req.Trace, ctx)
	}
	if req.Trace != nil {
		req.Trace.Group, req.Trace.Node, req.Trace.Role = "group", "node", backend.Primary
	}
	return c.spy.Take(ctx, req)
}

func TestObserverOfRefunds(t *testing.T) {
	t.Parallel()
	book, b := &notes{}, newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(4)), Observer: book})
	r, err := th.Reserve(t.Context(), "k", 4)
	if err != nil {
		t.Fatal(err)
	}
	b.failWith(func(call string) error {
		if call == "refund" {
			return throttlertesting.Outage(false)
		}
		return nil
	})
	if err := r.Settle(t.Context(), 1); err == nil {
		t.Fatal("no error of a refund that failed")
	}
	b.failWith(nil)
	if err := r.Settle(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if d, err := th.AllowAll(t.Context(), []string{"other", "k"}, 2); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if d, err := th.AllowN(t.Context(), "empty", 4); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if d, err := th.AllowAll(t.Context(), []string{"other", "empty"}, 2); err != nil || d.Allowed { // nothing is known of it
		t.Fatal(d, err)
	}
	var got []string
	for _, r := range book.refunds {
		if r.Policy.Name != "test" || r.Duration <= 0 {
			t.Errorf("%+v", r)
		}
		got = append(got, fmt.Sprint(r.Cost, " ", throttler.Reason(r.Err)))
	}
	if want := []string{"3 unavailable", "3 ", "2 "}; !slices.Equal(got, want) {
		t.Errorf("refunds %q, want %q", got, want)
	}
	if len(book.ended) != 6 { // the reservation's, that of AllowN, and one for each key
		t.Errorf("%d decisions, want 6", len(book.ended))
	}
}

// What the failure policy admitted is settled under the key and the policy of the request, not those that the fallback counts.
func TestObserverOfFallbackSettlements(t *testing.T) {
	t.Parallel()
	for _, failure := range []throttler.FailurePolicy{throttler.FailLocal, throttler.FailOpen} {
		book, b := &notes{}, newSpy(t, nil)
		cfg := throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(40)), Observer: book, Failure: failure}
		if failure == throttler.FailOpen {
			cfg.OpenCap = limit.PerHour(100)
		}
		th := throttlertesting.New(t, cfg)
		b.failWith(func(string) error { return throttlertesting.Outage(false) })
		for _, actual := range []int64{1, 3} {
			r, err := th.Reserve(t.Context(), "k", 2)
			if err != nil || !r.Decision().Allowed {
				t.Fatal(r, err)
			}
			if err := r.Settle(t.Context(), actual); err != nil {
				t.Fatal(err)
			}
		}
		settled := append(slices.Clone(book.refunds), book.operations...)
		if len(settled) != 2 {
			t.Fatalf("%v: %+v, want a refund and an overrun", failure, settled)
		}
		for _, e := range settled {
			if e.Key != "k" || e.Policy != book.ended[0].Policy || e.Cost != 1 {
				t.Errorf("%v: %v of %d for %q under %v", failure, e.Op, e.Cost, e.Key, e.Policy)
			}
		}
		want := int64(40/10 - 1 - 3)
		if failure == throttler.FailOpen {
			want = 100 - 1 - 3
		}
		if d, err := th.Allow(t.Context(), "k"); err != nil || d.Remaining != max(want-1, 0) || d.Allowed != (want > 0) {
			t.Errorf("%v: %v, %v; want %d left before it", failure, d, err, want)
		}
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"":                   nil,
		"unavailable":        fmt.Errorf("throttler: %w", throttlertesting.Outage(true)),
		"cost_exceeds_limit": (&limit.Policy{Limits: []limit.Limit{limit.PerHour(1)}}).CheckCost(2),
		"invalid":            &limit.Error{Field: "key"},
		"counts_lost":        backend.ErrCountsLost,
		"not_handed_over":    errors.Join(backend.ErrNotHandedOver, throttlertesting.Outage(false)),
		"bucket_leased":      backend.ErrBucketLeased,
		"on_credit":          fmt.Errorf("lease: %w", backend.ErrOnCredit),
		"interrupted":        fmt.Errorf("throttler: %w", context.DeadlineExceeded),
		"closed":             backend.ErrClosed,
		"other":              errors.New("user:42"),
	} {
		if got := throttler.Reason(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// idle is an observer that records nothing.
type idle struct{ seen int }

func (*idle) Start(ctx context.Context, _ *throttler.Event) context.Context { return ctx }
func (i *idle) End(context.Context, *throttler.Event)                       { i.seen++ }

func TestObserverAllocatesNothing(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	for _, max := range []int64{1, 1 << 40} {
		seen := &idle{}
		th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.Fixed(max, time.Hour)), Observer: seen})
		ctx := t.Context()
		throttlertesting.Allow(t, th, "k")
		allocs := testing.AllocsPerRun(1000, func() {
			if _, err := th.Allow(ctx, "k"); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 || seen.seen < 1000 {
			t.Errorf("max %d: %v allocations for each of %d decisions, want none", max, allocs, seen.seen)
		}
	}
}

// Observers see what AllowAll and ReserveAll refuse as they see what AllowN refuses: once.
func TestRefusalsAreObserved(t *testing.T) {
	t.Parallel()
	invalid := throttlertesting.One(limit.PerMinute(0))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var none context.Context
	for _, test := range []struct {
		name   string
		ctx    context.Context
		keys   []string
		cost   int64
		closed bool
		policy string // of the event
		reason string
	}{
		{name: "an empty key", ctx: t.Context(), keys: []string{"a", ""}, cost: 1, policy: "test", reason: "invalid"},
		{name: "a bad cost", ctx: t.Context(), keys: []string{"a", "b"}, cost: 0, policy: "test", reason: "invalid"},
		{name: "a cost that can't fit", ctx: t.Context(), keys: []string{"a", "tier"}, cost: 4, policy: "tier", reason: "cost_exceeds_limit"},
		{name: "an invalid policy", ctx: t.Context(), keys: []string{"a", "invalid"}, cost: 1, policy: "test", reason: "invalid"},
		{name: "closed", ctx: t.Context(), keys: []string{"a", "b"}, cost: 1, closed: true, policy: "test", reason: "closed"},
		{name: "an ended context", ctx: ended, keys: []string{"a", "b"}, cost: 1, policy: "test", reason: "interrupted"},
		{name: "no keys", ctx: t.Context(), cost: 1, policy: "test", reason: "invalid"},
		{name: "no context", ctx: none, keys: []string{"a", "b"}, cost: 1, policy: "test"}, // observers are not called
	} {
		for _, watched := range []bool{true, false} {
			for name, call := range map[string]func(*throttler.Throttler) (throttler.Decision, error){
				"AllowAll": func(th *throttler.Throttler) (throttler.Decision, error) {
					return th.AllowAll(test.ctx, test.keys, test.cost)
				},
				"ReserveAll": func(th *throttler.Throttler) (d throttler.Decision, err error) {
					_, err = th.ReserveAll(test.ctx, test.keys, test.cost)
					return d, err
				},
				"AllowN": func(th *throttler.Throttler) (throttler.Decision, error) {
					return th.AllowN(test.ctx, append(test.keys, "")[max(0, len(test.keys)-1)], test.cost)
				},
			} {
				book, b := &notes{}, newSpy(t, nil)
				cfg := throttler.Config{
					Backend: b, Policy: throttlertesting.One(limit.PerHour(10)),
					PolicyFor: func(_ context.Context, key string) *limit.Policy {
						return map[string]*limit.Policy{
							"tier": {Name: "tier", Limits: []limit.Limit{limit.PerHour(3)}}, "invalid": &invalid,
						}[key]
					},
				}
				recorder := newRecorder(t, insight.Config{})
				cfg.Observer = recorder
				if watched {
					cfg.Observer = throttler.Observers(nil, recorder, book)
				}
				th := throttlertesting.New(t, cfg)
				if test.closed {
					_ = th.Close()
				}
				d, err := call(th)
				if err == nil || d.Allowed {
					t.Fatalf("%s, %s: %+v, %v, want an error", name, test.name, d, err)
				}
				for _, p := range recorder.Stats().Policies {
					if want := map[bool]int64{true: 1}[p.Policy == test.policy && test.ctx != nil]; p.Errors != want || p.Allowed+p.Denied != 0 {
						t.Errorf("%s, %s, watched %v: counted %+v", name, test.name, watched, p)
					}
				}
				switch {
				case !watched || test.reason == "":
					if len(book.started)+len(book.ended) != 0 {
						t.Errorf("%s, %s: observed %+v", name, test.name, book.ended)
					}
				case name == "ReserveAll": // it has no decision beside an error
					if len(book.ended) != 1 || throttler.Reason(book.ended[0].Err) != test.reason {
						t.Errorf("%s, %s: observed %+v", name, test.name, book.ended)
					}
				default:
					if last := book.last(t, d, err); len(book.ended) != 1 || last.Policy.Name != test.policy ||
						last.Cost != test.cost || throttler.Reason(last.Err) != test.reason {
						t.Errorf("%s, %s: observed %+v, want %s", name, test.name, book.ended, test.reason)
					}
				}
				if n := b.calls.Load(); n != 0 {
					t.Errorf("%s, %s: %d calls reached the backend", name, test.name, n)
				}
			}
		}
	}
}
