package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func newPlace() *place { return &place{states: make(map[string]*state.State)} }

// from is a way without troubles.
func (p *place) from(process uint64) *way {
	return &way{place: p, random: rand.New(rand.NewPCG(11, process))}
}

func takeKey(t *testing.T, b backend.Backend, p *limit.Policy, cost int64, allowed bool) backend.Result {
	t.Helper()
	r, err := b.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: cost})
	if err != nil || r.Allowed != allowed {
		t.Fatalf("allowed %t, want %t; %v", r.Allowed, allowed, err)
	}
	return r
}

// TestLocalDenial: an exhausted key is denied without calls, but for one now and then, with the reset that the primary
// said and a wait that gets shorter; in an outage it stays denied, and in the next window it isn't.
func TestLocalDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way := newPlace().from(1)
		ls := backendtesting.NewLease(t, way, lease.Config{Recheck: 10 * time.Second})
		p := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerSecond(100), limit.PerMinute(3)}}
		for range 3 {
			takeKey(t, ls, p, 1, true)
		}
		first := takeKey(t, ls, p, 1, false)
		for range 1000 {
			r := takeKey(t, ls, p, 1, false)
			time.Sleep(10 * time.Millisecond)
			if r.Source != backend.LocalDeny {
				continue
			}
			if !r.Binding().ResetAt.Equal(first.Binding().ResetAt) || r.Guarantee != backend.Exact {
				t.Fatalf("reset %s, want %s; %s", r.Binding().ResetAt, first.Binding().ResetAt, r.Guarantee)
			}
			if wait := time.Until(r.Binding().ResetAt) - r.Binding().RetryAfter; wait < -200*time.Millisecond || wait > 0 {
				t.Fatalf("retry after %s, the window ends in %s", r.Binding().RetryAfter, time.Until(r.Binding().ResetAt))
			}
		}
		if s := ls.Stats(); s.Forwarded > 3+2 || s.Denied < 990 {
			t.Errorf("in 10 s of denials: %+v", s)
		}
		way.cut = true
		for range 30 {
			takeKey(t, ls, p, 1, false)
			time.Sleep(time.Second)
		}
		way.cut = false
		time.Sleep(time.Until(first.Binding().ResetAt) + 200*time.Millisecond)
		takeKey(t, ls, p, 1, true)
	})
}

// TestChargeIsLearned: the view knows what a charge left, and denies by it.
func TestChargeIsLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := backendtesting.NewMemory(t, memory.Config{})
		ls := backendtesting.NewLease(t, states{counts}, lease.Config{Recheck: time.Minute})
		p := backendtesting.Hour(10)
		receipt := ptr(takeKey(t, ls, p, 2, true)).Receipt()
		charged, err := ls.Charge(t.Context(), backend.Request{Key: "key", Policy: p, Cost: 50}, receipt.Mark())
		if err != nil || !charged.Allowed || charged.Binding().Remaining != 0 {
			t.Fatalf("%d left, %v", charged.Binding().Remaining, err)
		}
		if r := takeKey(t, ls, p, 1, false); r.Source != backend.LocalDeny || r.Binding().RetryAfter <= 0 {
			t.Errorf("denied by %s, retry after %s", r.Source, r.Binding().RetryAfter)
		}
		if err := ls.Refund(t.Context(), backend.Request{Key: "key", Policy: p}, charged.Receipt(), 50); err != nil {
			t.Fatal(err)
		}
		takeKey(t, ls, p, 1, true)
	})
	ls := backendtesting.NewLease(t, instant{}, lease.Config{})
	if _, err := ls.Charge(t.Context(), backend.Request{Key: "key", Policy: backendtesting.Hour(10), Cost: 1}, state.Mark{}); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("of a backend that can't: %v", err)
	}
}

// states is a Memory whose results have the state, as a server's do.
type states struct{ *memory.Memory }

func (s states) with(ctx context.Context, req backend.Request, r backend.Result, err error) (backend.Result, error) {
	loaded, _ := s.Load(ctx, req)
	r.State, r.Source = loaded.State, backend.Primary
	return r, err
}

func (s states) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	r, err := s.Memory.Take(ctx, req)
	return s.with(ctx, req, r, err)
}

func (s states) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	r, err := s.Memory.Charge(ctx, req, mark)
	return s.with(ctx, req, r, err)
}

func ptr[T any](v T) *T { return &v }

// TestLocalDenialOff: without it every request is sent.
func TestLocalDenialOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := backendtesting.NewLease(t, newPlace().from(1), lease.Config{Recheck: -1})
		p := backendtesting.Hour(1)
		takeKey(t, ls, p, 1, true)
		for range 10 {
			if r := takeKey(t, ls, p, 1, false); r.Source != backend.Primary {
				t.Errorf("denied by %s", r.Source)
			}
		}
	})
}

// TestLocalDenialEnds: what this process gives back it may take at once; what another gives back, after Recheck.
func TestLocalDenialEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there, p, ctx := newPlace(), backendtesting.Hour(5), context.Background()
		ls := backendtesting.NewLease(t, there.from(1), lease.Config{})
		req := backend.Request{Key: "key", Policy: p, Cost: 5}
		r := takeKey(t, ls, p, 5, true)
		takeKey(t, ls, p, 1, false)
		if err := ls.Refund(ctx, req, r.Receipt(), 5); err != nil {
			t.Fatal(err)
		}
		r = takeKey(t, ls, p, 5, true)
		takeKey(t, ls, p, 1, false)
		if err := there.from(2).Refund(ctx, req, r.Receipt(), 5); err != nil {
			t.Fatal(err)
		}
		takeKey(t, ls, p, 1, false)
		time.Sleep(time.Second)
		takeKey(t, ls, p, 1, true)
	})
}

// TestLeaseTakesBack: a charge that is given back goes into the lease that it came from, once.
func TestLeaseTakesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newDistant(t, time.Millisecond), backendtesting.Hour(1000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 20, Steady: true, Processes: 1})
		req := backend.Request{Key: "key", Policy: p, Cost: 1}
		takeKey(t, ls, p, 1, true)
		takeKey(t, ls, p, 1, true) // a fetch
		r := takeKey(t, ls, p, 1, true)
		for i, want := range []int64{19, 19, 19} {
			if err := ls.Refund(context.Background(), req, r.Receipt(), 1); err != nil {
				t.Fatal(err)
			}
			if s := ls.Stats(); s.Stranded != want {
				t.Errorf("refund %d: %+v, want %d in the lease", i, s, want)
			}
		}
	})
}

// TestFloorIsCarried: a place that loses what was counted learns it again from the next take.
func TestFloorIsCarried(t *testing.T) {
	for _, cfg := range []lease.Config{{Batch: -1}, {Batch: 10, Processes: 1}} {
		synctest.Test(t, func(t *testing.T) {
			there, p := newPlace(), backendtesting.Hour(1000)
			ls := backendtesting.NewLease(t, there.from(1), cfg)
			var admitted int64
			for admitted < 700 {
				takeKey(t, ls, p, 1, true)
				admitted++
			}
			clear(there.states)
			for range 1000 {
				r, err := ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
				if err != nil {
					t.Fatal(err)
				}
				if r.Allowed {
					admitted++
				}
			}
			if admitted != 1000 {
				t.Errorf("%+v: %d of 1000 admitted across a loss", cfg, admitted)
			}
		})
	}
}

// TestLeaseKeepsItsPolicy: a lease under one list of limits is not spent under another, as when a key changes its tier.
func TestLeaseKeepsItsPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newDistant(t, time.Millisecond)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 50, Steady: true, Processes: 1})
		large, small := backendtesting.Hour(1000), backendtesting.Hour(1)
		takeKey(t, ls, large, 1, true)
		takeKey(t, ls, large, 1, true)
		if s := ls.Stats(); s.Stranded != 49 {
			t.Fatalf("%+v", s)
		}
		takeKey(t, ls, small, 1, false)
		large.Limits[0].Max = 2 // the caller's own memory, which the lease must not have kept
		takeKey(t, ls, large, 1, false)
	})
}

// TestBucketLeases: they live a second at most, and what they admit is said to be bounded.
func TestBucketLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newDistant(t, time.Millisecond)
		p := &limit.Policy{Limits: []limit.Limit{limit.TokenBucket(1, time.Second, 1000)}}
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 50, Steady: true, Processes: 1, Life: time.Hour})
		takeKey(t, ls, p, 1, true)
		if r := takeKey(t, ls, p, 1, true); r.Guarantee != backend.Exact {
			t.Errorf("what a fetch was made for is %s: %v", r.Guarantee, r.Cause)
		}
		r := takeKey(t, ls, p, 1, true)
		if r.Source != backend.Leased || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrBucketLeased) {
			t.Errorf("%s, %s, %v", r.Source, r.Guarantee, r.Cause)
		}
		time.Sleep(time.Second)
		if s := ls.Stats(); s.Stranded != 0 {
			t.Errorf("after a second: %+v", s)
		}
	})
}

// TestBucketFetchJoinedLate: who joins a fetch after its charge spends a lease.
func TestBucketFetchJoinedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newDistant(t, 400*time.Millisecond)
		p := &limit.Policy{Limits: []limit.Limit{limit.TokenBucket(1, time.Second, 1000)}}
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 50, Steady: true, Processes: 1})
		takeKey(t, ls, p, 1, true)
		var all sync.WaitGroup
		all.Go(func() { takeKey(t, ls, p, 1, true) })
		time.Sleep(300 * time.Millisecond) // charged, and the reply is under way
		if r := takeKey(t, ls, p, 1, true); r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrBucketLeased) {
			t.Errorf("%s, %v", r.Guarantee, r.Cause)
		}
		all.Wait()
		if s := ls.Stats(); s.Fetches != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestLeaseIsBounded: however many keys there are, views are kept of MaxKeys, and what the others had leased goes back.
func TestLeaseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, keys = 200, 5000
		inner, p := backendtesting.NewMemory(t, memory.Config{}), backendtesting.Hour(10_000)
		ls := backendtesting.NewLease(t, inner, lease.Config{MaxKeys: most, Batch: 10, Steady: true})
		for i := range keys {
			for range 3 {
				r, err := ls.Take(context.Background(), backend.Request{Key: fmt.Sprint(i), Policy: p, Cost: 1})
				if err != nil || !r.Allowed {
					t.Fatalf("allowed %t, %v", r.Allowed, err)
				}
			}
			if i%100 == 0 {
				time.Sleep(time.Second)
			}
		}
		if s := ls.Stats(); s.Keys > most+64 || s.Leased < keys/2 {
			t.Errorf("%+v", s)
		}
		time.Sleep(10 * time.Second)
		if s := ls.Stats(); s.Stranded != 0 || s.Lost != 0 {
			t.Errorf("%+v", s)
		}
		for i := range keys {
			snapshot, _ := inner.Load(context.Background(), backend.Request{Key: fmt.Sprint(i), Policy: p})
			v := snapshot.State.Peek(p, state.At{Micros: snapshot.Now}, 1)
			if left := v.Binding().Remaining; left != 10_000-3 {
				t.Fatalf("key %d has %d left, of 3 were taken", i, left)
			}
		}
	})
}

// TestHotViewsStay: a scan over many keys doesn't push out the key that is in use.
func TestHotViewsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newDistant(t, 0), backendtesting.Hour(1_000_000)
		ls := backendtesting.NewLease(t, inner, lease.Config{MaxKeys: 64, Batch: 1000, Steady: true})
		takeKey(t, ls, p, 1, true)
		for i := range 20_000 {
			if _, err := ls.Take(context.Background(), backend.Request{Key: fmt.Sprint(i), Policy: p, Cost: 1}); err != nil {
				t.Fatal(err)
			}
			takeKey(t, ls, p, 1, true)
		}
		if calls := inner.takes.Load() - 20_000; calls > 60 {
			t.Errorf("%d calls for 20,000 takes of a hot key", calls)
		}
	})
}

// TestLeaseConfig: everything that is wrong is said at once.
func TestLeaseConfig(t *testing.T) {
	_, err := lease.New(nil, lease.Config{
		Processes: -1, Batch: limit.MaxCount + 1, Life: -1, Recheck: limit.MaxWindow + 1, MaxKeys: -1,
	})
	for _, want := range []string{"inner", "Processes", "Batch", "Life", "Recheck", "MaxKeys"} {
		if err == nil || !strings.Contains(err.Error(), "lease: "+want) {
			t.Errorf("%v doesn't tell of %s", err, want)
		}
	}
	var e *limit.Error
	if !errors.As(err, &e) {
		t.Errorf("%T", err)
	}
	takesOnly := struct{ backend.Backend }{backendtesting.NewMemory(t, memory.Config{})}
	if _, err := lease.New(takesOnly, lease.Config{}); err == nil {
		t.Error("leases that can't go back")
	}
	view := backendtesting.NewLease(t, takesOnly, lease.Config{Batch: -1})
	takeKey(t, view, backendtesting.Hour(1), 1, true)
	ctx, req := context.Background(), backend.Request{Key: "key", Policy: backendtesting.Hour(1), Cost: 1}
	_, peek := view.Peek(ctx, req)
	_, load := view.Load(ctx, req)
	for name, err := range map[string]error{
		"peek": peek, "load": load, "refund": view.Refund(ctx, req, state.Receipt{Cost: 1}, 1), "reset": view.Reset(ctx, req),
		"seed": view.Seed(ctx, req, state.State{}),
	} {
		if !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := view.Ping(ctx); err != nil {
		t.Errorf("ping: %v", err)
	}
}

// TestLeaseAllocates nothing where it makes no call.
func TestLeaseAllocates(t *testing.T) {
	ctx := context.Background()
	ls := backendtesting.NewLease(t, backendtesting.NewMemory(t, memory.Config{}), lease.Config{Batch: 1_000_000, Steady: true, Processes: 1})
	three := &limit.Policy{Limits: []limit.Limit{
		limit.PerHour(1 << 40), limit.Sliding(1<<40, time.Hour, time.Minute), limit.PerDay(1 << 40),
	}}
	for _, p := range []*limit.Policy{backendtesting.Hour(1 << 40), three} {
		req := backend.Request{Key: "leased", Policy: p, Cost: 1}
		p.Name = fmt.Sprint("l", len(p.Limits))
		var r backend.Result
		if n := testing.AllocsPerRun(1000, func() { r, _ = ls.Take(ctx, req) }); n != 0 || r.Source != backend.Leased {
			t.Errorf("%d limits: %v allocations for a take that is %s", len(p.Limits), n, r.Source)
		}
	}
	there := newPlace()
	there.states["denied"] = new(state.State)
	denying := backendtesting.NewLease(t, instant{there}, lease.Config{Recheck: time.Hour})
	req := backend.Request{Key: "denied", Policy: backendtesting.Hour(1), Cost: 1}
	var r backend.Result
	if n := testing.AllocsPerRun(1000, func() { r, _ = denying.Take(ctx, req) }); n != 0 || r.Source != backend.LocalDeny {
		t.Errorf("%v allocations for a take that is %s", n, r.Source)
	}
}

// instant is a place around the corner.
type instant struct{ *place }

func (i instant) Take(_ context.Context, req backend.Request) (backend.Result, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s, at := i.states[req.Key], state.At{Micros: time.Now().UnixMicro()}
	return backend.Result{Verdict: s.Take(req.Policy, at, req.Cost), Now: at.Micros, State: s.Clone(), Source: backend.Primary}, nil
}

func (i instant) Refund(context.Context, backend.Request, state.Receipt, int64) error { return nil }

func (i instant) Close() error { return nil }

// After a seed of a later window a denial names the end of that.
func TestViewAfterSeed(t *testing.T) {
	t.Parallel()
	clock := backendtesting.NewClock()
	inner := backendtesting.OpenRedis(t, testserver.Redis(t).Addr, redisbackend.Config{Now: clock.Now})
	ls := backendtesting.NewLease(t, inner, lease.Config{Now: clock.Now, Batch: -1})
	req := backendtesting.Request("key")
	req.Policy = backendtesting.Hour(1)
	backendtesting.MustTake(t, ls, req)
	clock.Step(time.Millisecond)
	var later state.State
	if v := later.Take(req.Policy, state.Moment(req.Policy, req.Key, clock.Now().UnixMicro()), 1); !v.Allowed {
		t.Fatal("a new window admits")
	}
	if err := ls.Seed(t.Context(), req, later); err != nil {
		t.Fatal(err)
	}
	got := backendtesting.MustTake(t, ls, req)
	if want := clock.Now().Add(time.Hour); got.Allowed || !got.Binding().ResetAt.Equal(want) {
		t.Errorf("allowed %t, reset at %v, want %v", got.Allowed, got.Binding().ResetAt, want)
	}
}
