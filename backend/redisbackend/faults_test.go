//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestRedisCancellation: who cancels returns at once, though the client goes on waiting.
func TestRedisCancellation(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedis(t, proxy.Addr, redisbackend.Config{Timeout: 20 * time.Second})
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	for _, action := range []testserver.Action{testserver.HangBefore, testserver.HangAfter} {
		fault, hung := hang(action)
		proxy.SetFault(fault)
		calls := map[string]func(context.Context) error{
			"take": func(ctx context.Context) error {
				_, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret))
				return err
			},
			"refund": func(ctx context.Context) error {
				return b.Refund(ctx, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), 1)
			},
			"reset": func(ctx context.Context) error { return b.Reset(ctx, backendtesting.Request(backendtesting.Secret)) },
			"seed": func(ctx context.Context) error {
				return b.Seed(ctx, backendtesting.Request(backendtesting.Secret), state.State{})
			},
		}
		for op, call := range calls {
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- call(ctx) }()
			<-hung
			begin := time.Now()
			cancel()
			err := <-done
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("%s returned %s after it was cancelled", op, took)
			}
			backendtesting.WantError(t, err, backend.Interrupted, op != "seed")
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v, want context.Canceled in it", op, err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		begin := time.Now()
		_, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret))
		cancel()
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("a deadline of 300ms was honoured after %s", took)
		}
		backendtesting.WantError(t, err, backend.Interrupted, true)
	}
	proxy.SetFault(nil)
	proxy.Cut() // what was abandoned ends with its connection
	proxy.Heal()
	for begin := time.Now(); ; {
		_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		if err == nil {
			break
		}
		if time.Since(begin) > backendtesting.Patient {
			t.Fatal(err)
		}
	}
	if got := backendtesting.Used(t, server, backendtesting.Secret); got > 2+2*2 {
		t.Errorf("6 takes at most were counted %d times", got)
	}
}

// TestRedisTimeout: a call takes no longer than the timeout, whatever it has to do.
func TestRedisTimeout(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	const timeout = 3 * time.Second
	b := backendtesting.OpenRedis(t, proxy.Addr, redisbackend.Config{Timeout: timeout})
	warm := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	backendtesting.MustTake(t, warm, backendtesting.Request(backendtesting.Secret)) // the script is there
	proxy.SetFault(func(args []string) testserver.Action {
		switch args[0] {
		case "TIME":
			return testserver.Delay(timeout * 9 / 10)
		case "EVALSHA":
			return testserver.HangAfter
		}
		return testserver.Pass
	})
	begin := time.Now()
	_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	if took := time.Since(begin); took > timeout*3/2 {
		t.Errorf("a call with a timeout of %s took %s (%v): it waited for the server's clock first", timeout, took, err)
	}
}

// TestRedisLostReplies: a proxy loses the reply of every third take.
func TestRedisLostReplies(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedis(t, proxy.Addr, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request("another"))
	var seen, lost atomic.Int64
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" {
			if n := seen.Add(1); n%3 == 0 {
				lost.Add(1)
				if n%2 == 0 {
					return testserver.Truncate
				}
				return testserver.CloseAfter
			}
		}
		return testserver.Pass
	})
	server.ResetStats(t)
	const callers, takes = 8, 60
	var admitted, unknown atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range takes {
				_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
				var failed *backend.Error
				switch {
				case err == nil:
					admitted.Add(1)
				case !errors.As(err, &failed) || failed.Kind != backend.Unavailable || !failed.MayHaveCharged:
					t.Errorf("a lost reply: %v", err)
				default:
					unknown.Add(1)
				}
			}
		})
	}
	wg.Wait()
	// Those that follow in a lost reply's pipeline are lost with it.
	if unknown.Load() < lost.Load() || unknown.Load() == callers*takes || admitted.Load()+unknown.Load() != callers*takes {
		t.Errorf("%d admitted, %d unknown, %d replies lost of %d", admitted.Load(), unknown.Load(), lost.Load(), callers*takes)
	}
	if got := server.Stats(t)["evalsha"]; got > callers*takes || got < lost.Load() { // calls share round trips
		t.Errorf("%d calls came as %d", callers*takes, got)
	}
	proxy.SetFault(nil)
	if got := backendtesting.Used(t, server, backendtesting.Secret); got != callers*takes {
		t.Errorf("%d calls were counted %d times", callers*takes, got)
	}
}

// TestRedisLateReply: a reply that comes after its caller has gone is nobody else's.
func TestRedisLateReply(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: proxy.Addr, PoolSize: 1, PoolTimeout: backendtesting.Patient}, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request("slow"))
	backendtesting.MustTake(t, b, backendtesting.Request("slow"))
	var n atomic.Int64
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" && n.Add(1)%2 == 1 {
			return testserver.Delay(time.Second)
		}
		return testserver.Pass
	})
	for i := range 4 {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		_, err := b.Take(ctx, backendtesting.Request("slow"))
		cancel()
		backendtesting.WantError(t, err, backend.Interrupted, true)
		if r := backendtesting.MustTake(t, b, backendtesting.Request("fast")); r.Binding().Remaining != 1_000_000-int64(i)-1 {
			t.Errorf("take %d was told that %d are left", i, r.Binding().Remaining)
		}
	}
}

// TestRedisDead: a server that is gone is told at once, and nothing was charged.
func TestRedisDead(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	server.Kill()
	begin := time.Now()
	for range 3 { // connections of before may still look alive
		_, _ = b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	}
	backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(op string, _ bool, err error) {
		if err == nil {
			t.Errorf("%s succeeds at nobody", op)
		} else {
			backendtesting.WantError(t, err, backend.Unavailable, false)
		}
	})
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("a dead server cost %s", took)
	}
	server.Restart()
	for begin := time.Now(); ; {
		if _, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret)); err == nil {
			break
		}
		if time.Since(begin) > backendtesting.Patient {
			t.Fatal("the backend doesn't find the server again")
		}
	}
}

// TestRedisFrozen: calls to a frozen server end by their deadline, and after the thaw each counts once at most.
func TestRedisFrozen(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	const timeout = 200 * time.Millisecond
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Timeout: timeout})
	backendtesting.MustTake(t, b, backendtesting.Request("warm"))
	const callers = 40
	server.Pause()
	var wg sync.WaitGroup
	var unknown atomic.Int64
	for i := range callers {
		wg.Go(func() {
			ctx := context.Background()
			if i%2 == 0 {
				limited, cancel := context.WithTimeout(ctx, timeout/4)
				defer cancel()
				ctx = limited
			}
			begin := time.Now()
			_, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret))
			if took := time.Since(begin); took > timeout+5*time.Second {
				t.Errorf("a call to a frozen server took %s", took)
			}
			var failed *backend.Error
			if !errors.As(err, &failed) || failed.Kind != backend.Unavailable && failed.Kind != backend.Interrupted {
				t.Errorf("a frozen server: %v", err)
			} else if failed.MayHaveCharged {
				unknown.Add(1)
			}
		})
	}
	wg.Wait()
	server.Resume()
	for begin := time.Now(); ; {
		if err := b.Ping(context.Background()); err == nil {
			break
		}
		if time.Since(begin) > backendtesting.Patient {
			t.Fatal("no answer after the thaw")
		}
	}
	if got := backendtesting.Used(t, server, backendtesting.Secret); got > unknown.Load() || got > callers {
		t.Errorf("%d calls of %d may have been counted, %d were", unknown.Load(), callers, got)
	}
}

// TestRedisForeignReplies: what is no reply of a take is no verdict.
func TestRedisForeignReplies(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	reply := &replies{}
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ContextTimeoutEnabled: true})
	defer client.Close()
	client.AddHook(reply)
	b, err := redisbackend.New(client, redisbackend.Config{Timeout: backendtesting.Patient})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, foreign := range []any{
		"", "garbage", "1garbage", "0garbage", "OK", "PONG", int64(1), int64(0), nil, []any{int64(1), "x"}, true, 1.5,
		map[any]any{"a": 1}, "1f1h:1;", "1f1h:-1,2;", "1f1h:1,1;f1h:1,1;", "1f1h:9007199254740992,1;",
	} {
		reply.set(foreign)
		r, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		backendtesting.WantError(t, err, backend.Corrupt, true)
		if r.Allowed || r.Source != backend.Unknown {
			t.Errorf("reply %v gives a verdict", foreign)
		}
	}
}

// replies gives every script call a reply of its own.
type replies struct {
	mu    sync.Mutex // guards reply
	reply any
}

func (r *replies) set(reply any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reply = reply
}

func (r *replies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *replies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if c, ok := cmd.(*redis.Cmd); ok && err == nil {
			r.mu.Lock()
			c.SetVal(r.reply)
			r.mu.Unlock()
		}
		return err
	}
}

func (r *replies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestRedisUnlikeServers: what listens there is no Redis.
func TestRedisUnlikeServers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"silence": "", "HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "garbage": "\x00\x01\x02\x03\r\n", "endless": strings.Repeat("x", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			t.Cleanup(func() { _ = listener.Close(); wg.Wait() })
			wg.Go(func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					wg.Go(func() {
						defer conn.Close()
						_, _ = conn.Read(make([]byte, 1024))
						_, _ = io.WriteString(conn, answer)
						if answer == "" {
							_, _ = conn.Read(make([]byte, 1024))
						}
					})
				}
			})
			b := backendtesting.OpenRedis(t, listener.Addr().String(), redisbackend.Config{Timeout: 500 * time.Millisecond})
			_, err = b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
			var failed *backend.Error
			if !errors.As(err, &failed) || failed.Kind != backend.Unavailable && failed.Kind != backend.Misconfigured {
				t.Errorf("got %v, want a *backend.Error", err)
			}
			if err != nil && strings.Contains(err.Error(), backendtesting.Secret) {
				t.Errorf("the error names the key: %v", err)
			}
		})
	}
}

// TestNilContext: the calls without a request refuse it, too.
func TestNilContext(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	var none context.Context
	for _, b := range []backend.Backend{backendtesting.NewMemory(t, memory.Config{}), backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})} {
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%T: Ping without a context panics: %v", b, r)
				}
			}()
			var refused *limit.Error
			if err := b.(backend.Pinger).Ping(none); !errors.As(err, &refused) {
				t.Errorf("%T: Ping without a context: %v, want a *limit.Error", b, err)
			}
			if h, ok := b.(control.Heartbeater); ok {
				if _, err := h.Heartbeat(none); !errors.As(err, &refused) {
					t.Errorf("%T: Heartbeat without a context: %v, want a *limit.Error", b, err)
				}
			}
		}()
	}
}

// TestAbandonedLoadsAreNotSent: a look at a key that was given up while it waited for a connection is never sent.
func TestAbandonedLoadsAreNotSent(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: proxy.Addr, PoolSize: 4}, redisbackend.Config{Timeout: backendtesting.Patient}) // one is not for takes
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	var sent atomic.Int64
	gate, held := make(chan struct{}), make(chan struct{}, 100)
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open) // before the proxy's, which waits for it
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "GET" && args[1] == backendtesting.Stored(backendtesting.Secret) {
			sent.Add(1)
			held <- struct{}{}
			<-gate
		}
		return testserver.Pass
	})
	var first, others sync.WaitGroup
	first.Go(func() {
		if _, err := b.Load(context.Background(), backendtesting.Request(backendtesting.Secret)); err != nil {
			t.Errorf("who waits: %v", err)
		}
	})
	<-held
	for range 50 {
		others.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			_, err := b.Load(ctx, backendtesting.Request(backendtesting.Secret))
			backendtesting.WantError(t, err, backend.Interrupted, false)
		})
	}
	others.Wait()
	open()
	first.Wait()
	if err := b.Close(); err != nil { // it waits for what is under way
		t.Error(err)
	}
	if n := sent.Load(); n != 1 {
		t.Errorf("%d of 50 looks that were given up were sent", n-1)
	}
}
