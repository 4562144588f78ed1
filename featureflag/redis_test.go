//go:build unix

package featureflag_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/internal/testserver"
)

const flagsKey = "app:flags"

func clientOptions(addr string) *redis.Options {
	return &redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

func newClient(t testing.TB, opts *redis.Options) *redis.Client {
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// subscribed waits until a number of connections listen.
func subscribed(t *testing.T, server *testserver.Server, want int64) {
	t.Helper()
	poll(t, fmt.Sprint(want, " subscriptions"), func() bool {
		n, err := server.Client().PubSubNumSub(t.Context(), flagsKey).Result()
		return err == nil && n[flagsKey] == want
	})
}

func TestRedisPushesChanges(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	src := featureflag.Redis(newClient(t, clientOptions(server.Addr)), flagsKey)
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: never, Default: 70})
	subscribed(t, server, 1)
	if s := f.State(); s.Reason != featureflag.ReasonDefault || s.Percent != 70 {
		t.Errorf("before anything is stored: %+v", s)
	}

	first := must(t)(featureflag.Set(t.Context(), src, "x", 12.345))
	if err := f.Ready(t.Context()); err != nil { // the push is the first load
		t.Fatal(err)
	}
	if s := awaitPercent(t, f, 12.345); s.Generation != first.Version || s.Version != first.Version<<14 {
		t.Errorf("%+v, want generation %d", s, first.Version)
	}
	var slowest time.Duration
	for i := range 20 {
		start := time.Now()
		v := must(t)(featureflag.Set(t.Context(), src, "x", float64(i)))
		awaitPercent(t, f, float64(i))
		slowest = max(slowest, time.Since(start))
		if v.Version <= first.Version {
			t.Errorf("version %d after %d", v.Version, first.Version)
		}
		first = v
	}
	t.Logf("seen after %v at most, with a refresh every %v", slowest, never)

	killed := must(t)(featureflag.Kill(t.Context(), src, "x"))
	await(t, f, "the kill", func(s featureflag.State) bool { return s.Reason == featureflag.ReasonKilled && s.Percent == 0 })
	if !killed.Killed || killed.Percent != 19 || killed.Version <= first.Version {
		t.Errorf("killed: %+v after %+v", killed, first)
	}
	raised := must(t)(featureflag.Set(t.Context(), src, "x", 50))
	await(t, f, "the raise", func(s featureflag.State) bool { return s.Generation == raised.Version && s.Percent == 0 })
	revived := must(t)(featureflag.Revive(t.Context(), src, "x"))
	if !raised.Killed || revived.Killed || revived.Percent != 50 || revived.Version <= raised.Version {
		t.Errorf("raised while killed: %+v; revived: %+v", raised, revived)
	}
	awaitPercent(t, f, 50)
	must(t)(featureflag.Kill(t.Context(), src, "other"))
	if calls := server.Stats(t)["subscribe"]; calls != 1 || f.State().Percent != 50 {
		t.Errorf("%d subscriptions, %+v", calls, f.State())
	}
	if stored := server.Client().HGetAll(t.Context(), flagsKey).Val(); len(stored) != 2 ||
		stored["x"] != fmt.Sprintf(`{"percent":50,"version":%d,"killed":false}`, revived.Version) {
		t.Errorf("stored %q", stored)
	}
	f.Close()
	subscribed(t, server, 0)
}

// Who may not subscribe sees changes at every refresh, and is told why not sooner.
func TestRedisPolls(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	admin := server.Client()
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "reader", "on", "nopass", "~"+flagsKey, "resetchannels", "+hello", "+ping", "+hget", "+subscribe").Err(); err != nil {
		t.Fatal(err)
	}
	opts := clientOptions(server.Addr)
	opts.Username, opts.Password = "reader", "-"
	src := featureflag.Redis(newClient(t, opts), flagsKey)
	var once sync.Once
	refused := make(chan error, 1)
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: quick, OnError: func(err error) {
		if strings.Contains(err.Error(), "push") {
			once.Do(func() { refused <- err })
		}
	}})
	for i := 1; i < 4; i++ {
		must(t)(featureflag.Set(t.Context(), featureflag.Redis(admin, flagsKey), "x", float64(i)))
		awaitPercent(t, f, float64(i))
	}
	if err := <-refused; !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("push: %v", err)
	}
	if _, err := featureflag.Set(t.Context(), src, "x", 9); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("Set by a reader: %v", err)
	}
	// A writer who may not publish changes nothing.
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "reader", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := featureflag.Set(t.Context(), src, "x", 9); err == nil {
		t.Error("Set without permission to publish was accepted")
	}
	if v, err := src.Load(t.Context(), "x"); err != nil || v.Percent != 3 {
		t.Errorf("%v, %v", v, err)
	}
}

// The permissions that the documentation asks for are enough.
func TestRedisPermissions(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	client := func(user, commands string) *redis.Client {
		args := []any{"ACL", "SETUSER", user, "on", "nopass", "~" + flagsKey, "resetchannels", "&" + flagsKey}
		for command := range strings.FieldsSeq(commands) {
			args = append(args, command)
		}
		if err := server.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
		opts := clientOptions(server.Addr)
		opts.Username, opts.Password = user, "-"
		return newClient(t, opts)
	}
	reader := featureflag.Redis(client("reader", "+hello +ping +hget +subscribe"), flagsKey)
	writer := featureflag.Redis(client("writer", "+hello +ping +hget +hset +time +publish +evalsha +eval"), flagsKey)
	featureflag.SetRound(reader, 10*time.Millisecond)
	var told notes
	f := open(t, featureflag.Config{Name: "x", Source: reader, Refresh: never, OnError: told.fail})
	subscribed(t, server, 1)
	must(t)(featureflag.Set(t.Context(), writer, "x", 25))
	awaitPercent(t, f, 25)
	poll(t, "a silent subscription is asked whether it is there", func() bool { return server.Stats(t)["ping"] >= 3 })
	lines, errs := told.take()
	for _, err := range errs {
		// There was nothing at the beginning, and a busy machine may not write within a round.
		if !errors.Is(err, featureflag.ErrNotFound) && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s", lines)
		}
	}
}

func TestRedisDownAndUp(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	src := featureflag.Redis(newClient(t, clientOptions(server.Addr)), flagsKey)
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: 20 * time.Millisecond, StaleAfter: 200 * time.Millisecond, Default: 5})
	before := must(t)(featureflag.Set(t.Context(), src, "x", 50))
	awaitPercent(t, f, 50)
	server.Kill()
	s := await(t, f, "the end", func(s featureflag.State) bool { return s.Err != nil })
	if s.Percent != 50 && !s.Stale {
		t.Errorf("%+v, want the last good value until it is stale", s)
	}
	s = await(t, f, "staleness", func(s featureflag.State) bool { return s.Stale })
	if s.Percent != 5 || s.Reason != featureflag.ReasonStale || s.Version != before.Version<<14+1 || time.Since(s.Loaded) < 200*time.Millisecond {
		t.Errorf("stale: %+v", s)
	}
	server.Restart() // empty
	s = await(t, f, "the empty server", func(s featureflag.State) bool { return errors.Is(s.Err, featureflag.ErrNotFound) })
	if s.Percent != 5 {
		t.Errorf("%+v, want the default until the flag is there again", s)
	}
	after := must(t)(featureflag.Set(t.Context(), src, "x", 60))
	if s := awaitPercent(t, f, 60); after.Version <= before.Version || s.Version != after.Version<<14 {
		t.Errorf("%+v from %+v after %+v", s, after, before)
	}
	subscribed(t, server, 1) // again
}

func TestRedisFlushed(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	src := featureflag.Redis(newClient(t, clientOptions(server.Addr)), flagsKey)
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: quick})
	before := must(t)(featureflag.Set(t.Context(), src, "x", 50))
	awaitPercent(t, f, 50)
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s := await(t, f, "the loss", func(s featureflag.State) bool { return errors.Is(s.Err, featureflag.ErrNotFound) })
	if s.Percent != 50 || s.Version != before.Version<<14 {
		t.Errorf("%+v, want the last good value", s)
	}
	after := before
	for after.Version <= before.Version { // at once: the hundredth of a second may still be the same
		after = must(t)(featureflag.Set(t.Context(), src, "x", 40))
	}
	if after.Version > before.Version+soonVersions {
		t.Errorf("version %d after %d: not the time", after.Version, before.Version)
	}
	awaitPercent(t, f, 40)
}

// soonVersions is how far the clock may have gone in a test.
const soonVersions = uint64(time.Minute / (10 * time.Millisecond))

// A subscription that broke stands again, and what was missed is read.
func TestRedisSubscriptionBreaks(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	direct := featureflag.Redis(newClient(t, clientOptions(server.Addr)), flagsKey)
	src := featureflag.Redis(newClient(t, clientOptions(proxy.Addr)), flagsKey)
	var told notes
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: never, OnError: told.fail})
	must(t)(featureflag.Set(t.Context(), direct, "x", 10))
	awaitPercent(t, f, 10)
	subscribed(t, server, 1)
	for i := range 3 {
		proxy.Cut()
		subscribed(t, server, 0)
		must(t)(featureflag.Set(t.Context(), direct, "x", float64(20+i))) // nobody listens
		proxy.Heal()
		awaitPercent(t, f, float64(20+i))
	}
	if _, errs := told.take(); len(errs) < 3 {
		t.Errorf("errors %v, want one for every break", errs)
	}
}

// A server that says nothing may be gone for good: the subscription is given up, and made anew.
func TestRedisSubscriptionFallsSilent(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	src := featureflag.Redis(newClient(t, clientOptions(server.Addr)), flagsKey)
	featureflag.SetRound(src, 20*time.Millisecond)
	silent := make(chan error, 10)
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: never, Timeout: time.Second, OnError: func(err error) {
		if strings.Contains(err.Error(), "doesn't answer") {
			silent <- err
		}
	}})
	subscribed(t, server, 1)
	poll(t, "it is asked again and again, and answers", func() bool { return server.Stats(t)["ping"] >= 5 })
	if n := server.Stats(t)["subscribe"]; n != 1 || len(silent) != 0 {
		t.Errorf("%d subscriptions, %d given up: none was silent for longer than asked", n, len(silent))
	}
	server.Pause()
	if err := <-silent; !strings.HasPrefix(err.Error(), `featureflag: flag "x": push: redis key "app:flags": `) {
		t.Errorf("push: %v", err)
	}
	start := time.Now()
	server.Resume()
	must(t)(featureflag.Set(t.Context(), src, "x", 30))
	awaitPercent(t, f, 30)
	t.Logf("seen %v after the thaw", time.Since(start))

	server.Pause()
	start = time.Now()
	f.Close()
	if took := time.Since(start); took > soon {
		t.Errorf("Close took %v with a frozen server", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := src.Load(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Load from a frozen server: %v", err)
	}
	server.Resume()
}

// A round that ends in the middle of a message leaves the other half, which reads like the answer to a ping.
func TestRedisSubscriptionLosesItsThread(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	replies := map[string]string{
		"hello":     "-ERR unknown command\r\n",
		"hget":      "$-1\r\n",
		"subscribe": "*3\r\n$9\r\nsubscribe\r\n$9\r\napp:flags\r\n:1\r\n" + "$7\r\nmessage\r\n",
	}
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { // until the client closes
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					_, _ = conn.Write([]byte(replies[strings.ToLower(lines.Text())]))
				}
			})
		}
	})
	client := newClient(t, clientOptions(listener.Addr().String()))
	told := make(chan error, 100)
	open(t, featureflag.Config{Name: "x", Source: featureflag.Redis(client, flagsKey), Refresh: never, OnError: func(err error) {
		if strings.Contains(err.Error(), "push") {
			told <- err
		}
	}})
	for range 2 { // it begins anew
		if err := <-told; !strings.HasSuffix(err.Error(), `unexpected message "message"`) {
			t.Errorf("push: %v", err)
		}
	}
}

func TestCloseWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	server.Kill()
	src := featureflag.Redis(newClient(t, clientOptions(server.Addr)), flagsKey)
	var once sync.Once
	failed := make(chan error)
	f := open(t, featureflag.Config{Name: "x", Source: src, OnError: func(err error) { once.Do(func() { failed <- err }) }})
	if err := <-failed; err == nil {
		t.Error("no error")
	}
	start := time.Now()
	f.Close()
	if took := time.Since(start); took > soon {
		t.Errorf("Close took %v", took)
	}
}

func TestRedisSetTogether(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	src := featureflag.Redis(newClient(t, clientOptions(server.Addr)), flagsKey)
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: never})
	subscribed(t, server, 1)
	const writers, rounds = 8, 25
	versions := make(chan uint64, writers*rounds)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for n := range rounds {
				versions <- must(t)(featureflag.Set(t.Context(), src, "x", float64(n))).Version
			}
		})
	}
	wg.Wait()
	close(versions)
	seen, newest := make(map[uint64]bool), uint64(0)
	for v := range versions {
		if seen[v] {
			t.Errorf("version %d was given twice", v)
		}
		seen[v], newest = true, max(newest, v)
	}
	await(t, f, "the last write", func(s featureflag.State) bool { return s.Generation == newest })
}

// What people write by hand: readers are strict, and a writer repairs.
func TestRedisByHand(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	admin := server.Client()
	src := featureflag.Redis(newClient(t, clientOptions(server.Addr)), flagsKey)
	for _, stored := range []string{
		"", "50", "null", "[]", "{", `{"percent":50}`, `{"percent":101,"version":7}`, `{"percent":nan,"version":7}`,
		`{"percent":50,"version":0}`, `{"percent":50,"version":1e300}`, `{"percent":"50","version":7}`, `{"percent":50,"version":"7"}`,
	} {
		if err := admin.HSet(t.Context(), flagsKey, "x", stored).Err(); err != nil {
			t.Fatal(err)
		}
		if v, err := src.Load(t.Context(), "x"); err == nil {
			t.Errorf("%s is read as %v", stored, v)
		}
		if _, err := featureflag.Revive(t.Context(), src, "x"); !errors.Is(err, featureflag.ErrNotFound) {
			t.Errorf("Revive of %s: %v", stored, err)
		}
		if v := must(t)(featureflag.Kill(t.Context(), src, "x")); !v.Killed || v.Percent != 0 || v.Version < 1e11 {
			t.Errorf("%s is killed as %v", stored, v)
		}
		if v, err := src.Load(t.Context(), "x"); err != nil || !v.Killed {
			t.Errorf("%s, killed, is read as %v, %v", stored, v, err)
		}
	}

	admin.HSet(t.Context(), flagsKey, "x", `{"version": 274877906942, "percent": 0.1}`)
	if v := must(t)(featureflag.Kill(t.Context(), src, "x")); v != (featureflag.Value{Percent: 0.1, Version: 1<<38 - 1, Killed: true}) {
		t.Errorf("killed as %v", v)
	}
	if _, err := featureflag.Revive(t.Context(), src, "x"); err == nil || !strings.Contains(err.Error(), "VERSION exhausted") {
		t.Errorf("no version left: %v", err)
	}
	if v, err := src.Load(t.Context(), "x"); err != nil || !v.Killed {
		t.Errorf("a write that failed left %v, %v", v, err)
	}

	admin.Set(t.Context(), "text", "x", 0)
	wrong := featureflag.Redis(admin, "text")
	if _, err := wrong.Load(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("Load of a text: %v", err)
	}
	if _, err := featureflag.Set(t.Context(), wrong, "x", 1); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("Set in a text: %v", err)
	}
}

// A percentage is stored and kept exactly, whatever its digits.
func TestRedisKeepsEveryPercentage(t *testing.T) {
	t.Parallel()
	src := featureflag.Redis(testserver.Redis(t).Client(), flagsKey)
	rapid.Check(t, func(rt *rapid.T) {
		percent := rapid.OneOf(rapid.Float64Range(0, 100), rapid.SampledFrom([]float64{
			math.Copysign(0, -1), math.SmallestNonzeroFloat64, 0.001, 0.1, 33.333, 99.999, math.Nextafter(100, 0), 100,
		})).Draw(rt, "percent")
		if v, err := featureflag.Set(t.Context(), src, "x", percent); err != nil || v.Percent != percent {
			rt.Fatalf("Set(%v) = %v, %v", percent, v, err)
		}
		if v, err := featureflag.Kill(t.Context(), src, "x"); err != nil || v.Percent != percent {
			rt.Fatalf("Kill at %v = %v, %v", percent, v, err)
		}
		if v, err := featureflag.Revive(t.Context(), src, "x"); err != nil || v.Percent != percent || v.Killed {
			rt.Fatalf("Revive at %v = %v, %v", percent, v, err)
		}
		if v, err := src.Load(t.Context(), "x"); err != nil || v.Percent != percent {
			rt.Fatalf("Load at %v = %v, %v", percent, v, err)
		}
	})
}

func TestRedisClusterClient(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: server.Addr}}}}, nil
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	src := featureflag.Redis(client, flagsKey)
	f := open(t, featureflag.Config{Name: "x", Source: src, Refresh: never})
	subscribed(t, server, 1)
	must(t)(featureflag.Set(t.Context(), src, "x", 25))
	awaitPercent(t, f, 25)
}

func TestRedisRefuses(t *testing.T) {
	t.Parallel()
	plain := newClient(t, &redis.Options{Addr: "127.0.0.1:1"})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, HeartbeatFrequency: time.Hour})
	t.Cleanup(func() { _ = ring.Close() })
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = cluster.Close() })
	const deadlines = `featureflag: Source: client: ContextTimeoutEnabled = false: must be true: without it a load outlives its context`
	for _, tt := range []struct {
		src  featureflag.Source
		want string
	}{
		{featureflag.Redis((*redis.Client)(nil), "k"), "featureflag: Source: client = nil: must not be nil"},
		{featureflag.Redis((*redis.ClusterClient)(nil), "k"), "featureflag: Source: client = nil: must not be nil"},
		{featureflag.Redis(nil, ""), "featureflag: Source: client = nil: must not be nil\nfeatureflag: Source: key = \"\": must not be empty"},
		{featureflag.Redis(plain, "k"), deadlines},
		{featureflag.Redis(cluster, "k"), deadlines},
		{featureflag.Redis(ring, "k"), "featureflag: Source: client = Ring: must not be a Ring: it moves keys of a dead node to another"},
	} {
		f, err := featureflag.New(featureflag.Config{Name: "x", Source: tt.src})
		if f != nil || err == nil || err.Error() != tt.want {
			t.Errorf("New: %v, %v; want %s", f, err, tt.want)
		}
		if _, err := featureflag.Set(t.Context(), tt.src, "x", 1); err == nil || err.Error() != tt.want {
			t.Errorf("Set: %v; want %s", err, tt.want)
		}
	}
}
