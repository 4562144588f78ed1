//go:build unix

package router_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
)

func TestFrozenPrimary(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	const slack = 5 * time.Second // the machine may be busy
	c := startCluster(t, 2, 0)
	r := dial(t, c.topology, router.Config{Backend: redisbackend.Config{Timeout: timeout}, Heartbeat: -1})
	key := keyOf(r, "a", 0)
	await(t, "connections that are ready", func() bool { return r.Ping(t.Context()) == nil })

	c.primaries["a"].Pause()
	calls := 0
	for ; ; calls++ {
		start := time.Now()
		_, err := r.Take(t.Context(), request(key))
		if took := time.Since(start); took > timeout+slack {
			t.Errorf("call %d returned after %v", calls, took)
		}
		if kind(err) != backend.Unavailable {
			t.Fatalf("take: %v", err)
		}
		if errors.Is(err, router.ErrBreakerOpen) {
			break
		}
		if calls > 5 {
			t.Fatal("the breaker stays closed")
		}
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		start = time.Now()
		_, err = r.Take(short, request(key))
		cancel()
		if took := time.Since(start); took > 20*time.Millisecond+slack {
			t.Errorf("with a deadline of 20 ms: %v after %v", err, took)
		}
		if kind(err) != backend.Interrupted && !errors.Is(err, router.ErrBreakerOpen) {
			t.Errorf("a caller's own deadline counts against the node: %v", err)
		}
	}
	start := time.Now()
	for i := range 20 { // the others don't notice
		if got, err := r.Take(t.Context(), request(keyOf(r, "b", i))); err != nil || !got.Allowed {
			t.Errorf("another group's key: %v, %v", got.Allowed, err)
		}
	}
	if took := time.Since(start); took > slack {
		t.Errorf("20 takes of another group took %v", took)
	}

	c.primaries["a"].Resume()
	var result backend.Result
	await(t, "the breaker closes after the thaw", func() (ok bool) {
		var err error
		result, err = r.Take(t.Context(), request(keyOf(r, "a", 1)))
		return err == nil
	})
	if status(r, c.primaries["a"]).Breaker != "closed" {
		t.Error("the breaker is not closed")
	}
	if used := 5 - result.Binding().Remaining; used != 1 {
		t.Errorf("a key taken once after the thaw: %d used", used)
	}
}

func TestStaleReplica(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, 1)
	primary, replica := c.primaries["a"], c.replicas["a"][0]
	// A healthy idle replica is up to 2 s old here: its primary speaks every second, and ages are whole seconds.
	r := dial(t, c.topology, router.Config{MaxLag: 6 * time.Second, Backend: redisbackend.Config{Timeout: time.Second}})
	full, half := "full", "half"
	for range 5 {
		if _, err := r.Take(t.Context(), request(full)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Take(t.Context(), request(half)); err != nil {
		t.Fatal(err)
	}
	replica.AwaitSync(primary)

	primary.Pause()
	got, err := r.Peek(t.Context(), request(full))
	if err != nil || got.Allowed || got.Source != backend.Replica || got.Guarantee != backend.Exact {
		t.Errorf("a full key: %v by %v (%v), %v", got.Allowed, got.Source, got.Guarantee, err)
	}
	got, err = r.Peek(t.Context(), request(half))
	if err != nil || !got.Allowed || got.Guarantee != backend.Bounded || !errors.Is(got.Cause, backend.ErrReplicaMayLag) {
		t.Errorf("a half full key: %v by %v (%v), %v", got.Allowed, got.Source, got.Guarantee, err)
	}
	for range 3 { // whatever the replica says, nobody is admitted
		if got, err := r.Take(t.Context(), request(half)); kind(err) != backend.Unavailable || got.Allowed {
			t.Errorf("take: %v, %v", got.Allowed, err)
		}
	}
	await(t, "the replica is too old", func() bool { return !status(r, replica).Readable })
	if s := status(r, replica); s.Age < 6*time.Second || !s.Heartbeat.LinkUp {
		t.Errorf("skipped at the age of %v, link up %v", s.Age, s.Heartbeat.LinkUp)
	}
	if _, err := r.Peek(t.Context(), request(full)); kind(err) != backend.Unavailable {
		t.Errorf("peek without a primary and past MaxLag: %v", err)
	}
}

// A window that is over counts for nothing, although the replica has still got it.
func TestOverWindowOnTheReplica(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, 1)
	primary, replica := c.primaries["a"], c.replicas["a"][0]
	var now atomic.Int64
	now.Store(time.Now().UnixMicro())
	r := dial(t, c.topology, router.Config{Backend: redisbackend.Config{
		Timeout: 5 * time.Second, Now: func() time.Time { return time.UnixMicro(now.Load()) },
	}})
	for _, s := range []*testserver.Server{primary, replica} {
		if err := s.Client().Do(t.Context(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err(); err != nil {
			t.Fatal(err)
		}
	}
	var reset time.Time
	for range 5 {
		result, err := r.Take(t.Context(), request("k"))
		if err != nil {
			t.Fatal(err)
		}
		reset = result.Binding().ResetAt
	}
	replica.AwaitSync(primary)
	for _, test := range []struct {
		at      time.Time
		allowed bool
		left    int64
		reset   time.Time
	}{
		{reset.Add(-time.Millisecond), false, 0, reset},
		{reset, true, 5, reset.Add(time.Minute)},
	} {
		now.Store(test.at.UnixMicro())
		got, err := r.Peek(t.Context(), request("k"))
		binding := got.Binding()
		if err != nil || got.Source != backend.Replica || got.Allowed != test.allowed || binding.Remaining != test.left ||
			!binding.ResetAt.Equal(test.reset) {
			t.Errorf("at %v: %v by %v, %d left, reset %v, %v; want %v, %d, %v", test.at, got.Allowed, got.Source,
				binding.Remaining, binding.ResetAt, err, test.allowed, test.left, test.reset)
		}
	}
	if n := replica.Client().DBSize(t.Context()).Val(); n != 2 { // with the marker
		t.Errorf("the replica holds %d keys: the test shows nothing", n)
	}
}

func TestPassword(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t, "--requirepass", "secret")
	topology := router.Topology{Groups: []router.Group{{Name: "a", Primary: s.Addr}}}
	right := dial(t, topology, router.Config{Redis: &redis.Options{Addr: "ignored:1", Password: "secret"}})
	if got, err := right.Take(t.Context(), request("k")); err != nil || !got.Allowed {
		t.Errorf("take: %v, %v", got.Allowed, err)
	}
	if err := right.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	var events log
	wrong := dial(t, topology, router.Config{Redis: &redis.Options{Password: "guess"}, OnEvent: events.add})
	if err := wrong.Ping(t.Context()); kind(err) != backend.Misconfigured {
		t.Errorf("ping: %v", err)
	}
	for range 10 {
		if err := take(t, wrong); kind(err) != backend.Misconfigured {
			t.Errorf("take: %v", err)
		}
	}
	await(t, "it is told", func() bool { return events.has("a", s.Addr, router.Misconfigured) })
}

func TestOpenNeedsNoServer(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	s.Kill()
	r, err := router.Open(router.Topology{Groups: []router.Group{{Name: "a", Primary: s.Addr}}}, router.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Ping(t.Context()); kind(err) != backend.Unavailable {
		t.Errorf("ping: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestClusterPassword: also where the map of the slots is refused, the error says that it is the configuration.
func TestClusterPassword(t *testing.T) {
	t.Parallel()
	shard := testserver.Cluster(t, 1, 0)[0].Primary
	if err := shard.Client().ConfigSet(t.Context(), "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	r, err := router.Open(router.Topology{Groups: []router.Group{{Name: "a", Cluster: []string{shard.Addr}}}},
		router.Config{Redis: &redis.Options{Password: "guess"}, Heartbeat: -1, Backend: redisbackend.Config{Timeout: 2 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for what, err := range map[string]error{"ping": r.Ping(t.Context()), "take": take(t, r)} {
		if kind(err) != backend.Misconfigured {
			t.Errorf("%s: %v, want Misconfigured", what, err)
		}
	}
}
