//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

func do(t testing.TB, c *redis.Client, args ...any) {
	t.Helper()
	if err := c.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// TestRedisNoAuth: a server that wants a password has charged nothing, and no waiting helps.
func TestRedisNoAuth(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--requirepass", "right")
	for name, opts := range map[string]*redis.Options{
		"none":  {Addr: server.Addr},
		"wrong": {Addr: server.Addr, Password: "wrong"},
		"user":  {Addr: server.Addr, Username: "nobody", Password: "right"},
		"RESP2": {Addr: server.Addr, Protocol: 2},
	} {
		b := backendtesting.OpenRedisWith(t, opts, redisbackend.Config{})
		backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(op string, _ bool, err error) {
			if err == nil {
				t.Errorf("%s: %s succeeds", name, op)
				return
			}
			backendtesting.WantError(t, err, backend.Misconfigured, false)
			if strings.Contains(err.Error(), "right") || strings.Contains(err.Error(), "wrong") && name == "wrong" && !strings.Contains(err.Error(), "WRONGPASS") {
				t.Errorf("%s: the error names the password: %v", name, err)
			}
		})
	}
	b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: server.Addr, Password: "right"}, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
}

// documented are the permissions that the doc of Redis names.
var documented = []string{"+get", "+mget", "+set", "+evalsha", "+eval", "+time", "+info"}

// TestRedisACL: a user with exactly the documented permissions can do everything, and one with fewer can't.
func TestRedisACL(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	open := func(name string, permissions []string, prefix string) *redisbackend.Redis {
		args := []any{"ACL", "SETUSER", name, "reset", "on", ">pass", "~sl:*"}
		for _, p := range permissions {
			args = append(args, p)
		}
		do(t, server.Client(), args...)
		opts := &redis.Options{Addr: server.Addr, Username: name, Password: "pass"}
		return backendtesting.OpenRedisWith(t, opts, redisbackend.Config{Prefix: prefix})
	}
	b := open("all", documented, "")
	for range 2 {
		backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(op string, _ bool, err error) {
			if err != nil {
				t.Errorf("with the documented permissions %s fails: %v", op, err)
			}
		})
		do(t, server.Client(), "SCRIPT", "FLUSH")
	}
	if got := backendtesting.Used(t, server, backendtesting.Secret); got != 0 { // taken and reset
		t.Errorf("%d are used after a reset", got)
	}
	for i, missing := range []string{"+get", "+set", "+evalsha", "+eval", "+time", "+info"} {
		var fewer []string
		for _, p := range documented {
			if p != missing {
				fewer = append(fewer, p)
			}
		}
		do(t, server.Client(), "SCRIPT", "FLUSH")
		b, failed := open(fmt.Sprintf("user%d", i), fewer, ""), 0
		backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(_ string, _ bool, err error) {
			if err != nil {
				failed++
				backendtesting.WantError(t, err, backend.Misconfigured, false)
			}
		})
		if failed == 0 {
			t.Errorf("%s is documented, but not needed", missing)
		}
	}
	b = open("elsewhere", documented, "other:")
	_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Misconfigured, false)
}

// TestRedisForeignValue: what is not ours at the key stays as it is.
func TestRedisForeignValue(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	client := server.Client()
	for name, make := range map[string][]any{
		"hash": {"HSET", backendtesting.Stored(backendtesting.Secret), "f", "v"}, "list": {"RPUSH", backendtesting.Stored(backendtesting.Secret), "v"},
		"set": {"SADD", backendtesting.Stored(backendtesting.Secret), "v"}, "stream": {"XADD", backendtesting.Stored(backendtesting.Secret), "*", "f", "v"},
	} {
		do(t, client, "DEL", backendtesting.Stored(backendtesting.Secret))
		do(t, client, make...)
		before := client.Dump(t.Context(), backendtesting.Stored(backendtesting.Secret)).Val()
		backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(op string, _ bool, err error) {
			switch {
			case op == "ping" || op == "heartbeat":
			case err == nil:
				t.Errorf("%s at a %s succeeds", op, name)
			default:
				backendtesting.WantError(t, err, backend.Misconfigured, false)
			}
		})
		if after := client.Dump(t.Context(), backendtesting.Stored(backendtesting.Secret)).Val(); after != before {
			t.Errorf("the %s was changed", name)
		}
	}
	future := time.Now().Add(time.Hour).UnixMilli()
	for _, garbage := range []string{
		"garbage", "5", `{"count":3}`, "f1h", "f1h:", "f1h:;", ":;", "f1h:x;", "f1h:-1;", "\xff\x00\r\n", strings.Repeat("x", 100_000),
		fmt.Sprintf("f1h:%d;", future), fmt.Sprintf("f1h:%d,;", future), fmt.Sprintf("f1h:%d,x;", future), fmt.Sprintf("f1h:%d,1,2;", future),
		fmt.Sprintf("f1h:%d,1;x", future), fmt.Sprintf("f1h:%d,1", future), fmt.Sprintf("f1h:%d,1.5;", future),
	} {
		for _, expiry := range []time.Duration{0, time.Hour} {
			if err := client.Set(t.Context(), backendtesting.Stored(backendtesting.Secret), garbage, expiry).Err(); err != nil {
				t.Fatal(err)
			}
			_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
			backendtesting.WantError(t, err, backend.Corrupt, false)
			_, err = b.Load(context.Background(), backendtesting.Request(backendtesting.Secret))
			backendtesting.WantError(t, err, backend.Corrupt, false)
			if after := client.Get(t.Context(), backendtesting.Stored(backendtesting.Secret)).Val(); after != garbage {
				t.Errorf("a take changed %.40q to %.40q", garbage, after)
			}
		}
	}
}

// TestRedisFull: a server without memory can deny, but not admit.
func TestRedisFull(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	full := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(1, time.Hour)}}
	backendtesting.MustTake(t, b, backend.Request{Key: "full", Policy: full, Cost: 1})
	r := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	do(t, server.Client(), "CONFIG", "SET", "maxmemory", "1")
	do(t, server.Client(), "CONFIG", "SET", "maxmemory-policy", "noeviction")
	_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Unavailable, false)
	backendtesting.WantError(t, b.Refund(context.Background(), backendtesting.Request(backendtesting.Secret), r.Receipt(), 1), backend.Unavailable, false)
	backendtesting.WantError(t, b.Reset(context.Background(), backendtesting.Request(backendtesting.Secret)), backend.Unavailable, false)
	if _, err := b.Peek(context.Background(), backendtesting.Request(backendtesting.Secret)); err != nil {
		t.Errorf("a peek at a full server: %v", err)
	}
	if denied := backendtesting.MustTake(t, b, backend.Request{Key: "full", Policy: full, Cost: 1}); denied.Allowed {
		t.Error("a full server admits")
	}
	do(t, server.Client(), "CONFIG", "SET", "maxmemory", "0")
	if got := backendtesting.Used(t, server, backendtesting.Secret); got != 1 {
		t.Errorf("1 take was counted %d times", got)
	}
}

// TestRedisReplica: a replica denies and shows, but it is not the place to take.
func TestRedisReplica(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	replica := testserver.Replica(t, server)
	primary, b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{}), backendtesting.OpenRedis(t, replica.Addr, redisbackend.Config{})
	r := backendtesting.MustTake(t, primary, backendtesting.Request(backendtesting.Secret))
	replica.AwaitSync(server)
	backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), r.Receipt(), func(op string, charges bool, err error) {
		switch {
		case op == "seed": // there was nothing to store
		case charges && err == nil:
			t.Errorf("%s at a replica succeeds", op)
		case charges:
			backendtesting.WantError(t, err, backend.Unavailable, false)
		case err != nil:
			t.Errorf("%s at a replica: %v", op, err)
		}
	})
	peeked, err := b.Peek(context.Background(), backendtesting.Request(backendtesting.Secret))
	if err != nil || peeked.Binding().Remaining != r.Binding().Remaining || !peeked.Binding().ResetAt.Equal(r.Binding().ResetAt) {
		t.Errorf("the replica shows %s, %v; the primary said %s", backendtesting.Say(&peeked.Verdict), err, backendtesting.Say(&r.Verdict))
	}
	do(t, replica.Client(), "CONFIG", "SET", "replica-serve-stale-data", "no")
	server.Kill()
	for begin := time.Now(); ; {
		_, err := b.Peek(context.Background(), backendtesting.Request(backendtesting.Secret))
		if err != nil {
			backendtesting.WantError(t, err, backend.Unavailable, false) // MASTERDOWN
			break
		}
		if time.Since(begin) > backendtesting.Patient {
			t.Fatal("the replica goes on serving")
		}
	}
}

// TestRedisTooFewReplicas: a write that the server refuses is not counted.
func TestRedisTooFewReplicas(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--min-replicas-to-write", "1")
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Unavailable, false)
	if got := backendtesting.Used(t, server, backendtesting.Secret); got != 0 {
		t.Errorf("a refused take was counted %d times", got)
	}
}

// TestRedisBusy: a script that doesn't end keeps the server from all others.
func TestRedisBusy(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--busy-reply-threshold", "1")
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	var wg sync.WaitGroup
	wg.Go(func() {
		c := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ReadTimeout: -1})
		defer c.Close()
		_ = c.Eval(context.Background(), "while true do end", nil).Err()
	})
	for begin := time.Now(); ; {
		_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		if err != nil {
			backendtesting.WantError(t, err, backend.Unavailable, false)
			break
		}
		if time.Since(begin) > backendtesting.Patient {
			t.Fatal("the server is never busy")
		}
	}
	do(t, server.Client(), "SCRIPT", "KILL")
	wg.Wait()
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
}

// TestRedisLoading: a server that still reads its data is no server yet.
func TestRedisLoading(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--loading-process-events-interval-bytes", "1024")
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	do(t, server.Client(), "DEBUG", "POPULATE", "20000")
	do(t, server.Client(), "SAVE")
	do(t, server.Client(), "CONFIG", "SET", "key-load-delay", "200")
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	var wg sync.WaitGroup
	wg.Go(func() {
		c := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, ReadTimeout: -1})
		defer c.Close()
		_ = c.Do(context.Background(), "DEBUG", "RELOAD", "NOSAVE").Err()
	})
	for begin := time.Now(); ; {
		_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		if err != nil {
			backendtesting.WantError(t, err, backend.Unavailable, false)
			if !strings.Contains(err.Error(), "LOADING") {
				t.Errorf("got %v, want LOADING", err)
			}
			break
		}
		if time.Since(begin) > backendtesting.Patient {
			t.Fatal("the server is never loading")
		}
	}
	do(t, server.Client(), "CONFIG", "SET", "key-load-delay", "0")
	wg.Wait()
}

// TestRedisCrowded: a server that takes no more clients is not misconfigured, it is full.
func TestRedisCrowded(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	if err := server.Client().Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	do(t, server.Client(), "CONFIG", "SET", "maxclients", "1")
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	for range 3 {
		_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		var failed *backend.Error
		if !errors.As(err, &failed) || failed.Kind != backend.Unavailable {
			t.Errorf("got %v, want a server that is unavailable", err)
		}
		if err != nil && strings.Contains(err.Error(), backendtesting.Secret) {
			t.Errorf("the error names the key: %v", err)
		}
	}
	do(t, server.Client(), "CONFIG", "SET", "maxclients", "100")
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
}

// TestRedisPoolExhausted: who got no connection has charged nothing.
func TestRedisPoolExhausted(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: proxy.Addr, PoolSize: 1, PoolTimeout: 500 * time.Millisecond}, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request("warm"))
	hung := make(chan struct{}, 1)
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] != "GET" {
			return testserver.Pass
		}
		hung <- struct{}{}
		return testserver.HangBefore
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { _, err := b.Load(ctx, backendtesting.Request("warm")); done <- err }() // it shares no round trip
	<-hung
	_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Unavailable, false)
	cancel()
	<-done
	proxy.Cut()
}

// TestRedisAbandoned: what its caller gave up before it was sent is not sent.
func TestRedisAbandoned(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: proxy.Addr, PoolSize: 1}, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	seen, gate := make(chan struct{}, 10), make(chan struct{})
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" {
			seen <- struct{}{}
			<-gate
		}
		return testserver.Pass
	})
	var first, wg sync.WaitGroup
	first.Go(func() { backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)) })
	<-seen // it holds the only connection
	ctx, cancel := context.WithCancel(context.Background())
	for range 4 {
		wg.Go(func() {
			if _, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret)); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want a cancelled call", err)
			}
		})
	}
	wg.Go(func() {
		limited, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if _, err := b.Take(limited, backendtesting.Request(backendtesting.Secret)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a call that met its deadline", err)
		}
	})
	<-time.After(100 * time.Millisecond) // they wait for the connection
	cancel()
	wg.Wait()
	close(gate)
	first.Wait()
	if err := b.Close(); err != nil { // with what was abandoned
		t.Error(err)
	}
	if got := backendtesting.Used(t, server, backendtesting.Secret); got != 2 {
		t.Errorf("2 takes were sent, %d counted", got)
	}
}

// TestRedisCommandsMissing: servers that lack or rename commands quote what they were sent, and with it the key.
func TestRedisCommandsMissing(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"EVALSHA", "EVAL", "GET", "TIME"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t, "--rename-command", command, "")
			b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
			failed := 0
			backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(_ string, _ bool, err error) {
				if err != nil {
					failed++
					backendtesting.WantError(t, err, backend.Misconfigured, false)
				}
			})
			if failed == 0 {
				t.Error("nothing needs it")
			}
		})
	}
}

// TestRedisErrorReplies: what servers and proxies may answer, and what it means.
func TestRedisErrorReplies(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]backend.Kind{
		"LOADING Redis is loading the dataset in memory":                                     backend.Unavailable,
		"BUSY Redis is busy running a script.":                                               backend.Unavailable,
		"READONLY You can't write against a read only replica.":                              backend.Unavailable,
		"MASTERDOWN Link with MASTER is down":                                                backend.Unavailable,
		"CLUSTERDOWN Hash slot not served":                                                   backend.Unavailable,
		"TRYAGAIN Multiple keys request during rehashing of slot":                            backend.Unavailable,
		"NOREPLICAS Not enough good replicas to write.":                                      backend.Unavailable,
		"OOM command not allowed when used memory > 'maxmemory'.":                            backend.Unavailable,
		"MISCONF Redis is configured to save RDB snapshots":                                  backend.Unavailable,
		"MOVED 866 127.0.0.1:7001":                                                           backend.Unavailable,
		"ASK 866 127.0.0.1:7001":                                                             backend.Unavailable,
		"ERR max number of clients reached":                                                  backend.Unavailable,
		"NOAUTH Authentication required.":                                                    backend.Misconfigured,
		"WRONGPASS invalid username-password pair or user is disabled.":                      backend.Misconfigured,
		"NOPERM this user has no permissions to run the 'evalsha' command":                   backend.Misconfigured,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                  backend.Misconfigured,
		"ERR ACL failure in script: User app has no permissions to run the 'set' command":    backend.Misconfigured, // Redis 8.6
		"ERR Unknown command called from script script: f00, on @user_script:18.":            backend.Misconfigured, // Valkey
		"ERR unknown command 'EVALSHA', with args beginning with: '" + backendtesting.Secret: backend.Misconfigured,
		"CORRUPT state": backend.Corrupt,
		"ERR user_script:26: attempt to perform arithmetic on a nil value": backend.Corrupt,
		"CROSSSLOT Keys in request don't hash to the same slot":            backend.Misconfigured,
		"ERR unknown": backend.Misconfigured,
		"":            backend.Misconfigured,
	} {
		b := backendtesting.OpenRedis(t, errorServer(t, reply), redisbackend.Config{})
		_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		var failed *backend.Error
		mayHaveCharged := reply == "" || reply == "ERR unknown" // a proxy may say so when it has lost the reply
		if !errors.As(err, &failed) || failed.Kind != want || failed.MayHaveCharged != mayHaveCharged {
			t.Errorf("%q is %v, want %s, may have charged: %t", reply, err, want, mayHaveCharged)
		}
		if err != nil && strings.Contains(err.Error(), backendtesting.Secret) {
			t.Errorf("the error names the key: %v", err)
		}
	}
}

// errorServer answers TIME as Redis does, says nothing of itself, and answers every script with the error.
func errorServer(t *testing.T, reply string) (addr string) {
	t.Helper()
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
				in := make([]byte, 64<<10)
				for {
					n, err := conn.Read(in)
					if err != nil {
						return
					}
					answer := "-" + reply + "\r\n"
					switch request := strings.ToLower(string(in[:n])); {
					case strings.Contains(request, "hello"):
						answer = "-ERR unknown command 'HELLO'\r\n"
					case strings.Contains(request, "\r\ninfo\r\n"): // who it is, in one pipeline
						answer = "*2\r\n$10\r\n1795225200\r\n$1\r\n0\r\n" + strings.Repeat("$0\r\n\r\n", 4) + "$-1\r\n"
					case strings.Contains(request, "\r\ntime\r\n"):
						answer = "*2\r\n$10\r\n1795225200\r\n$1\r\n0\r\n"
					}
					if _, err := conn.Write([]byte(answer)); err != nil {
						return
					}
				}
			})
		}
	})
	return listener.Addr().String()
}
