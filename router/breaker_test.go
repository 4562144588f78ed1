package router_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// lone is one primary without heartbeats: its breaker depends on calls only.
func lone(t *testing.T, cfg router.Config) (*router.Router, fake) {
	t.Helper()
	f := newFake(newMemory(t))
	return open(t, []router.NodeGroup{{Name: "a", Primary: f}}, cfg), f
}

func take(t *testing.T, r *router.Router) error {
	_, err := r.Take(t.Context(), request("k"))
	return err
}

func TestBreakerOpensAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events log
		r, f := lone(t, router.Config{OnEvent: events.add})
		f.set(func(c *counts) { c.err = unavailable() })
		for range 5 {
			if err := take(t, r); errors.Is(err, router.ErrBreakerOpen) {
				t.Fatal("opened too soon")
			}
		}
		err := take(t, r)
		var typed *backend.Error
		if !errors.Is(err, router.ErrBreakerOpen) || !errors.As(err, &typed) ||
			typed.Kind != backend.Unavailable || typed.MayHaveCharged || typed.Op != "take" || typed.Node != "a/primary" {
			t.Fatalf("after five failures: %v", err)
		}
		if n := f.called("take"); n != 5 || r.Nodes()[0].Breaker != "open" {
			t.Errorf("%d calls, breaker %s", n, r.Nodes()[0].Breaker)
		}

		time.Sleep(1201 * time.Millisecond) // the trial fails
		if err := take(t, r); errors.Is(err, router.ErrBreakerOpen) || err == nil {
			t.Errorf("trial: %v", err)
		}
		if err := take(t, r); !errors.Is(err, router.ErrBreakerOpen) {
			t.Errorf("after a trial that failed: %v", err)
		}

		f.set(func(c *counts) { c.err = nil })
		time.Sleep(799 * time.Millisecond)
		if err := take(t, r); !errors.Is(err, router.ErrBreakerOpen) {
			t.Errorf("before its time: %v", err)
		}
		time.Sleep(402 * time.Millisecond)
		for range 2 {
			if err := take(t, r); err != nil {
				t.Errorf("after recovery: %v", err)
			}
		}
		synctest.Wait()
		want := []router.EventKind{router.BreakerOpened, router.BreakerClosed}
		if got := events.kinds("a", "primary"); !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		if e := events.all()[0]; kind(e.Err) != backend.Unavailable || e.Time.IsZero() {
			t.Errorf("event %v at %v", e, e.Time)
		}
	})
}

func TestOneCallAtATimeTriesAHalfOpenNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := lone(t, router.Config{TripAfter: 1})
		f.set(func(c *counts) { c.err = unavailable() })
		_ = take(t, r)
		f.set(func(c *counts) { c.err, c.delay = nil, 100*time.Millisecond })
		time.Sleep(2 * time.Second)
		refused := 0
		var mu sync.Mutex
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				if err := take(t, r); errors.Is(err, router.ErrBreakerOpen) {
					mu.Lock()
					refused++
					mu.Unlock()
				}
			})
		}
		callers.Wait()
		if refused != 19 || f.called("take") != 2 {
			t.Errorf("%d of 20 refused, %d calls in all", refused, f.called("take"))
		}
		if err := take(t, r); err != nil {
			t.Errorf("after the trial: %v", err)
		}
	})
}

func TestWhatOpensABreaker(t *testing.T) {
	typed := func(kind backend.Kind) error { return &backend.Error{Op: "take", Kind: kind, Err: io.EOF} }
	for name, test := range map[string]struct {
		errs  []error // met by calls, again and again
		cfg   router.Config
		calls int // after which it opens; 0 for never
	}{
		"unavailable":               {errs: []error{unavailable()}, calls: 5},
		"sooner":                    {errs: []error{unavailable()}, cfg: router.Config{TripAfter: 2}, calls: 2},
		"never":                     {errs: []error{unavailable()}, cfg: router.Config{TripAfter: -1}},
		"interrupted":               {errs: []error{typed(backend.Interrupted)}},
		"misconfigured":             {errs: []error{typed(backend.Misconfigured)}},
		"corrupt":                   {errs: []error{typed(backend.Corrupt)}},
		"contended":                 {errs: []error{typed(backend.Contended)}},
		"closed":                    {errs: []error{backend.ErrClosed}},
		"bad input":                 {errs: []error{&limit.Error{Field: "cost"}}},
		"cancelled":                 {errs: []error{context.Canceled}},
		"deadline":                  {errs: []error{context.DeadlineExceeded}},
		"half of the calls":         {errs: []error{unavailable(), nil}, calls: 21},
		"a third of the calls":      {errs: []error{unavailable(), nil, nil}},
		"interruptions are aside":   {errs: []error{unavailable(), typed(backend.Interrupted)}, calls: 9},
		"cancelled calls are aside": {errs: []error{unavailable(), context.Canceled}, calls: 9},
		"half, with interruptions": {
			errs: []error{unavailable(), nil, typed(backend.Interrupted), typed(backend.Interrupted)}, calls: 41,
		},
		"a third, with interruptions": {
			errs: []error{unavailable(), nil, nil, typed(backend.Interrupted), typed(backend.Interrupted)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, f := lone(t, test.cfg)
				opened := 0
				for i := 1; i <= 200; i++ {
					f.set(func(c *counts) { c.err = test.errs[(i-1)%len(test.errs)] })
					_ = take(t, r)
					if r.Nodes()[0].Breaker != "closed" {
						opened = i
						break
					}
				}
				if opened != test.calls {
					t.Errorf("opened after %d calls, want %d", opened, test.calls)
				}
			})
		})
	}
}

func TestOldFailuresAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := lone(t, router.Config{})
		f.set(func(c *counts) { c.err = unavailable() })
		for range 10 {
			_ = take(t, r)
			time.Sleep(3 * time.Second)
		}
		if r.Nodes()[0].Breaker != "closed" {
			t.Error("opened by a failure every three seconds")
		}
	})
}

// The window moves with every second. One that starts anew every ten seconds would forget the first three failures.
func TestFailuresAreCountedAcrossWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := lone(t, router.Config{})
		time.Sleep(9 * time.Second)
		f.set(func(c *counts) { c.err = unavailable() })
		for range 5 {
			_ = take(t, r)
			time.Sleep(500 * time.Millisecond)
		}
		if r.Nodes()[0].Breaker != "open" {
			t.Error("not opened by five failures in a row")
		}
	})
}

func TestUnwatchedReplicaComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory(t)
		replica := newFake(store) // neither Heartbeater nor Pinger
		r := open(t, []router.NodeGroup{{Name: "a", Primary: newFake(store), Replicas: []backend.Backend{replica}}}, router.Config{})
		peek := func() backend.Source {
			got, _ := r.Peek(t.Context(), request("k"))
			return got.Source
		}
		if got := peek(); got != backend.Replica {
			t.Errorf("healthy: read from %v", got)
		}
		if nodes := r.Nodes(); nodes[0].Readable || !nodes[1].Readable {
			t.Errorf("readable: primary %v, replica %v", nodes[0].Readable, nodes[1].Readable)
		}
		replica.set(func(c *counts) { c.err = unavailable() })
		for range 5 {
			peek()
		}
		replica.set(func(c *counts) { c.err = nil })
		if got := peek(); got != backend.Primary {
			t.Errorf("breaker open: read from %v", got)
		}
		time.Sleep(1201 * time.Millisecond)
		if got := peek(); got != backend.Replica {
			t.Errorf("breaker half open: read from %v", got)
		}
	})
}

// A watched replica whose breaker is half open is tried by its heartbeat, not by a caller.
func TestHalfOpenReplicaIsLeftToTheHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events log
		r, _, replicas := pair(t, 1, router.Config{OnEvent: events.add})
		replicas[0].set(func(c *counts) { c.err = unavailable() })
		time.Sleep(2 * time.Second)
		replicas[0].set(func(c *counts) { c.err, c.delay = nil, 500*time.Millisecond })
		await(t, "the trial", func() bool { return r.Nodes()[1].Breaker == "half-open" })
		expectFromPrimary(t, r, replicas[0])
		if events.has("a", "replica-1", router.BreakerClosed) {
			t.Error("said to be closed before the trial has ended")
		}
		replicas[0].set(func(c *counts) { c.delay = 0 })
		time.Sleep(time.Second)
		if got, err := r.Peek(t.Context(), request("k")); err != nil || got.Source != backend.Replica {
			t.Errorf("after the trial: %v, %v", got.Source, err)
		}
	})
}
