//go:build unix

package backend_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// follow makes a take with a trace.
func follow(t *testing.T, b backend.Backend, key string, p *limit.Policy, cost int64) (backend.Result, backend.Trace) {
	t.Helper()
	var trace backend.Trace
	r, err := b.Take(t.Context(), backend.Request{Key: key, Policy: p, Cost: cost, Trace: &trace})
	if err != nil {
		t.Fatal(err)
	}
	return r, trace
}

// onlyCall is the one call of a trace, without its times, which are checked.
func onlyCall(t *testing.T, trace backend.Trace) backend.Call {
	t.Helper()
	if len(trace.Calls) != 1 {
		t.Fatalf("calls %+v, want one", trace.Calls)
	}
	c := trace.Calls[0]
	if c.Duration <= 0 || time.Since(c.Start) < c.Duration {
		t.Errorf("began %s and took %s", c.Start, c.Duration)
	}
	c.Start, c.Duration = time.Time{}, 0
	return c
}

func TestTraceOfRedis(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Timeout: 5 * time.Second})
	if err := b.Ping(t.Context()); err != nil { // the first call reads the clock
		t.Fatal(err)
	}
	call := backend.Call{System: "redis", Node: server.Addr, Op: "take", Command: "EVALSHA", Script: "takeone", Shared: 1}
	for range 2 { // admitted and denied; the script is loaded
		_, trace := follow(t, b, "key", backendtesting.Hour(1), 1)
		if got := onlyCall(t, trace); got != call {
			t.Errorf("a take: %+v, want %+v", got, call)
		}
	}
	_, trace := follow(t, b, "other", &limit.Policy{Name: "b", Limits: []limit.Limit{limit.TokenBucket(1, time.Hour, 1)}}, 1)
	call.Script = "takebucket"
	if got := onlyCall(t, trace); got != call {
		t.Errorf("a bucket: %+v, want %+v", got, call)
	}
	var looked backend.Trace
	if _, err := b.Peek(t.Context(), backend.Request{Key: "key", Policy: backendtesting.Hour(1), Cost: 1, Trace: &looked}); err != nil {
		t.Fatal(err)
	}
	if got, want := onlyCall(t, looked), (backend.Call{System: "redis", Node: server.Addr, Op: "load", Command: "GET"}); got != want {
		t.Errorf("a peek: %+v, want %+v", got, want)
	}

	var together sync.WaitGroup // the race detector looks at traces of calls that go together, and of those that are given up
	for i := range 64 {
		together.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*100*time.Microsecond)
			defer cancel()
			var trace backend.Trace
			_, err := b.Take(ctx, backend.Request{Key: "key", Policy: backendtesting.Hour(1), Cost: 1, Trace: &trace})
			for _, c := range trace.Calls {
				if (c.Err == nil) != (err == nil) || (c.Shared > 0) != (err == nil) {
					t.Errorf("%+v of a take that ended with %v", c, err)
				}
			}
		})
	}
	together.Wait()

	if _, err := server.Client().Do(t.Context(), "CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction").Result(); err != nil {
		t.Fatal(err)
	}
	trace = backend.Trace{}
	if _, err := b.Take(t.Context(), backend.Request{Key: "full", Policy: backendtesting.Hour(1), Cost: 1, Trace: &trace}); err == nil {
		t.Fatal("a full server took it")
	}
	if got := onlyCall(t, trace); got.Status != "OOM" || got.Err == nil {
		t.Errorf("a refusal: %+v, want the word that the server began with", got)
	}

	server.Kill()
	trace = backend.Trace{}
	_, err := b.Take(t.Context(), backend.Request{Key: "key", Policy: backendtesting.Hour(1), Cost: 1, Trace: &trace})
	if got := onlyCall(t, trace); err == nil || got.Err != err || got.Shared != 0 || got.Status != "" {
		t.Errorf("a server that is away: %+v, %v", got, err)
	}
}

func TestTraceOfMemcached(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	b := backendtesting.OpenMemcached(t, memcached.Config{}, server.Addr)
	_, trace := follow(t, b, "key", backendtesting.Hour(1), 1)
	if got, want := onlyCall(t, trace), (backend.Call{System: "memcached", Node: server.Addr, Op: "take"}); got != want {
		t.Errorf("a take: %+v, want %+v", got, want)
	}
}

func TestTraceOfDual(t *testing.T) {
	t.Parallel()
	useNew := false
	d := backendtesting.NewDual(t, dual.Config{
		Old: backendtesting.NewMemory(t, memory.Config{}), New: backendtesting.NewMemory(t, memory.Config{}), CarryOver: true,
		Decide: func(string) (bool, uint64) { return useNew, map[bool]uint64{true: 1}[useNew] },
		Shadow: func(key string) bool { return key == "shadowed" }, Flag: "to-new",
	})
	p := backendtesting.Hour(10)
	for _, test := range []struct {
		key      string
		useNew   bool
		side     string
		handed   bool
		shadowed bool
	}{
		{"key", false, "old", true, false}, // the first call after a start asks the other side
		{"key", false, "old", false, false},
		{"key", true, "new", true, false},
		{"key", true, "new", false, false},
		{"shadowed", true, "new", true, true},
	} {
		useNew = test.useNew
		_, trace := follow(t, d, test.key, p, 1)
		if version := map[bool]uint64{true: 1}[useNew]; trace.Flag != "to-new" || trace.FlagVersion != version {
			t.Errorf("%+v: by version %d of %q, want %d", test, trace.FlagVersion, trace.Flag, version)
		}
		if trace.Side != test.side || trace.HandedOver != test.handed || trace.Shadowed != test.shadowed {
			t.Errorf("%+v: %+v", test, trace)
		}
	}
}

func TestTraceOfLease(t *testing.T) {
	t.Parallel()
	inner := backendtesting.NewDual(t, dual.Config{
		Old: backendtesting.NewMemory(t, memory.Config{}), New: backendtesting.NewMemory(t, memory.Config{}), Decide: backendtesting.Constant(true),
	})
	ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 100, Steady: true})
	p := backendtesting.Hour(100_000)
	for _, test := range []struct {
		cost   int64
		use    string
		side   string
		source backend.Source
	}{
		{1, "forwarded", "new", backend.Local},
		{1, "fetched", "new", backend.Local},
		{1, "", "", backend.Leased},
		{1000, "forwarded", "new", backend.Local},
	} {
		r, trace := follow(t, ls, "key", p, test.cost)
		if trace.Lease != test.use || trace.Side != test.side || r.Source != test.source {
			t.Errorf("%+v: %+v by %s", test, trace, r.Source)
		}
	}
}

// TestTraceOfSharedFetch: all who wait for one fetch are told of its calls, whoever began it.
func TestTraceOfSharedFetch(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	inner := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Timeout: 5 * time.Second})
	ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 1000, Steady: true})
	p := backendtesting.Hour(1_000_000)
	backendtesting.Warm(t, ls, p)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var trace backend.Trace
			r, err := ls.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1, Trace: &trace})
			if err != nil || (r.Source == backend.Leased) != (len(trace.Calls) == 0) {
				t.Errorf("by %s with %d calls, %v", r.Source, len(trace.Calls), err)
			}
		})
	}
	all.Wait()

	spent := backendtesting.Hour(1)
	spent.Name = "spent"
	follow(t, ls, "key", spent, 1)
	follow(t, ls, "key", spent, 1)
	if r, trace := follow(t, ls, "key", spent, 1); r.Source != backend.LocalDeny || trace.Lease != "" {
		t.Errorf("denied by %s: %+v", r.Source, trace)
	}
}
