package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// journal is what observers were called for, in order.
type journal struct{ lines []string }

// plain is an Observer and no more.
type plain struct {
	name string
	*journal
}

type passed struct{ name string }

func (p plain) Start(ctx context.Context, e *throttler.Event) context.Context {
	p.lines = append(p.lines, fmt.Sprint(p.name, " start ", e.Op, " ", e.Key))
	return context.WithValue(ctx, passed{p.name}, true)
}

func (p plain) End(ctx context.Context, e *throttler.Event) {
	if ctx.Value(passed{"a"}) == nil || ctx.Value(passed{"b"}) == nil {
		panic("the context lacks what an observer added")
	}
	p.lines = append(p.lines, fmt.Sprint(p.name, " end ", e.Op, " ", e.Key, " ", e.Decision.Allowed))
}

// full is an Observer of everything.
type full struct{ plain }

func (f full) Commit(_ context.Context, e *throttler.Event) throttler.Settler {
	f.lines = append(f.lines, fmt.Sprint(f.name, " commit ", e.Key, " ", e.Cost, " ", e.Refundable))
	return f
}

func (f full) GivenBack(amount int64) {
	f.lines = append(f.lines, fmt.Sprint(f.name, " given back ", amount))
}

func (f full) Overrun(amount int64) {
	f.lines = append(f.lines, fmt.Sprint(f.name, " overrun ", amount))
}

func (f full) Outage(_ context.Context, o throttler.Outage) {
	f.lines = append(f.lines, fmt.Sprint(f.name, " outage ", throttler.Reason(o.Cause)))
}

func TestObservers(t *testing.T) {
	t.Parallel()
	j, b := &journal{}, newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{
		Backend: b, Policy: throttlertesting.One(limit.PerHour(4)), Allow: []string{"friend"},
		Observer: throttler.Observers(full{plain{"a", j}}, nil, plain{"b", j}, full{plain{"c", j}}),
	})
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"admitted", func() { throttlertesting.Allow(t, th, "k") }, []string{
			"a start take k", "b start take k", "c start take k", "a end take k true", "b end take k true", "c end take k true",
			"a commit k 1 false", "c commit k 1 false",
		}},
		{"listed", func() { throttlertesting.Allow(t, th, "friend") }, []string{
			"a start take friend", "b start take friend", "c start take friend",
			"a end take friend true", "b end take friend true", "c end take friend true",
		}},
		{"reserved and settled", func() {
			r, err := th.Reserve(t.Context(), "k", 3)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Settle(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}, []string{
			"a start take k", "b start take k", "c start take k", "a end take k true", "b end take k true", "c end take k true",
			"a commit k 3 true", "c commit k 3 true",
			"a start refund k", "b start refund k", "c start refund k", "a given back 2", "c given back 2",
			"a end refund k false", "b end refund k false", "c end refund k false",
		}},
		{"denied", func() {
			if _, err := th.AllowN(t.Context(), "k", 4); err != nil {
				t.Fatal(err)
			}
		}, []string{
			"a start take k", "b start take k", "c start take k", "a end take k false", "b end take k false", "c end take k false",
		}},
		{"an outage", func() {
			b.failWith(func(string) error { return throttlertesting.Outage(false) })
			throttlertesting.Allow(t, th, "other")
			b.failWith(nil)
		}, []string{
			"a start take other", "b start take other", "c start take other", "a outage unavailable", "c outage unavailable",
			"a end take other true", "b end take other true", "c end take other true",
		}},
		{"several keys", func() {
			r, err := th.ReserveAll(t.Context(), []string{"x", "y"}, 1)
			if err != nil || !r.Decision().Allowed {
				t.Fatal(r, err)
			}
		}, []string{
			"a start take x", "b start take x", "c start take x", "a end take x true", "b end take x true", "c end take x true",
			"a start take y", "b start take y", "c start take y", "a end take y true", "b end take y true", "c end take y true",
			"a commit x 1 true", "c commit x 1 true", "a commit y 1 true", "c commit y 1 true",
		}},
	} {
		j.lines = nil
		step.do()
		if !slices.Equal(j.lines, step.want) {
			t.Errorf("%s: %q\nwant %q", step.name, j.lines, step.want)
		}
	}
	if throttler.Observers() != nil || throttler.Observers(nil, audit{}) != (audit{}) {
		t.Error("Observers of none is one, or of one is another")
	}
}

// source is a PolicySource with one view.
type source struct{ view view }

func (s source) View() throttler.PolicyView { return s.view }

type view struct {
	policy limit.Policy
	err    error
	lists  [2]string // the key on the allow list, and that on the deny list
}

func (v view) Default() *limit.Policy { return &v.policy }
func (v view) Policy(_ context.Context, key string) (*limit.Policy, error) {
	if key == "invalid" {
		return &limit.Policy{Name: "invalid"}, nil
	}
	return &v.policy, v.err
}
func (v view) Listed(key string) (allow, deny bool)        { return key == v.lists[0], key == v.lists[1] }
func (v view) Shadow(*limit.Policy) (shadow *limit.Policy) { return nil }

func TestPolicySource(t *testing.T) {
	t.Parallel()
	b, down := newSpy(t, nil), errors.New("the source is down")
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policies: source{view{policy: throttlertesting.One(limit.PerHour(3)), lists: [2]string{"good", "bad"}}}})
	if d := throttlertesting.Allow(t, th, "k"); !d.Allowed || d.Remaining != 2 {
		t.Errorf("%+v, want 2 left", d)
	}
	for key, allowed := range map[string]bool{"good": true, "bad": false} {
		if d := throttlertesting.Allow(t, th, key); d.Allowed != allowed || d.Source != throttler.Listed {
			t.Errorf("%s: %+v", key, d)
		}
	}
	calls := b.calls.Load()
	if _, err := th.Allow(t.Context(), "invalid"); !slices.Equal(fields(err), []string{"limits"}) {
		t.Errorf("an invalid policy: %v", err)
	}
	failing := throttlertesting.New(t, throttler.Config{Backend: b, Policies: source{view{policy: throttlertesting.One(limit.PerHour(3)), err: down}}})
	if d, err := failing.Allow(t.Context(), "k"); d.Allowed || !errors.Is(err, down) {
		t.Errorf("a source that fails: %+v, %v", d, err)
	}
	if n := b.calls.Load() - calls; n != 0 {
		t.Errorf("%d calls reached the backend without a policy", n)
	}
	_, err := throttler.New(throttler.Config{Policies: source{}, Policy: throttlertesting.One(limit.PerHour(1))})
	if got := fields(err); !slices.Equal(got, []string{"Policy"}) {
		t.Errorf("a policy beside a source: %v", err)
	}
}

// contexts is an observer whose Start marks the context of each event, by which the later calls are told apart.
type contexts struct{ started, ended, committed int }

type contextNumber struct{}

func (c *contexts) Start(ctx context.Context, _ *throttler.Event) context.Context {
	c.started++
	return context.WithValue(ctx, contextNumber{}, c.started)
}

func (c *contexts) End(ctx context.Context, _ *throttler.Event) {
	c.ended += ctx.Value(contextNumber{}).(int)
}

func (c *contexts) Commit(ctx context.Context, _ *throttler.Event) throttler.Settler {
	number, _ := ctx.Value(contextNumber{}).(int)
	c.committed += number
	return nil
}

// TestCommitContext: Commit gets the context that Start returned for the same event.
func TestCommitContext(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*throttler.Throttler) error{
		"AllowN":  func(th *throttler.Throttler) error { _, err := th.AllowN(t.Context(), "a", 1); return err },
		"Reserve": func(th *throttler.Throttler) error { _, err := th.Reserve(t.Context(), "a", 1); return err },
		"AllowAll": func(th *throttler.Throttler) error {
			_, err := th.AllowAll(t.Context(), []string{"a", "b"}, 1)
			return err
		},
		"ReserveAll": func(th *throttler.Throttler) error {
			_, err := th.ReserveAll(t.Context(), []string{"a", "b"}, 1)
			return err
		},
	} {
		c := new(contexts)
		th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(100)), Observer: c})
		if err := call(th); err != nil || c.committed == 0 || c.committed != c.ended {
			t.Errorf("%s: %v, %+v", name, err, *c)
		}
	}
}

// shrinking is a PolicySource whose limits become smaller with each view.
type shrinking struct{ views atomic.Int64 }

func (s *shrinking) View() throttler.PolicyView {
	return view{policy: throttlertesting.One(limit.PerHour(100 / s.views.Add(1)))}
}

// A reservation that is clamped is charged to the policies that it was clamped to.
func TestClampsToOneView(t *testing.T) {
	t.Parallel()
	for name, reserve := range map[string]func(*throttler.Throttler) (*throttler.Reservation, error){
		"one key": func(th *throttler.Throttler) (*throttler.Reservation, error) {
			return th.Reserve(t.Context(), "k", 200)
		},
		"several keys": func(th *throttler.Throttler) (*throttler.Reservation, error) {
			return th.ReserveAll(t.Context(), []string{"a", "b"}, 200)
		},
	} {
		th := throttlertesting.New(t, throttler.Config{Policies: new(shrinking), ClampReserve: true})
		if r, err := reserve(th); err != nil || !r.Decision().Allowed || r.Cost() < 50 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}
