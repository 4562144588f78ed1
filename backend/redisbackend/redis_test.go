//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func TestRedisConformance(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
		return backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Now: now, Prefix: backendtesting.NewPrefix()})
	},
		backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](), backendtest.Require[backend.Charger](), backendtest.Require[backend.Resetter](), backendtest.Require[backend.Granter](),
		backendtest.Require[backend.Pinger](), backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder](), backendtest.Require[backend.Sealer](), backendtest.Require[control.Publisher](),
		backendtest.Require[control.Clock](), backendtest.Require[control.Heartbeater](),
	)
}

// TestRedisCalls counts what reaches the server.
func TestRedisCalls(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	ctx := context.Background()
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{
		limit.Fixed(3, time.Hour), limit.Sliding(3, time.Hour, time.Minute), limit.TokenBucket(1, time.Hour, 3)}}
	req := backend.Request{Key: backendtesting.Secret, Policy: policy, Cost: 1}
	calls := func(what, want string, call func() error) {
		t.Helper()
		server.ResetStats(t)
		if err := call(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		stats := server.Stats(t)
		delete(stats, "config|resetstat")
		delete(stats, "info")
		if got := fmt.Sprint(stats); got != want {
			t.Errorf("%s makes the calls %s, want %s", what, got, want)
		}
	}
	take := func(allowed bool) func() error {
		return func() error {
			result, err := b.Take(ctx, req)
			if err == nil && result.Allowed != allowed {
				err = fmt.Errorf("allowed: %t", result.Allowed)
			}
			return err
		}
	}
	backendtesting.MustTake(t, b, req)
	var taken backend.Result
	calls("an admitted take", "map[evalsha:1 get:1 set:1]", func() (err error) { taken, err = b.Take(ctx, req); return err })
	calls("the next", "map[evalsha:1 get:1 set:1]", take(true))
	calls("a denied take", "map[evalsha:1 get:1]", take(false))
	st := taken.State
	req.Floor = &st
	calls("a denied take with a floor of no news", "map[evalsha:1 get:1]", take(false))
	req.Floor = nil
	calls("a peek", "map[get:1]", func() error { _, err := b.Peek(ctx, req); return err })
	calls("a load", "map[get:1]", func() error { _, err := b.Load(ctx, req); return err })
	calls("a refund", "map[eval:1 evalsha:1 get:1 set:1]", func() error { return b.Refund(ctx, req, taken.Receipt(), 1) })
	calls("a refund of nothing", "map[]", func() error { return b.Refund(ctx, req, state.Receipt{}, 1) })
	calls("a reset", "map[eval:1 evalsha:1 get:1 set:1]", func() error { return b.Reset(ctx, req) })
	calls("a second reset", "map[evalsha:1 get:1]", func() error { return b.Reset(ctx, req) })
	calls("a seed of nothing", "map[evalsha:1 get:1]", func() error { return b.Seed(ctx, req, state.State{}) })
	calls("a ping", "map[time:1]", func() error { return b.Ping(ctx) })
	for _, cost := range []int64{0, -1, 4, 1 << 53} {
		calls(fmt.Sprintf("a cost of %d", cost), "map[]", func() error {
			_, err := b.Take(ctx, backend.Request{Key: backendtesting.Secret, Policy: policy, Cost: cost})
			if refused := (*limit.Error)(nil); !errors.As(err, &refused) {
				return fmt.Errorf("got %v, want a *limit.Error", err)
			}
			return nil
		})
	}
}

// TestOpenRedisIsSafe gives OpenRedis the options that count twice.
func TestOpenRedisIsSafe(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	var dials atomic.Int64
	opts := &redis.Options{
		Addr: proxy.Addr, MaxRetries: 5, MinRetryBackoff: time.Millisecond, MaxRetryBackoff: time.Millisecond,
		DialerRetries: 9,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
	b := backendtesting.OpenRedisWith(t, opts, redisbackend.Config{})
	if opts.MaxRetries != 5 || opts.ContextTimeoutEnabled {
		t.Error("OpenRedis changed the caller's options")
	}
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	stats := server.Stats(t)
	for _, name := range []string{"client|setinfo", "client|setname", "client|maint_notifications", "select"} {
		if stats[name] > 0 {
			t.Errorf("the handshake sends %s", name)
		}
	}
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" {
			return testserver.CloseAfter
		}
		return testserver.Pass
	})
	server.ResetStats(t)
	const calls = 10
	for range calls {
		_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		backendtesting.WantError(t, err, backend.Unavailable, true)
	}
	if got := server.Stats(t)["evalsha"]; got != calls {
		t.Errorf("%d calls whose replies were lost came as %d", calls, got)
	}
	if got := backendtesting.Used(t, server, backendtesting.Secret); got != calls+1 {
		t.Errorf("%d calls were counted %d times", calls+1, got)
	}
	proxy.SetFault(nil)
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)) // on a new connection

	// Deadlines are honoured though the options don't say so, and nothing dials for longer.
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	server.Pause()
	begin := time.Now()
	_, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Interrupted, true)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's own error in it", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("a deadline of 300ms was honoured after %s", took)
	}
	server.Resume()
	proxy.Cut()
	for range 3 { // connections of before may still look alive
		_, _ = b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	}
	dials.Store(0)
	_, err = b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Unavailable, false)
	if n := dials.Load(); n != 1 {
		t.Errorf("a call at nobody dials %d times", n)
	}
}

// TestRedisCloseWaits: a call under way gets its reply, and Close comes after it.
func TestRedisCloseWaits(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedis(t, proxy.Addr, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	called := make(chan struct{}, 1)
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] != "EVALSHA" {
			return testserver.Pass
		}
		called <- struct{}{}
		return testserver.Delay(200 * time.Millisecond)
	})
	done := make(chan error, 1)
	go func() {
		_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		done <- err
	}()
	<-called
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the call under way: %v", err)
		}
	case <-time.After(backendtesting.Patient):
		t.Fatal("the call under way doesn't return")
	}
	if got := backendtesting.Used(t, server, backendtesting.Secret); got != 2 {
		t.Errorf("2 takes were counted %d times", got)
	}
}

// TestRedisForgetsScripts: a server that lost its scripts gets them again, at no charge.
func TestRedisForgetsScripts(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	const takes = 20
	for i := range takes {
		if i%2 == 0 {
			if err := server.Client().ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if r, want := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)), 1_000_000-int64(i)-1; r.Binding().Remaining != want {
			t.Errorf("take %d leaves %d, want %d", i, r.Binding().Remaining, want)
		}
	}
	if got := backendtesting.Used(t, server, backendtesting.Secret); got != takes {
		t.Errorf("%d takes were counted %d times", takes, got)
	}
	if stats := server.Stats(t); stats["eval"] != takes/2 || stats["evalsha"] != takes {
		t.Errorf("calls: %v", stats)
	}
	for op, call := range map[string]func() error{
		"refund": func() error {
			return b.Refund(context.Background(), backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), 1)
		},
		"reset": func() error { return b.Reset(context.Background(), backendtesting.Request(backendtesting.Secret)) },
		"seed": func() error {
			return b.Seed(context.Background(), backendtesting.Request(backendtesting.Secret), state.State{})
		},
	} {
		if err := server.Client().ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if err := call(); err != nil {
			t.Errorf("%s without its script: %v", op, err)
		}
	}
	var wg sync.WaitGroup // many callers at once learn it at once
	if err := server.Client().ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		wg.Go(func() {
			if _, err := b.Take(context.Background(), backendtesting.Request("another")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := backendtesting.Used(t, server, "another"); got != 50 {
		t.Errorf("50 takes were counted %d times", got)
	}
}

// TestRedisExpiry: the TTL is relative, at least the window, and survives what gives back.
func TestRedisExpiry(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	c := backendtesting.NewClock()
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Now: c.Now})
	ctx := context.Background()
	ttl := func() time.Duration {
		return server.Client().PTTL(ctx, backendtesting.Stored(backendtesting.Secret)).Val()
	}
	for name, l := range map[string]limit.Limit{
		"fixed": limit.Fixed(10, time.Hour), "aligned": limit.Fixed(10, time.Hour).Aligned(), "staggered": limit.Fixed(10, time.Hour).Staggered(),
		"sliding": limit.Sliding(10, time.Hour, time.Minute), "bucket": limit.TokenBucket(10, time.Hour, 10),
	} {
		t.Run(name, func(t *testing.T) {
			server.Client().Del(ctx, backendtesting.Stored(backendtesting.Secret))
			policy := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
			req := backend.Request{Key: backendtesting.Secret, Policy: policy, Cost: 5}
			c.Set(30*time.Minute + 7*time.Second)
			later := time.Duration(0) // the clock is ahead of the server's, and the expiry of an open window stays
			check := func(what string, r backend.Result) {
				t.Helper()
				if got, want := ttl(), r.Binding().ResetAt.Sub(c.Now())+time.Second; got > want+later+time.Millisecond || got < want-10*time.Second {
					t.Errorf("%s: the key lives for %s, want %s", what, got, want)
				}
			}
			first := backendtesting.MustTake(t, b, req)
			check("a take", first)
			if err := b.Refund(ctx, req, first.Receipt(), 2); err != nil {
				t.Fatal(err)
			}
			check("a refund", first)
			if err := b.Reset(ctx, req); err != nil {
				t.Fatal(err)
			}
			check("a reset", first)
			later = 10 * time.Minute
			c.Step(later)
			check("a take later", backendtesting.MustTake(t, b, req))
			req.Cost = 10
			if r := backendtesting.MustTake(t, b, req); r.Allowed {
				t.Fatal("admitted 15 of 10")
			}
			if got := ttl(); got <= 0 {
				t.Errorf("after a denial the key lives for %s", got)
			}
		})
	}
	long := backend.Request{Key: "long", Policy: &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(10, limit.MaxWindow)}}, Cost: 1}
	backendtesting.MustTake(t, b, long)
	if got := server.Client().PTTL(ctx, backendtesting.Stored("long")).Val(); got < limit.MaxWindow {
		t.Errorf("ten years are stored for %s", got)
	}
}

// TestRedisClock: the server's time decides, not this host's.
func TestRedisClock(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	if got := b.NowMicros(); got != 0 {
		t.Errorf("before the server said anything it is %d", got)
	}
	r := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	now := server.Client().Time(t.Context()).Val().UnixMicro()
	if r.Now > now || r.Now < now-backendtesting.Patient.Microseconds() {
		t.Errorf("decided at %d us, the server says %d", r.Now, now)
	}

	for _, off := range []time.Duration{-10 * 366 * 24 * time.Hour, 3 * time.Hour, 10 * 366 * 24 * time.Hour} {
		skew := &skewed{by: off}
		client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ContextTimeoutEnabled: true})
		client.AddHook(skew)
		b, err := redisbackend.New(client, redisbackend.Config{Timeout: backendtesting.Patient, Prefix: backendtesting.NewPrefix()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close(); _ = client.Close() })
		r := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
		if got := time.Until(r.Binding().ResetAt) - off; got < 50*time.Minute || got > time.Hour+time.Second {
			t.Errorf("a server that is %s ahead ends an hour in %s", off, got)
		}
		if got := time.Until(time.UnixMicro(b.NowMicros())) - off; got > time.Second || got < -backendtesting.Patient {
			t.Errorf("NowMicros is %s off a server that is %s ahead", got, off)
		}
		skew.mu.Lock()
		skew.by += 2 * time.Hour // the server's clock steps
		skew.mu.Unlock()
		backendtesting.Await(t, "the server's new time", func() bool { // a slow reply would not be heard at once
			if err := b.Ping(context.Background()); err != nil {
				t.Fatal(err)
			}
			return time.Until(time.UnixMicro(b.NowMicros())) > off+time.Hour
		})
		if again := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)); again.Binding().Remaining != r.Binding().Remaining {
			t.Errorf("%d are left after the window, want %d", again.Binding().Remaining, r.Binding().Remaining)
		}
	}
}

// skewed is a server whose clock is off.
type skewed struct {
	mu sync.Mutex // guards by
	by time.Duration
}

func (s *skewed) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *skewed) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if now, ok := cmd.(*redis.TimeCmd); ok && err == nil {
			s.mu.Lock()
			now.SetVal(now.Val().Add(s.by))
			s.mu.Unlock()
		}
		return err
	}
}

func (s *skewed) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestRedisClockIsRenewed: a reading that ages is renewed behind the callers' back, once.
func TestRedisClockIsRenewed(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	server.ResetStats(t)
	begin := time.Now()
	for time.Since(begin) < 900*time.Millisecond {
		backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	}
	if n := server.Stats(t)["time"]; n > 0 && time.Since(begin) < time.Second {
		t.Errorf("the time was asked for %d times in the first second", n)
	}
	for server.Stats(t)["time"] == 0 {
		backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
		if time.Since(begin) > backendtesting.Patient {
			t.Fatal("the clock is never renewed")
		}
	}
	if n := server.Stats(t)["time"]; n > 5 {
		t.Errorf("the time was asked for %d times in some seconds", n)
	}
}

const clockStep = time.Second // that a host's wall clock may be set by while a test runs

func TestRedisHeartbeat(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	replica := testserver.Replica(t, server)
	primary, follower := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{}), backendtesting.OpenRedis(t, replica.Addr, redisbackend.Config{})
	beat := func(b *redisbackend.Redis) control.Heartbeat {
		t.Helper()
		h, err := b.Heartbeat(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if h.RTT <= 0 || h.RTT > backendtesting.Patient || len(h.RunID) != 40 || b.NowMicros() == 0 ||
			h.Ahead.Abs() > h.RTT+clockStep { // it runs on this host
			t.Errorf("heartbeat %+v at %d us", h, b.NowMicros())
		}
		return h
	}
	backendtesting.MustTake(t, primary, backendtesting.Request(backendtesting.Secret))
	replica.AwaitSync(server)
	before := beat(primary)
	if h := beat(follower); h.Primary || !h.LinkUp || h.Age > 10*time.Second || h.Offset == 0 {
		t.Errorf("the replica's: %+v", h)
	}
	if !before.Primary {
		t.Errorf("the primary's: %+v", before)
	}
	backendtesting.MustTake(t, primary, backendtesting.Request(backendtesting.Secret))
	if h := beat(primary); h.Offset <= before.Offset || h.RunID != before.RunID {
		t.Errorf("after a write: %+v, before: %+v", h, before)
	}
	server.Pause()
	for begin := time.Now(); beat(follower).Age < time.Second; {
		if time.Since(begin) > backendtesting.Patient {
			t.Fatal("the replica doesn't notice that its primary is silent")
		}
	}
	server.Resume()
	server.Kill()
	for begin := time.Now(); ; {
		if h := beat(follower); !h.LinkUp && h.Age > time.Second {
			break
		}
		if time.Since(begin) > backendtesting.Patient {
			t.Fatalf("the replica doesn't tell for how long its primary is gone: %+v", beat(follower))
		}
	}
	server.Restart()
	for begin := time.Now(); ; {
		if h, err := primary.Heartbeat(context.Background()); err == nil && h.RunID != before.RunID {
			break
		}
		if time.Since(begin) > backendtesting.Patient {
			t.Fatal("restarted, but the run id stayed")
		}
	}
}

// hang makes every EVALSHA hang, before or after the server has it, and tells when one does.
func hang(action testserver.Action) (testserver.Fault, <-chan struct{}) {
	hung := make(chan struct{}, 100)
	return func(args []string) testserver.Action {
		if args[0] != "EVALSHA" {
			return testserver.Pass
		}
		hung <- struct{}{}
		return action
	}, hung
}
