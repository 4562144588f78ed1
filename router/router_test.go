package router_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/ring"
	"github.com/sluice-go/sluice/router"
)

func threeMemories(t *testing.T) []router.NodeGroup {
	return []router.NodeGroup{
		{Name: "a", Primary: newMemory(t)}, {Name: "b", Primary: newMemory(t)}, {Name: "c", Primary: newMemory(t), Weight: 2},
	}
}

func TestOwner(t *testing.T) {
	groups := threeMemories(t)
	first := open(t, groups, router.Config{Seed: 7})
	reversed := threeMemories(t)
	slices.Reverse(reversed)
	second := open(t, reversed, router.Config{Seed: 7})
	otherSeed := open(t, threeMemories(t), router.Config{Seed: 8})
	load, moved := make(map[string]int), 0
	for i := range 10_000 {
		key := fmt.Sprint("user:", i)
		owner := first.Owner(key)
		if got := second.Owner(key); got != owner {
			t.Fatalf("%s: %s in one process, %s in another", key, owner, got)
		}
		if otherSeed.Owner(key) != owner {
			moved++
		}
		load[owner]++
	}
	if moved < 5000 {
		t.Errorf("another seed moved %d of 10000 keys", moved)
	}
	for group, share := range map[string]int{"a": 2500, "b": 2500, "c": 5000} {
		if load[group] < share*9/10 || load[group] > share*11/10 {
			t.Errorf("%s owns %d of 10000 keys, want about %d", group, load[group], share)
		}
	}
}

func TestSeedOfTheTopology(t *testing.T) {
	topology := router.Topology{Seed: 7, Groups: []router.Group{
		{Name: "a", Primary: "localhost:1"}, {Name: "b", Primary: "localhost:2"}, {Name: "c", Primary: "localhost:3", Weight: 2},
	}}
	opened, err := router.Open(topology, router.Config{Heartbeat: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	made := open(t, threeMemories(t), router.Config{Seed: 7})
	for i := range 1000 {
		if key := fmt.Sprint(i); opened.Owner(key) != made.Owner(key) {
			t.Fatalf("%s: owned by %s and %s", key, opened.Owner(key), made.Owner(key))
		}
	}
}

func TestEveryOperationGoesToTheOwner(t *testing.T) {
	ctx := t.Context()
	groups := threeMemories(t)
	r := open(t, groups, router.Config{})
	for _, g := range groups {
		req := request(keyOf(r, g.Name, 0))

		taken, err := r.Take(ctx, req)
		if err != nil || !taken.Allowed || taken.Source != backend.Primary || taken.Guarantee != backend.Exact {
			t.Fatalf("take: %+v, %v", taken, err)
		}
		for _, other := range groups {
			stored, err := backend.Load(ctx, other.Primary, req)
			if err != nil || stored.State.Empty() == (other.Name == g.Name) {
				t.Fatalf("group %s has %q after a take of %s's key, %v", other.Name, stored.State.String(), g.Name, err)
			}
		}
		expect := func(step string, used int64) {
			t.Helper()
			peeked, err := r.Peek(ctx, req)
			if got := 5 - peeked.Binding().Remaining; err != nil || got != used || peeked.Source != backend.Primary {
				t.Errorf("after %s: used %d by %v, %v; want %d", step, got, peeked.Source, err, used)
			}
			snapshot, err := r.Load(ctx, req)
			if err != nil || snapshot.Source != backend.Primary {
				t.Errorf("after %s: load: %v, %v", step, snapshot.Source, err)
			}
			if at := snapshot.Peek(&req); 5-at.Binding().Remaining != used {
				t.Errorf("after %s: loaded %d used, want %d", step, 5-at.Binding().Remaining, used)
			}
		}
		expect("take", 1)

		snapshot, _ := r.Load(ctx, req)
		if err := r.Refund(ctx, req, taken.Receipt(), 1); err != nil {
			t.Error(err)
		}
		expect("refund", 0)
		if err := r.Seed(ctx, req, snapshot.State); err != nil {
			t.Error(err)
		}
		expect("a seed that knows less", 0)
		if _, err := r.Take(ctx, req); err != nil {
			t.Error(err)
		}
		if err := r.Reset(ctx, req); err != nil {
			t.Error(err)
		}
		expect("reset", 0)
	}
	if err := r.Ping(ctx); err != nil {
		t.Error(err)
	}
}

func TestBadRequestsReachNoNode(t *testing.T) {
	node := newFake(newMemory(t))
	node.set(func(c *counts) { c.err = unavailable() }) // a request that came through would open the breaker
	r := open(t, []router.NodeGroup{{Name: "a", Primary: node}}, router.Config{TripAfter: 1})
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	var none context.Context
	for name, call := range map[string]func() error{
		"nil context": func() error { _, err := r.Take(none, request("k")); return err },
		"empty key":   func() error { _, err := r.Take(t.Context(), request("")); return err },
		"no policy":   func() error { _, err := r.Peek(t.Context(), backend.Request{Key: "k", Cost: 1}); return err },
		"cost 0": func() error {
			_, err := r.Take(t.Context(), backend.Request{Key: "k", Policy: &fivePerMinute})
			return err
		},
		"nil context, ping": func() error { return r.Ping(none) },
	} {
		var bad *limit.Error
		if err := call(); !errors.As(err, &bad) {
			t.Errorf("%s: %v, want a *limit.Error", name, err)
		}
	}
	tooMuch := request("k")
	tooMuch.Cost = 6
	if _, err := r.Peek(t.Context(), tooMuch); !errors.Is(err, limit.ErrCostExceedsLimit) {
		t.Errorf("cost above the limit: %v", err)
	}
	if _, err := r.Take(cancelled, request("k")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if calls := node.called("take") + node.called("load"); calls != 0 {
		t.Errorf("%d calls reached the node", calls)
	}
}

// bare is a backend that can't do anything else.
type bare struct{ backend.Backend }

func TestUnsupported(t *testing.T) {
	r := open(t, []router.NodeGroup{{Name: "a", Primary: bare{newMemory(t)}}}, router.Config{})
	req := request("k")
	taken, err := r.Take(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	_, peek := r.Peek(t.Context(), req)
	_, load := r.Load(t.Context(), req)
	for op, err := range map[string]error{
		"peek": peek, "load": load,
		"refund": r.Refund(t.Context(), req, taken.Receipt(), 1),
		"reset":  r.Reset(t.Context(), req),
		"seed":   r.Seed(t.Context(), req, taken.State),
	} {
		if !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: %v", op, err)
		}
	}
	if err := r.Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestClose(t *testing.T) {
	store := newMemory(t)
	primary, replica := newPrimary(store), newReplica(store)
	r, err := router.New([]router.NodeGroup{{
		Name: "a", Primary: primary, Replicas: []backend.Backend{replica},
	}}, router.Config{OnEvent: func(router.Event) {}})
	if err != nil {
		t.Fatal(err)
	}
	owner := r.Owner("k")
	for range 2 { // the fakes complain when they are closed twice
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if !primary.shut || !replica.shut {
		t.Errorf("closed: primary %v, replica %v", primary.shut, replica.shut)
	}
	req := request("k")
	_, take := r.Take(t.Context(), req)
	_, peek := r.Peek(t.Context(), req)
	_, load := r.Load(t.Context(), req)
	for op, err := range map[string]error{
		"take": take, "peek": peek, "load": load, "ping": r.Ping(t.Context()), "reset": r.Reset(t.Context(), req),
		"refund": r.Refund(t.Context(), req, state.Receipt{}, 1), "seed": r.Seed(t.Context(), req, state.State{}),
	} {
		if !errors.Is(err, backend.ErrClosed) {
			t.Errorf("%s after Close: %v", op, err)
		}
	}
	if got := r.Owner("k"); got != owner || len(r.Nodes()) != 2 {
		t.Errorf("after Close: owner %q, %d nodes", got, len(r.Nodes()))
	}
}

func TestConcurrentTakesAreExact(t *testing.T) {
	r := open(t, threeMemories(t), router.Config{})
	var admitted [30]atomic.Int64
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for i := range admitted {
				result, err := r.Take(t.Context(), request(fmt.Sprint("user:", i)))
				if err != nil {
					t.Error(err)
				} else if result.Allowed {
					admitted[i].Add(1)
				}
				_, _ = r.Peek(t.Context(), request(fmt.Sprint("user:", i)))
				r.Nodes()
			}
		})
	}
	callers.Wait()
	for i := range admitted {
		if got := admitted[i].Load(); got != 5 {
			t.Errorf("user:%d: %d admitted, want 5", i, got)
		}
	}
}

func TestCloseDuringCalls(t *testing.T) {
	r := open(t, threeMemories(t), router.Config{OnEvent: func(router.Event) {}})
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for {
				if _, err := r.Take(t.Context(), request(fmt.Sprint(i))); err != nil {
					if !errors.Is(err, backend.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	callers.Wait()
}

// uncomparable is a backend that can't be a map key.
type uncomparable struct {
	backend.Backend
	_ []int
}

func TestNewRefuses(t *testing.T) {
	m := newMemory(t)
	var nilMemory *memory.Memory
	for name, test := range map[string]struct {
		groups []router.NodeGroup
		cfg    router.Config
		fields []string
	}{
		"nothing":       {nil, router.Config{}, []string{"groups"}},
		"no name":       {[]router.NodeGroup{{Primary: m}}, router.Config{}, []string{"groups[0].name"}},
		"a name twice":  {[]router.NodeGroup{{Name: "a", Primary: m}, {Name: "a", Primary: newMemory(t)}}, router.Config{}, []string{"groups[1].name"}},
		"weight":        {[]router.NodeGroup{{Name: "a", Weight: -1, Primary: m}}, router.Config{}, []string{"groups[0].weight"}},
		"no primary":    {[]router.NodeGroup{{Name: "a"}}, router.Config{}, []string{"groups[0].primary"}},
		"nil pointer":   {[]router.NodeGroup{{Name: "a", Primary: nilMemory}}, router.Config{}, []string{"groups[0].primary"}},
		"nil replica":   {[]router.NodeGroup{{Name: "a", Primary: m, Replicas: []backend.Backend{nil}}}, router.Config{}, []string{"groups[0].replicas[0]"}},
		"replica twice": {[]router.NodeGroup{{Name: "a", Primary: m, Replicas: []backend.Backend{m}}}, router.Config{}, []string{"groups[0].replicas[0]"}},
		"not a loader":  {[]router.NodeGroup{{Name: "a", Primary: m, Replicas: []backend.Backend{bare{m}}}}, router.Config{}, []string{"groups[0].replicas[0]"}},
		"uncomparable":  {[]router.NodeGroup{{Name: "a", Primary: uncomparable{Backend: m}, Weight: 9999}}, router.Config{}, []string{"groups[0].weight"}},
		"config":        {[]router.NodeGroup{{Name: "a", Primary: m}}, router.Config{ReadTimeout: -1, OpenFor: -1}, []string{"ReadTimeout", "OpenFor"}},
		"all at once":   {[]router.NodeGroup{{Name: "a b", Weight: 1025}, {Name: "a"}}, router.Config{OpenFor: -1}, []string{"groups[0].name", "groups[0].weight", "groups[0].primary", "groups[1].primary", "OpenFor"}},
		"what is only for Open": {[]router.NodeGroup{{Name: "a", Primary: m}}, router.Config{
			Redis: &redis.Options{}, Sentinel: &redis.Options{}, Backend: redisbackend.Config{Prefix: "x:"},
			Node:         func(string) (backend.Backend, error) { return m, nil },
			TopologyKeys: []ed25519.PublicKey{make([]byte, ed25519.PublicKeySize)}, AllowedAddresses: []string{"*"},
		}, []string{"Redis", "Sentinel", "Backend", "Node", "TopologyKeys", "AllowedAddresses"}},
		"negative timeout": {[]router.NodeGroup{{Name: "a", Primary: m}}, router.Config{Backend: redisbackend.Config{Timeout: -1}}, []string{"Backend.Timeout"}},
		"endless": {[]router.NodeGroup{{Name: "a", Primary: m}}, router.Config{
			Backend: redisbackend.Config{Timeout: math.MaxInt64}, ReadTimeout: math.MaxInt64, Heartbeat: math.MaxInt64, OpenFor: math.MaxInt64,
		}, []string{"Backend.Timeout", "ReadTimeout", "Heartbeat", "OpenFor"}},
		"too much weight": {[]router.NodeGroup{
			{Name: "a", Weight: 1024, Primary: m}, {Name: "b", Weight: 1024, Primary: newMemory(t)}, {Name: "c", Primary: newMemory(t)},
		}, router.Config{}, []string{"groups: total weight"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := router.New(test.groups, test.cfg)
			if err == nil {
				_ = r.Close()
			}
			if got := refusedFields(err); !slices.Equal(got, test.fields) {
				t.Errorf("refused %q, want %q: %v", got, test.fields, err)
			}
		})
	}
	if m.Ping(t.Context()) != nil {
		t.Error("a node was closed by a New that failed")
	}
}

// TestOpenRefusesNegativeTimeout: the field is named as it was written, with Config.Node too.
func TestOpenRefusesNegativeTimeout(t *testing.T) {
	for name, node := range map[string]func(string) (backend.Backend, error){"Redis": nil, "Node": newPlant().node} {
		r, err := router.Open(topo(1, 1), router.Config{Node: node, Backend: redisbackend.Config{Timeout: -time.Second}})
		if err == nil {
			_ = r.Close()
		}
		if got := refusedFields(err); !slices.Equal(got, []string{"Backend.Timeout"}) {
			t.Errorf("%s: refused %q: %v", name, got, err)
		}
	}
}

// TestTripAfterHuge: a bound that never comes is not one that always does.
func TestTripAfterHuge(t *testing.T) {
	f := newFake(newMemory(t))
	f.err = unavailable()
	after := uint64(1) << 32 // its lower half is 0
	r := open(t, []router.NodeGroup{{Name: "a", Primary: f}}, router.Config{TripAfter: int(after), Heartbeat: -1})
	for range 10 {
		if _, err := r.Take(t.Context(), request("k")); errors.Is(err, router.ErrBreakerOpen) {
			t.Fatal(err)
		}
	}
}

// refusedFields are the fields that the ConfigErrors in a tree of joined errors name, in order.
func refusedFields(err error) []string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var fields []string
		for _, e := range joined.Unwrap() {
			fields = append(fields, refusedFields(e)...)
		}
		return fields
	}
	var bad *router.ConfigError
	if !errors.As(err, &bad) {
		return nil
	}
	if !strings.Contains(bad.Error(), bad.Field) || !strings.Contains(bad.Error(), bad.Value) || bad.Bound == "" {
		return []string{"poor message: " + bad.Error()}
	}
	return []string{bad.Field}
}

// The bounds of a topology are those of the ring. A ring of that size takes seconds to build, so it is given a second
// fault: what it says then is all that it has against its members.
func TestWeightsThatFitTheRing(t *testing.T) {
	for weight, want := range map[int]string{
		1024: "ring: members[1].Name",
		1025: "ring: members[0].Weight",
	} {
		_, err := ring.New([]ring.Member{{Name: "a", Weight: weight}, {Name: "a", Weight: 1024}}, ring.Config{})
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "total") {
			t.Errorf("weight %d: %v, want only %s", weight, err, want)
		}
	}
	_, err := ring.New([]ring.Member{{Name: "a", Weight: 1024}, {Name: "b", Weight: 1024}, {Name: "c"}}, ring.Config{})
	if err == nil || !strings.Contains(err.Error(), "total") {
		t.Errorf("total weight 2049: %v", err)
	}
}
