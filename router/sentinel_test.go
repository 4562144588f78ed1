//go:build unix

package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/router"
)

// watched is a primary and its replicas, watched by three sentinels that call it "main".
type watched struct {
	primary   *testserver.Server
	replicas  []*testserver.Server
	sentinels []*testserver.Server
}

func startWatched(t *testing.T, config ...string) *watched {
	t.Helper()
	w := &watched{primary: testserver.Redis(t)}
	for range 2 {
		w.replicas = append(w.replicas, testserver.Replica(t, w.primary))
	}
	w.sentinels = testserver.Sentinels(t, "main", w.primary, len(w.replicas), config...)
	return w
}

func (w *watched) group(name string) router.Group {
	g := router.Group{Name: name, Master: "main"}
	for _, s := range w.sentinels {
		g.Sentinels = append(g.Sentinels, s.Addr)
	}
	return g
}

// awaitNodes waits until a group has a primary at an address and so many replicas that are read.
func awaitNodes(t *testing.T, r *router.Router, group, primary string, replicas int) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("primary %s and %d replicas of %s", primary, replicas, group), func() bool {
		found, read := "", 0
		for _, n := range r.Nodes() {
			switch {
			case n.Group == group && n.Role == router.RolePrimary:
				found = n.Node
			case n.Group == group && n.Readable:
				read++
			}
		}
		return (primary == "" || found == primary) && read >= replicas
	})
}

// eventually is await for what takes servers a while.
func eventually(t testing.TB, most time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(most); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func primaryOf(r *router.Router, group string) string {
	for _, n := range r.Nodes() {
		if n.Group == group && n.Role == router.RolePrimary {
			return n.Node
		}
	}
	return ""
}

// TestSentinelGroup: such a group is like another one; calls made before the sentinels have spoken wait for them. Dead
// sentinels are no trouble while there is one.
func TestSentinelGroup(t *testing.T) {
	t.Parallel()
	w := startWatched(t)
	w.sentinels[0].Kill()
	w.sentinels[1].Pause()
	var events log
	topology := router.Topology{Groups: []router.Group{w.group("a")}}
	r := dial(t, topology, router.Config{OnEvent: events.add})
	if got, err := r.Take(t.Context(), request("first")); err != nil || !got.Allowed || got.Source != backend.Primary {
		t.Fatalf("take right after Open: %v by %v, %v", got.Allowed, got.Source, err)
	}
	awaitNodes(t, r, "a", w.primary.Addr, 2)
	if got := takeUntilDenied(t, r, "k"); got != 5 {
		t.Errorf("%d admitted, want 5", got)
	}
	for _, s := range w.replicas {
		s.AwaitSync(w.primary)
		s.ResetStats(t)
	}
	for range 20 {
		if got, err := r.Peek(t.Context(), request("k")); err != nil || got.Allowed || got.Source != backend.Replica {
			t.Fatalf("peek: %v by %v, %v", got.Allowed, got.Source, err)
		}
	}
	if a, b := w.replicas[0].Stats(t)["get"], w.replicas[1].Stats(t)["get"]; a+b != 20 {
		t.Errorf("%d and %d peeks at the replicas, want 20", a, b)
	}
	if err := r.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	await(t, "the event", func() bool { return events.has("a", w.primary.Addr, router.PrimaryChanged) })
	w.sentinels[1].Resume()
}

// TestSentinelFailover kills a primary under load. Calls go on at the one that the sentinels choose, as soon as they have;
// no key changes its owner, and none is admitted more than twice its Max (promise P4: Max for a loss).
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	const keys, quota, callers = 50, 40, 4
	w := startWatched(t)
	other := testserver.Redis(t)
	topology := router.Topology{Groups: []router.Group{w.group("a"), {Name: "b", Primary: other.Addr}}}
	var events log
	r := dial(t, topology, router.Config{OnEvent: events.add, Backend: redisbackend.Config{Timeout: 500 * time.Millisecond}})
	awaitNodes(t, r, "a", w.primary.Addr, 2)
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(quota)}}
	names, owners := make([]string, keys), make(map[string]string)
	for i := range names {
		names[i] = keyOf(r, string(rune('a'+i%2)), i)
		owners[names[i]] = r.Owner(names[i])
	}
	var admitted [keys]atomic.Int64
	var failed, resumed, elsewhere atomic.Int64 // resumed: when a take of "a" first passed at another primary, Unix nanoseconds
	var killed atomic.Bool
	stop := make(chan struct{})
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := caller; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				k := i % keys
				result, err := r.Take(context.Background(), backend.Request{Key: names[k], Policy: policy, Cost: 1})
				switch {
				case err != nil && owners[names[k]] == "b":
					elsewhere.Add(1)
				case err != nil:
					failed.Add(1)
				case result.Allowed:
					admitted[k].Add(1)
				}
				if err == nil && killed.Load() && owners[names[k]] == "a" {
					resumed.CompareAndSwap(0, time.Now().UnixNano())
				}
			}
		})
	}
	time.Sleep(300 * time.Millisecond)
	died := time.Now()
	w.primary.Kill()
	killed.Store(true)
	var told time.Time
	eventually(t, 60*time.Second, "writes resume", func() bool {
		if told.IsZero() {
			if address, err := w.sentinels[0].Sentinel().GetMasterAddrByName(t.Context(), "main").Result(); err == nil && len(address) == 2 &&
				address[0]+":"+address[1] != w.primary.Addr {
				told = time.Now()
			}
		}
		return resumed.Load() != 0 && !told.IsZero()
	})
	time.Sleep(300 * time.Millisecond)
	close(stop)
	all.Wait()

	took := time.Unix(0, resumed.Load()).Sub(died)
	t.Logf("the sentinels named another primary after %v, calls passed after %v; %d failed meanwhile",
		told.Sub(died).Round(time.Millisecond), took.Round(time.Millisecond), failed.Load())
	const beat, busy = 200 * time.Millisecond, 10 * time.Second
	if took > told.Sub(died)+beat+busy {
		t.Errorf("calls passed only %v after the sentinels had decided", took-told.Sub(died))
	}
	if elsewhere.Load() > 0 {
		t.Errorf("%d takes of another group failed", elsewhere.Load())
	}
	for key, owner := range owners {
		if got := r.Owner(key); got != owner {
			t.Errorf("a key moved from %s to %s", owner, got)
		}
	}
	most := int64(0)
	for k := range admitted {
		for range quota + 1 { // to the end
			result, err := r.Take(t.Context(), backend.Request{Key: names[k], Policy: policy, Cost: 1})
			if err == nil && result.Allowed {
				admitted[k].Add(1)
			}
		}
		n := admitted[k].Load()
		if bound := int64(quota); owners[names[k]] == "a" {
			bound, most = 2*quota, max(most, n)
			if n > bound {
				t.Errorf("%d admitted, and the bound is %d", n, bound)
			}
		} else if n != quota {
			t.Errorf("%d admitted in another group, want %d", n, quota)
		}
	}
	t.Logf("at most %d of %d admitted for a key", most, quota)
	await(t, "the event", func() bool {
		for _, e := range events.all() {
			if e.Kind == router.PrimaryChanged && e.From == w.primary.Addr && e.To == primaryOf(r, "a") {
				return true
			}
		}
		return false
	})

	// The old primary comes back as a replica, which the sentinels make it, and is read.
	w.primary.Restart()
	eventually(t, 60*time.Second, "it is a replica", func() bool { return status(r, w.primary).Readable })
}

// TestSentinelHandsOver: a primary that is demoted while it lives says READONLY, and the next calls go elsewhere.
func TestSentinelHandsOver(t *testing.T) {
	t.Parallel()
	w := startWatched(t)
	r := dial(t, router.Topology{Groups: []router.Group{w.group("a")}}, router.Config{})
	awaitNodes(t, r, "a", w.primary.Addr, 2)
	if n := takeN(t, r, "k", tenAnHour, 4); n != 4 {
		t.Fatal(n)
	}
	for _, s := range w.replicas {
		s.AwaitSync(w.primary)
	}
	eventually(t, 30*time.Second, "the failover begins", func() bool {
		return w.sentinels[1].Sentinel().Failover(t.Context(), "main").Err() == nil
	})
	var result backend.Result
	eventually(t, 60*time.Second, "a take at another primary", func() bool {
		if primaryOf(r, "a") == w.primary.Addr {
			return false
		}
		var err error
		result, err = r.Take(t.Context(), backend.Request{Key: "k", Policy: tenAnHour, Cost: 1})
		return err == nil
	})
	if left := result.Binding().Remaining; left != 5 {
		t.Errorf("%d left, want 5: the counts were replicated", left)
	}
	awaitNodes(t, r, "a", "", 2)
}

// TestSentinelsAway: without a sentinel nothing is known of the group, and calls fail in time. One that comes back ends that.
func TestSentinelsAway(t *testing.T) {
	t.Parallel()
	w := startWatched(t)
	for _, s := range w.sentinels {
		s.Kill()
	}
	var events log
	const timeout = 300 * time.Millisecond
	r := dial(t, router.Topology{Groups: []router.Group{w.group("a")}}, router.Config{
		Backend: redisbackend.Config{Timeout: timeout}, OnEvent: events.add,
	})
	for name, call := range map[string]func() error{
		"take": func() error { return take(t, r) },
		"peek": func() error { _, err := r.Peek(t.Context(), request("k")); return err },
		"load": func() error { _, err := r.Load(t.Context(), request("k")); return err },
		"seed": func() error { return r.Seed(t.Context(), request("k"), state.State{}) },
		"ping": func() error { return r.Ping(t.Context()) },
	} {
		start := time.Now()
		err := call()
		if kind(err) != backend.Unavailable || !errors.Is(err, router.ErrNoPrimary) && !errors.Is(err, router.ErrBreakerOpen) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(start); took > timeout+5*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := r.Take(short, request("k"))
	if k := kind(err); k != backend.Interrupted && !errors.Is(err, router.ErrBreakerOpen) {
		t.Errorf("a caller's own deadline: %v", err)
	}
	w.sentinels[2].Restart()
	eventually(t, 30*time.Second, "a verdict", func() bool { return take(t, r) == nil })
}

// TestSentinelUpdate: groups with sentinels come and go with the topology, and their keys are handed over like others.
func TestSentinelUpdate(t *testing.T) {
	t.Parallel()
	w := startWatched(t)
	plain := testserver.Redis(t)
	static := router.Group{Name: "s", Primary: plain.Addr}
	r := dial(t, router.Topology{Epoch: 1, Groups: []router.Group{static}}, router.Config{})
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(10)}}
	keys := make([]string, 30)
	for i := range keys {
		keys[i] = fmt.Sprint("key", i)
		takeN(t, r, keys[i], policy, 4)
	}
	both := router.Topology{Epoch: 2, Groups: []router.Group{static, w.group("w")}}
	update(t, r, both)
	moved := 0
	for _, key := range keys {
		if r.Owner(key) == "w" {
			moved++
		}
		if n := takeN(t, r, key, policy, 3); n != 3 {
			t.Errorf("%d of 3", n)
		}
	}
	if moved == 0 {
		t.Fatal("no key moved")
	}
	awaitNodes(t, r, "w", w.primary.Addr, 2)
	later, alone := both, router.Topology{Epoch: 4, Baseline: true, Groups: []router.Group{w.group("w")}}
	later.Epoch, later.Previous = 3, &both
	update(t, r, later)
	if got := primaryOf(r, "w"); got != w.primary.Addr {
		t.Errorf("after a change that keeps the group its primary is %s", got)
	}
	update(t, r, alone)
	for _, key := range keys {
		if n := takeN(t, r, key, policy, 10); n != 3 {
			t.Errorf("%d admitted, and 3 were left", n)
		}
	}
	update(t, r, router.Topology{Epoch: 5, Groups: []router.Group{static}})
	fresh := dial(t, router.Topology{Epoch: 5, Groups: []router.Group{static}, Previous: &alone}, router.Config{})
	for _, key := range keys {
		for _, r := range []*router.Router{r, fresh} {
			if n := takeN(t, r, key, policy, 1); n != 0 {
				t.Errorf("%d admitted, and none was left", n)
			}
		}
	}
}

// TestSentinelPassword: sentinels have credentials of their own. Without them there is an event.
func TestSentinelPassword(t *testing.T) {
	t.Parallel()
	w := startWatched(t, "requirepass secret", "sentinel sentinel-pass secret")
	topology := router.Topology{Groups: []router.Group{w.group("a")}}
	r := dial(t, topology, router.Config{Sentinel: &redis.Options{Addr: "ignored:1", DB: 3, Password: "secret"}})
	if err := take(t, r); err != nil {
		t.Error(err)
	}
	var events log
	dial(t, topology, router.Config{OnEvent: events.add})
	await(t, "it is told", func() bool {
		for _, e := range events.all() {
			if e.Group == "a" && e.Kind == router.Misconfigured {
				return true
			}
		}
		return false
	})
}
