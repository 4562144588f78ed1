package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
)

// pair is a primary with replicas, in a bubble, after the first heartbeats. Nothing lags unless the test says so.
func pair(t *testing.T, replicas int, cfg router.Config) (*router.Router, beating, []beating) {
	t.Helper()
	store := newMemory(t)
	primary := newPrimary(store)
	group := router.NodeGroup{Name: "a", Primary: primary}
	fakes := make([]beating, replicas)
	for i := range fakes {
		fakes[i] = newReplica(store)
		group.Replicas = append(group.Replicas, fakes[i])
	}
	r := open(t, []router.NodeGroup{group}, cfg)
	synctest.Wait()
	return r, primary, fakes
}

func TestPeekFromReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, primary, replicas := pair(t, 1, router.Config{})
		peek := func() backend.Result {
			t.Helper()
			result, err := r.Peek(t.Context(), request("k"))
			if err != nil || result.Source != backend.Replica {
				t.Fatalf("peek: %v, %v", result.Source, err)
			}
			return result
		}
		got := peek()
		if !got.Allowed || got.Guarantee != backend.Bounded || got.Cause != backend.ErrReplicaMayLag {
			t.Errorf("an admission by a replica: %+v", got)
		}
		for range 5 {
			if _, err := r.Take(t.Context(), request("k")); err != nil {
				t.Fatal(err)
			}
		}
		got = peek()
		if got.Allowed || got.Guarantee != backend.Exact || got.Cause != nil {
			t.Errorf("a denial by a replica: %+v", got)
		}
		if loaded, err := r.Load(t.Context(), request("k")); err != nil || loaded.Source != backend.Replica {
			t.Errorf("load: %v, %v", loaded.Source, err)
		}
		if primary.called("load") != 0 || primary.called("take") != 5 || replicas[0].called("load") != 3 {
			t.Errorf("primary: %v, replica: %v", primary.calls, replicas[0].calls)
		}
	})
}

func TestReplicaIsJudgedAtThePrimarysClock(t *testing.T) {
	for name, test := range map[string]struct {
		primary, replica time.Duration // how far their clocks are ahead
		unknown          bool          // whether the primary's clock can't be known
		allowed          bool
	}{
		"replica ahead":                  {replica: 2 * time.Minute},
		"replica behind":                 {primary: 2 * time.Minute, allowed: true},
		"primary unknown, replica ahead": {replica: 2 * time.Minute, unknown: true, allowed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory(t)
				primary, replica := newPrimary(store), newReplica(store)
				group := router.NodeGroup{Name: "a", Primary: primary, Replicas: []backend.Backend{replica}}
				if test.unknown {
					group.Primary = bare{primary}
				}
				r := open(t, []router.NodeGroup{group}, router.Config{})
				synctest.Wait()
				for range 5 {
					if _, err := r.Take(t.Context(), request("k")); err != nil {
						t.Fatal(err)
					}
				}
				primary.set(func(c *counts) { c.ahead = test.primary })
				replica.set(func(c *counts) { c.ahead = test.replica })
				got, err := r.Peek(t.Context(), request("k"))
				if err != nil || got.Source != backend.Replica || got.Allowed != test.allowed {
					t.Errorf("allowed %v by %v, %v; want %v", got.Allowed, got.Source, err, test.allowed)
				}
				if left := got.Binding().Remaining; (left == 5) != test.allowed {
					t.Errorf("remaining %d", left)
				}
			})
		})
	}
}

func TestWhichReplicasAreRead(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(c *counts)
		cfg      router.Config
		readable bool
	}{
		"healthy":              {func(c *counts) {}, router.Config{}, true},
		"link down":            {func(c *counts) { c.beat.LinkUp = false }, router.Config{}, false},
		"became a primary":     {func(c *counts) { c.beat.Primary = true }, router.Config{}, false},
		"idle pair":            {func(c *counts) { c.beat.Age = 11 * time.Second }, router.Config{}, true},
		"old":                  {func(c *counts) { c.beat.Age = 16 * time.Second }, router.Config{}, false},
		"old, longer MaxLag":   {func(c *counts) { c.beat.Age = 16 * time.Second }, router.Config{MaxLag: time.Minute}, true},
		"young, short MaxLag":  {func(c *counts) { c.beat.Age = 2 * time.Second }, router.Config{MaxLag: time.Second}, false},
		"very old, no MaxLag":  {func(c *counts) { c.beat.Age = time.Hour }, router.Config{MaxLag: -1}, true},
		"no heartbeats":        {func(c *counts) {}, router.Config{Heartbeat: -1}, false},
		"breaker open":         {func(c *counts) { c.err = unavailable() }, router.Config{TripAfter: 1}, false},
		"last beat is too old": {func(c *counts) { c.delay = time.Hour }, router.Config{MaxLag: 2 * time.Second, TripAfter: -1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _, replicas := pair(t, 1, test.cfg)
				replicas[0].set(test.change)
				time.Sleep(4 * time.Second)
				if got := r.Nodes()[1].Readable; got != test.readable {
					t.Errorf("readable: %v, want %v", got, test.readable)
				}
				if !test.readable {
					expectFromPrimary(t, r, replicas[0])
				}
			})
		})
	}
}

func expectFromPrimary(t *testing.T, r *router.Router, replica beating) {
	t.Helper()
	before := replica.called("load")
	if got, err := r.Peek(t.Context(), request("k")); err != nil || got.Source != backend.Primary {
		t.Errorf("peek: %v, %v; want it from the primary", got.Source, err)
	}
	if replica.called("load") != before {
		t.Error("the replica was read")
	}
}

func TestReplicaThatCantBeAskedIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory(t)
		primary, replica := newPrimary(store), newReplica(store)
		replica.set(func(c *counts) { c.err = &backend.Error{Kind: backend.Misconfigured, Err: errors.New("NOPERM")} })
		var events log
		r := open(t, []router.NodeGroup{{Name: "a", Primary: primary, Replicas: []backend.Backend{replica}}},
			router.Config{OnEvent: events.add})
		time.Sleep(3 * time.Second)
		expectFromPrimary(t, r, replica)
		if !events.has("a", "replica-1", router.Misconfigured) || r.Nodes()[1].Breaker != "closed" {
			t.Errorf("events %v, breaker %s", events.all(), r.Nodes()[1].Breaker)
		}
	})
}

func TestReadsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The breakers never open: that every read finds its way is not their merit.
		r, _, replicas := pair(t, 2, router.Config{TripAfter: -1})
		fail := func(f beating, err error) { f.set(func(c *counts) { c.err = err }) }
		peek := func(want backend.Source) {
			t.Helper()
			for range 50 {
				if got, err := r.Peek(t.Context(), request("k")); err != nil || got.Source != want {
					t.Fatalf("peek: %v, %v; want %v", got.Source, err, want)
				}
			}
		}
		peek(backend.Replica)
		fail(replicas[0], unavailable())
		peek(backend.Replica)
		fail(replicas[1], &backend.Error{Op: "load", Kind: backend.Corrupt, Err: errors.New("x")})
		peek(backend.Primary)
		fail(replicas[0], nil)
		peek(backend.Replica)
	})
}

func TestReadDeadlines(t *testing.T) {
	const hang = time.Hour
	for name, test := range map[string]struct {
		replicas, primary time.Duration // how long they take
		caller            time.Duration // the caller's deadline; 0 for none
		want              time.Duration
		kind              backend.Kind // of the error; 0 for none
		cfg               router.Config
	}{
		"all hang": {replicas: hang, primary: hang, want: 250 * time.Millisecond, kind: backend.Unavailable},
		"all hang, longer timeout": {
			replicas: hang, primary: hang, want: 400 * time.Millisecond, kind: backend.Unavailable,
			cfg: router.Config{Backend: redisbackend.Config{Timeout: 400 * time.Millisecond}},
		},
		"all hang, own timeout": {
			replicas: hang, primary: hang, want: 100 * time.Millisecond, kind: backend.Unavailable,
			cfg: router.Config{ReadTimeout: 100 * time.Millisecond},
		},
		"all hang, short deadline": {
			replicas: hang, primary: hang, caller: 40 * time.Millisecond, want: 40 * time.Millisecond, kind: backend.Interrupted,
		},
		"replicas hang":                 {replicas: hang, want: 187500 * time.Microsecond},
		"replicas hang, short deadline": {replicas: hang, caller: 40 * time.Millisecond, want: 30 * time.Millisecond},
		"replicas hang, slow primary":   {replicas: hang, primary: 50 * time.Millisecond, want: 237500 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, primary, replicas := pair(t, 3, test.cfg)
				primary.set(func(c *counts) { c.delay = test.primary })
				for _, f := range replicas {
					f.set(func(c *counts) { c.delay = test.replicas })
				}
				ctx := t.Context()
				if test.caller > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.caller)
					defer cancel()
				}
				start := time.Now()
				_, err := r.Peek(ctx, request("k"))
				if took := time.Since(start); took != test.want || kind(err) != test.kind {
					t.Errorf("returned after %v: %v; want %v, %v", took, err, test.want, test.kind)
				}
				if test.kind != 0 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("not a deadline: %v", err)
				}
			})
		})
	}
}

func TestFasterReplicaIsPreferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, replicas := pair(t, 3, router.Config{})
		delay := func(f beating, d time.Duration) { f.set(func(c *counts) { c.delay = d }) }
		loads := func() (n [3]int) {
			for range 1000 {
				if _, err := r.Peek(t.Context(), request("k")); err != nil {
					t.Fatal(err)
				}
			}
			for i, f := range replicas {
				f.set(func(c *counts) { n[i], c.calls["load"] = c.calls["load"], 0 })
			}
			return n
		}
		for i, d := range []time.Duration{20, 2, 1} {
			delay(replicas[i], d*time.Millisecond)
		}
		// Of three pairs the fastest is in two. The slowest is read to learn how slow it is, and again when that fades.
		if n := loads(); n[2] < 600 || n[1] < 250 || n[0] > 50 {
			t.Errorf("loads by replicas of 20, 2 and 1 ms: %v", n)
		}
		delay(replicas[0], time.Millisecond/2)
		time.Sleep(30 * time.Second)
		loads()
		if n := loads(); n[0] < 600 {
			t.Errorf("loads by replicas of 0.5, 2 and 1 ms: %v", n)
		}
		delay(replicas[2], 100*time.Millisecond) // one slow answer is enough to be avoided
		if n := loads(); n[2] > 50 {
			t.Errorf("loads by replicas of 0.5, 2 and 100 ms: %v", n)
		}
	})
}

// A replica that refuses at once, in a way that opens no breaker, is not taken for the fastest.
func TestRefusingReplicaIsNotPreferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, replicas := pair(t, 2, router.Config{})
		replicas[0].set(func(c *counts) { c.delay = time.Millisecond })
		replicas[1].set(func(c *counts) { c.err = &backend.Error{Kind: backend.Misconfigured, Err: errors.New("NOPERM")} })
		for range 1000 {
			if got, err := r.Peek(t.Context(), request("k")); err != nil || got.Source != backend.Replica {
				t.Fatalf("peek: %v, %v", got.Source, err)
			}
		}
		if n := replicas[1].called("load"); n > 50 {
			t.Errorf("it was asked %d times in 1000 reads", n)
		}
	})
}

func TestReadersAtOnceSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, replicas := pair(t, 2, router.Config{})
		for _, f := range replicas {
			f.set(func(c *counts) { c.delay = time.Millisecond })
		}
		_, _ = r.Peek(t.Context(), request("k")) // one is known now, and slower than the floor
		var callers sync.WaitGroup
		for i := range 100 {
			callers.Go(func() { _, _ = r.Peek(t.Context(), request(fmt.Sprint(i))) })
		}
		callers.Wait()
		for i, f := range replicas {
			if n := f.called("load"); n < 3 {
				t.Errorf("replica %d served %d of 101", i, n)
			}
		}
	})
}
