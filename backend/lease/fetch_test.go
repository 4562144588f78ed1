package lease_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// distant is a Memory that is a round trip away, and that counts what it is asked.
type distant struct {
	*memory.Memory
	trip  time.Duration
	fail  error // of takes, if set
	slow  int64 // takes of this cost are ten times as far away
	takes atomic.Int64
}

func newDistant(t *testing.T, trip time.Duration) *distant {
	return &distant{Memory: backendtesting.NewMemory(t, memory.Config{}), trip: trip}
}

func (d *distant) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	d.takes.Add(1)
	trip := d.trip
	if req.Cost == d.slow {
		trip *= 10
	}
	time.Sleep(trip / 2)
	if d.fail != nil {
		return backend.Result{}, d.fail
	}
	r, err := d.Memory.Take(context.WithoutCancel(ctx), req)
	time.Sleep(trip / 2)
	return r, err
}

// TestFetchIsShared: five callers of 20 against a batch of 100 make one fetch, and none waits for more than that.
func TestFetchIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newDistant(t, 10*time.Millisecond), backendtesting.Hour(100_000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 100, Steady: true})
		backendtesting.Warm(t, ls, p)
		start := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				r, err := ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 20})
				if err != nil || !r.Allowed || r.Guarantee != backend.Exact {
					t.Errorf("allowed %t, %s, %v", r.Allowed, r.Guarantee, err)
				}
				if took := time.Since(start); took != inner.trip {
					t.Errorf("waited %s for a trip of %s", took, inner.trip)
				}
			})
		}
		all.Wait()
		if n := inner.takes.Load(); n != 2 {
			t.Errorf("%d calls for the first and five more of 20, want 2", n)
		}
		if s := ls.Stats(); s.Fetches != 1 || s.Forwarded != 1 || s.Stranded != 0 || s.Leased != 4 {
			t.Errorf("%+v", s)
		}
	})
}

// TestFetchIsNoQueue: who doesn't fit into the batch under way doesn't wait for it.
func TestFetchIsNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newDistant(t, 10*time.Millisecond), backendtesting.Hour(100_000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 7, Steady: true}) // too few to fetch the next one ahead
		backendtesting.Warm(t, ls, p)
		for _, cost := range []int64{8, 7, 5} { // larger than a batch, all of one, and more than is left in the one under way
			var all sync.WaitGroup
			calls := inner.takes.Load()
			all.Go(func() { _, _ = ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 3}) })
			synctest.Wait()
			time.Sleep(inner.trip - time.Millisecond) // the fetch is about to land
			all.Go(func() {
				start := time.Now()
				r, err := ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: cost})
				if took := time.Since(start); err != nil || !r.Allowed || took != inner.trip {
					t.Errorf("cost %d: allowed %t, %v, after %s", cost, r.Allowed, err, took)
				}
			})
			all.Wait()
			if n := inner.takes.Load() - calls; n != 2 {
				t.Errorf("cost %d: %d calls, want a fetch and one of its own", cost, n)
			}
			for ls.Stats().Stranded > 0 { // the next round finds none left
				_, _ = ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
			}
		}
	})
}

// TestFetchFails: a fetch that fails wakes everybody who waits for it, and the next caller tries again.
func TestFetchFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newDistant(t, 10*time.Millisecond), backendtesting.Hour(100_000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 100, Steady: true})
		backendtesting.Warm(t, ls, p)
		inner.fail = &backend.Error{Op: "take", Kind: backend.Unavailable, MayHaveCharged: true, Err: errLost}
		var all sync.WaitGroup
		start := time.Now()
		for range 10 {
			all.Go(func() {
				_, err := ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
				var e *backend.Error
				if took := time.Since(start); !errors.As(err, &e) || !e.MayHaveCharged || took != inner.trip/2 {
					t.Errorf("%v after %s", err, took)
				}
			})
		}
		all.Wait()
		inner.fail = nil
		backendtesting.Warm(t, ls, p)
		if n := inner.takes.Load(); n != 3 {
			t.Errorf("%d calls, want the first, the fetch that failed, and one more", n)
		}
	})
}

// TestFetchIsSlow: who gives up waiting returns at once and was charged nothing; what was meant for it is leased.
func TestFetchIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newDistant(t, 100*time.Millisecond), backendtesting.Hour(100_000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 100, Steady: true})
		backendtesting.Warm(t, ls, p)
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				patience := time.Duration(i+1) * 10 * time.Millisecond
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				start := time.Now()
				_, err := ls.Take(ctx, backend.Request{Key: "key", Policy: p, Cost: 20})
				var e *backend.Error
				if !errors.As(err, &e) || e.Kind != backend.Interrupted || e.MayHaveCharged || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
				if took := time.Since(start); took != patience {
					t.Errorf("returned after %s, want %s", took, patience)
				}
			})
		}
		all.Wait()
		time.Sleep(time.Second)
		if s := ls.Stats(); s.Stranded != 100 || inner.takes.Load() != 2 {
			t.Errorf("%+v after %d calls: want the whole batch leased, by one fetch", s, inner.takes.Load())
		}
	})
}

// TestFetchAhead: of a batch that is spent fast the next one is there before it is used up, so that nobody waits for it,
// and no more is held than one batch. Of one that lasts it isn't.
func TestFetchAhead(t *testing.T) {
	for _, test := range []struct {
		every time.Duration
		waits int // of 1,000 takes
	}{{time.Millisecond, 1}, {200 * time.Millisecond, 50}} {
		synctest.Test(t, func(t *testing.T) {
			inner, p := newDistant(t, 2*time.Millisecond), backendtesting.Hour(100_000)
			ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 20, Steady: true})
			backendtesting.Warm(t, ls, p)
			waits, most := 0, int64(0)
			for i := range 1000 {
				start := time.Now()
				r, err := ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
				if err != nil || !r.Allowed || r.Binding().Remaining != 100_000-int64(i)-2 {
					t.Fatalf("%d: allowed %t, %d remain, %+v, %v", i, r.Allowed, r.Binding().Remaining, ls.Stats(), err)
				}
				if time.Since(start) > 0 {
					waits++
				}
				time.Sleep(test.every)
				most = max(most, ls.Stats().Stranded)
			}
			if waits != test.waits || most != 19 {
				t.Errorf("a take every %s: %d of 1,000 had to wait, want %d; %d were leased at once, want 19", test.every, waits, test.waits, most)
			}
		})
	}
}

// nextBatch is a lease that holds the rest of a batch and the next one, 18 together, after 18 takes.
func nextBatch(t *testing.T) (*lease.Lease, *distant, []backend.Result) {
	inner, p := newDistant(t, time.Millisecond), backendtesting.Hour(1000)
	ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 20, Steady: true, Processes: 1, Life: time.Minute})
	var taken []backend.Result
	for range 18 {
		taken = append(taken, takeKey(t, ls, p, 1, true))
	}
	time.Sleep(10 * time.Millisecond)
	if s := ls.Stats(); s.Fetches != 2 || s.Stranded != 18 {
		t.Fatalf("%+v: want what 16 takes leave of a batch, and the next one", s)
	}
	return ls, inner, taken
}

func TestNextBatch(t *testing.T) {
	request := func(max int64) backend.Request {
		return backend.Request{Key: "key", Policy: backendtesting.Hour(max), Cost: 1}
	}
	for name, test := range map[string]func(*testing.T, *lease.Lease, *distant, []backend.Result){
		"a Reset gives both back": func(t *testing.T, ls *lease.Lease, _ *distant, _ []backend.Result) {
			if err := ls.Reset(context.Background(), request(1000)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
			if s := ls.Stats(); s.Stranded != 0 || s.Lost != 0 {
				t.Errorf("%+v", s)
			}
		},
		"a refund is not held beside it": func(t *testing.T, ls *lease.Lease, _ *distant, taken []backend.Result) {
			for _, r := range taken {
				if err := ls.Refund(context.Background(), request(1000), r.Receipt(), 1); err != nil {
					t.Fatal(err)
				}
			}
			if s := ls.Stats(); s.Stranded > 19 {
				t.Errorf("%+v: more than a batch", s)
			}
		},
		"a look sees it": func(t *testing.T, ls *lease.Lease, inner *distant, _ []backend.Result) {
			backendtesting.MustTake(t, inner.Memory, backend.Request{Key: "key", Policy: backendtesting.Hour(1000), Cost: 1000 - 18 - 18})
			for range 18 {
				if r, err := ls.Peek(context.Background(), request(1000)); err != nil || !r.Allowed {
					t.Fatalf("allowed %t, %v, %+v", r.Allowed, err, ls.Stats())
				}
				takeKey(t, ls, backendtesting.Hour(1000), 1, true)
			}
		},
		"one that doesn't fit gives way": func(t *testing.T, ls *lease.Lease, inner *distant, _ []backend.Result) {
			before := inner.takes.Load()
			for range 500 {
				takeKey(t, ls, backendtesting.Hour(100_000), 1, true) // Max has changed
				time.Sleep(10 * time.Millisecond)
			}
			if n := inner.takes.Load() - before; n > 60 {
				t.Errorf("500 takes made %d calls", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ls, inner, taken := nextBatch(t)
				test(t, ls, inner, taken)
			})
		})
	}
}

// TestNextBatchSpentInAdvance: a batch that those who wait for it use up before it lands is in nobody's way.
func TestNextBatchSpentInAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newDistant(t, 10*time.Millisecond), backendtesting.Hour(100_000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 20, Steady: true, Life: time.Minute})
		for _, cost := range []int64{1, 4, 4, 4, 4, 1} {
			takeKey(t, ls, p, cost, true)
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { takeKey(t, ls, p, 5, true) })
		}
		all.Wait()
		for range 1000 {
			takeKey(t, ls, p, 1, true)
			time.Sleep(10 * time.Millisecond)
		}
		if s := ls.Stats(); s.Forwarded > 10 {
			t.Errorf("%+v: want batches", s)
		}
	})
}

// TestFetchTooLarge: where others have left less than a batch, those who wait for it are not denied for that.
func TestFetchTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, p := newDistant(t, 10*time.Millisecond), backendtesting.Hour(1000)
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 100, Steady: true, Processes: 1})
		backendtesting.Warm(t, ls, p)
		_, _ = inner.Memory.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 989})
		var all sync.WaitGroup
		var allowed atomic.Int64
		for range 20 {
			all.Go(func() {
				r, err := ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1})
				if err != nil {
					t.Error(err)
				}
				if r.Allowed {
					allowed.Add(1)
				}
			})
		}
		all.Wait()
		if n := allowed.Load(); n != 10 {
			t.Errorf("%d of the last 10 were admitted", n)
		}
	})
}

// TestFetchAcrossWindows: what is left of the lease on one window is not spent in the next, which a fetch has opened.
func TestFetchAcrossWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newDistant(t, time.Millisecond)
		p := &limit.Policy{Limits: []limit.Limit{limit.Fixed(1000, time.Second).Aligned()}}
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1500 * time.Millisecond)))
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 10, Steady: true})
		take := func(cost int64) {
			if r, err := ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: cost}); err != nil || !r.Allowed {
				t.Errorf("allowed %t, %v", r.Allowed, err)
			}
		}
		take(1)
		take(2)
		if s := ls.Stats(); s.Stranded != 8 {
			t.Fatalf("%+v", s)
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(970 * time.Millisecond)))
		inner.trip = 100 * time.Millisecond // it is decided in the next window
		take(9)
		if s := ls.Stats(); s.Stranded > 1 {
			t.Errorf("%d are leased of a window to which 10 were charged and 9 spent", s.Stranded)
		}
	})
}

// TestDeniedBesideAFetch: a request that found the batch under way full, and was denied because of it, gets what somebody
// left who gave up waiting; whether the denial or the batch comes first.
func TestDeniedBesideAFetch(t *testing.T) {
	for _, slow := range []int64{0, 10} {
		synctest.Test(t, func(t *testing.T) {
			inner, p, ctx := newDistant(t, 20*time.Millisecond), backendtesting.Hour(1000), context.Background()
			inner.slow = slow
			patience := 9 * time.Millisecond
			if slow != 0 {
				patience = 125 * time.Millisecond
			}
			ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 10, Steady: true})
			backendtesting.Warm(t, ls, p)
			_, _ = inner.Memory.Take(ctx, backend.Request{Key: "key", Policy: p, Cost: 989}) // 10 are left
			var all sync.WaitGroup
			for i := range 10 {
				all.Go(func() {
					ctx, cancel := ctx, context.CancelFunc(func() {})
					if i == 9 {
						ctx, cancel = context.WithTimeout(ctx, patience)
					}
					defer cancel()
					r, err := ls.Take(ctx, backend.Request{Key: "key", Policy: p, Cost: 1})
					if i < 9 && (err != nil || !r.Allowed) {
						t.Errorf("of the batch: allowed %t, %v", r.Allowed, err)
					}
				})
				synctest.Wait()
			}
			time.Sleep(time.Millisecond)
			if slow != 0 {
				time.Sleep(inner.trip * 6) // the batch is charged, and under way
			}
			r, err := ls.Take(ctx, backend.Request{Key: "key", Policy: p, Cost: 1})
			if err != nil || !r.Allowed || r.Source != backend.Leased {
				t.Errorf("of what was left: allowed %t by %s, %v", r.Allowed, r.Source, err)
			}
			all.Wait()
		})
	}
}

// TestNobodyIsToldNo: while callers race, of exactly as much as there is nobody is denied: neither while a batch is under
// way, nor because another one's has the rest. It is what went wrong in the article that leases come from, where threads
// that were set aside were told no though tokens had come.
func TestNobodyIsToldNo(t *testing.T) {
	const rounds = 3000
	ctx := context.Background()
	random := rand.New(rand.NewPCG(1, 1))
	inner := backendtesting.NewMemory(t, memory.Config{})
	ls := backendtesting.NewLease(t, jittery{inner}, lease.Config{Batch: 4, Processes: 1, Recheck: -1})
	for round := range rounds {
		const callers, each = 6, 4
		p := backendtesting.Hour(callers*each + 1)
		p.Name = "p" + string(rune('a'+round%26))
		key := string(rune('a'+round/26%26)) + string(rune('a'+round/26/26))
		if _, err := ls.Take(ctx, backend.Request{Key: key, Policy: p, Cost: 1}); err != nil {
			t.Fatal(err)
		}
		seed := random.Uint64()
		var denied atomic.Int64
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(caller)))
				for range each {
					for range random.IntN(3) {
						jitter()
					}
					if r, err := ls.Take(ctx, backend.Request{Key: key, Policy: p, Cost: 1}); err != nil || !r.Allowed {
						denied.Add(1)
					}
				}
			})
		}
		all.Wait()
		if n := denied.Load(); n != 0 {
			t.Fatalf("round %d: %d of %d callers were denied", round, n, callers*each)
		}
		r, err := ls.Take(ctx, backend.Request{Key: key, Policy: p, Cost: 1})
		if err != nil || r.Allowed {
			t.Fatalf("round %d: one more than there is: allowed %t, %v", round, r.Allowed, err)
		}
	}
	if s := ls.Stats(); s.Fetches < int64(rounds) || s.Leased < int64(rounds) {
		t.Errorf("%+v: hardly anything was leased", s)
	}
}

// jittery lets others run at every call.
type jittery struct{ *memory.Memory }

func (j jittery) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	jitter()
	defer jitter()
	return j.Memory.Take(ctx, req)
}

func jitter() { time.Sleep(time.Nanosecond) }

// TestLeaseShare: how few of the calls are left, at a steady rate far below the limit, from four processes.
func TestLeaseShare(t *testing.T) {
	for _, test := range []struct {
		name string
		cfg  lease.Config
		most float64 // of calls to takes
	}{
		{"batch of Max/1000", lease.Config{Steady: true, Processes: 4}, 0.04},
		{"adaptive", lease.Config{Processes: 4}, 0.01},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const perSecond, seconds, processes = 500, 60, 4
				p := &limit.Policy{Limits: []limit.Limit{limit.PerHour(4 * perSecond * seconds * processes / 10 * 10)}}
				there := &place{states: make(map[string]*state.State)}
				var all sync.WaitGroup
				var calls, returned, stranded atomic.Int64
				for i := range processes {
					all.Go(func() {
						w := &way{place: there, random: rand.New(rand.NewPCG(3, uint64(i)))}
						ls := backendtesting.NewLease(t, w, test.cfg)
						for range perSecond * seconds {
							if r, err := ls.Take(context.Background(), backend.Request{Key: "hot", Policy: p, Cost: 1}); err != nil || !r.Allowed {
								t.Errorf("allowed %t, %v", r.Allowed, err)
							}
							time.Sleep(time.Second / perSecond)
						}
						s := ls.Stats()
						calls.Add(s.Forwarded + s.Fetches)
						returned.Add(s.Returned)
						stranded.Add(s.Stranded)
					})
				}
				all.Wait()
				share := float64(calls.Load()) / (perSecond * seconds * processes)
				t.Logf("%.2f%% of %d takes made a call; %d went back, %d are stranded", 100*share, perSecond*seconds*processes,
					returned.Load(), stranded.Load())
				if share > test.most {
					t.Errorf("%.2f%% of the takes made a call, want at most %.0f%%", 100*share, 100*test.most)
				}
			})
		})
	}
}
