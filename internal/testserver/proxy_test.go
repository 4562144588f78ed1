//go:build unix

package testserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-go/sluice/internal/testserver"
)

// client is a plain client that never tries again.
func client(t *testing.T, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	opts := &redis.Options{
		Addr: addr, MaxRetries: -1, DialerRetries: 1, ReadTimeout: 10 * time.Second,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, f := range change {
		f(opts)
	}
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// on applies an action to one command and passes the others.
func on(command string, a testserver.Action) testserver.Fault {
	return func(args []string) testserver.Action {
		if args[0] == command {
			return a
		}
		return testserver.Pass
	}
}

func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

func TestProxyActions(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	fine := func(err error) bool { return err == nil }
	for _, test := range []struct {
		name     string
		action   testserver.Action
		wait     bool // the client runs into its timeout
		executed bool
		err      func(error) bool
	}{
		{"pass", testserver.Pass, false, true, fine},
		{"close before", testserver.CloseBefore, false, false, isClosed},
		{"hang before", testserver.HangBefore, true, false, isTimeout},
		{"close after", testserver.CloseAfter, false, true, isClosed},
		{"hang after", testserver.HangAfter, true, true, isTimeout},
		{"truncate", testserver.Truncate, false, true, isClosed},
		{"late", testserver.Delay(time.Minute), true, true, isTimeout},
		{"in time", testserver.Delay(50 * time.Millisecond), false, true, fine},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := testserver.NewProxy(t, server.Addr)
			c := client(t, p.Addr)
			if err := c.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if test.wait {
				c = c.WithTimeout(300 * time.Millisecond) // on the connection that is there
			}
			p.SetFault(on("INCR", test.action))
			start := time.Now()
			if err := c.Incr(t.Context(), test.name).Err(); !test.err(err) {
				t.Errorf("client got %v", err)
			}
			if test.name == "in time" && time.Since(start) < 50*time.Millisecond {
				t.Errorf("reply after %v, want a delay", time.Since(start))
			}
			executed := func() bool { return server.Client().Exists(t.Context(), test.name).Val() == 1 }
			for deadline := time.Now().Add(5 * time.Second); test.executed && !executed(); {
				if time.Now().After(deadline) {
					t.Fatal("not executed")
				}
			}
			if !test.executed && executed() {
				t.Error("executed")
			}
			p.SetFault(nil)
			if err := client(t, p.Addr).Incr(t.Context(), test.name).Err(); err != nil {
				t.Errorf("without the fault: %v", err)
			}
		})
	}
}

// TestProxyLosesEveryThird is what the proxy is for: some replies of one command lost, each executed once.
func TestProxyLosesEveryThird(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	p := testserver.NewProxy(t, server.Addr)
	var calls atomic.Int64
	p.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" && args[3] == "n" && calls.Add(1)%3 == 0 {
			return testserver.CloseAfter
		}
		return testserver.Pass
	})
	sha, err := server.Client().ScriptLoad(t.Context(), "return redis.call('INCR', KEYS[1])").Result()
	if err != nil {
		t.Fatal(err)
	}
	var lost atomic.Int64
	var wg sync.WaitGroup
	c := client(t, p.Addr)
	for range 6 {
		wg.Go(func() {
			for range 50 {
				switch err := c.EvalSha(t.Context(), sha, []string{"n"}).Err(); {
				case isClosed(err):
					lost.Add(1)
				case err != nil:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n, err := server.Client().Get(t.Context(), "n").Int(); n != 300 || lost.Load() != 100 || err != nil {
		t.Errorf("executed %d, lost %d, %v; want 300 and 100", n, lost.Load(), err)
	}
}

func TestProxyPipeline(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	for _, test := range []struct {
		name               string
		action             testserver.Action // of the sixth command
		sent               int
		answered, executed int
	}{
		{"pass", testserver.Pass, 10000, 10000, 10000},
		{"delay", testserver.Delay(50 * time.Millisecond), 20, 20, 20},
		{"close before", testserver.CloseBefore, 20, 5, 5},
		{"hang before", testserver.HangBefore, 20, 5, 5},
		{"close after", testserver.CloseAfter, 20, 5, 20}, // all were on their way, as on a real network
		{"hang after", testserver.HangAfter, 20, 5, 20},
		{"truncate", testserver.Truncate, 20, 5, 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := testserver.NewProxy(t, server.Addr)
			var calls atomic.Int64
			p.SetFault(func([]string) testserver.Action {
				if calls.Add(1) == 6 {
					return test.action
				}
				return testserver.Pass
			})
			conn, err := net.Dial("tcp", p.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go fmt.Fprint(conn, strings.Repeat("*2\r\n$4\r\nINCR\r\n$"+
				fmt.Sprint(len(test.name), "\r\n", test.name, "\r\n"), test.sent))

			replies, answered := bufio.NewReader(conn), 0
			for answered < test.answered {
				_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
				line, err := replies.ReadString('\n')
				if err != nil {
					t.Fatalf("after %d replies: %v", answered, err)
				}
				if answered++; line != fmt.Sprintf(":%d\r\n", answered) {
					t.Fatalf("reply %d is %q: another command's", answered, line)
				}
			}
			_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if line, err := replies.ReadString('\n'); err == nil {
				t.Errorf("reply %q after the last one", line)
			}
			if n, err := server.Client().Get(t.Context(), test.name).Int(); n != test.executed || err != nil {
				t.Errorf("%d executed, %v; want %d", n, err, test.executed)
			}
		})
	}
}

// TestProxyReplies sends every type of reply of both protocols through the proxy and compares with none in between.
func TestProxyReplies(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	p := testserver.NewProxy(t, server.Addr)
	ctx := t.Context()
	server.Client().HSet(ctx, "hash", "a", "1", "b", "2")
	server.Client().SAdd(ctx, "set", "a")
	server.Client().ZAdd(ctx, "z", redis.Z{Score: 1.5, Member: "a"})
	server.Client().Set(ctx, "big", strings.Repeat("x", 1<<20), 0)
	calls := [][]any{
		{"HGETALL", "hash"}, {"SMEMBERS", "set"}, {"GET", "big"}, {"GET", "none"}, {"NO-SUCH-COMMAND"}, {"PING"},
		{"EVAL", "return {1, 'two', {3, {false}}, redis.status_reply('five')}", "0"}, {"COMMAND", "INFO", "get"},
		{"ZSCORE", "z", "a"}, {"ECHO", ""}, {"ECHO", "a\r\n\x00b"}, {"LRANGE", "l", "0", "-1"},
	}
	for _, kind := range []string{
		"string", "integer", "double", "null", "array", "set", "map", "attrib", "verbatim", "true", "false", "bignum",
	} {
		calls = append(calls, []any{"DEBUG", "PROTOCOL", kind})
	}
	for _, protocol := range []int{2, 3} {
		use := func(o *redis.Options) { o.Protocol = protocol }
		direct, proxied := client(t, server.Addr, use), client(t, p.Addr, use)
		for _, call := range calls {
			want, wantErr := direct.Do(ctx, call...).Result()
			got, err := proxied.Do(ctx, call...).Result()
			if got, want := fmt.Sprint(got, err), fmt.Sprint(want, wantErr); got != want {
				t.Errorf("RESP%d %v: got %.99q, want %.99q", protocol, call, got, want)
			}
		}
	}
}

// TestProxyPush has the server speak unasked between two replies: that must not take the action of the second.
func TestProxyPush(t *testing.T) {
	t.Parallel()
	p := testserver.NewProxy(t, testserver.Redis(t).Addr)
	p.SetFault(on("PING", testserver.CloseAfter))
	conn, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "HELLO 3\r\nCLIENT TRACKING ON\r\nGET k\r\nSET k v\r\nPING\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	got, err := io.ReadAll(conn)
	if text := string(got); !strings.Contains(text, "invalidate") || strings.Count(text, "+OK") != 2 ||
		strings.Contains(text, "PONG") || isTimeout(err) {
		t.Errorf("got %q, %v; want both OK and the invalidation, then the end", text, err)
	}
}

func TestProxyCutAndHeal(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	p := testserver.NewProxy(t, server.Addr)
	conn, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 20 {
		p.Cut()
		p.Cut() // twice is once
		if _, err := net.Dial("tcp", p.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial while cut: %v, want refused", err)
		}
		p.Heal()
		p.Heal()
		if got := ask(t, p.Addr, "PING"); got != "+PONG" {
			t.Errorf("after healing: %q", got)
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("connection from before the cut: %v, want it dropped", err)
	}
}

func TestProxySeesTheServerGo(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	p := testserver.NewProxy(t, server.Addr)
	conn, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "PING\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadFull(conn, make([]byte, len("+PONG\r\n"))); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("idle connection to a killed server: %v, want it dropped", err)
	}
	if err := client(t, p.Addr).Ping(t.Context()).Err(); err == nil {
		t.Error("a killed server answers")
	}
	server.Restart()
	if got := ask(t, p.Addr, "PING"); got != "+PONG" {
		t.Errorf("after the restart: %q", got)
	}
}

// TestProxyBetweenPrimaryAndReplica cuts replication: what is written meanwhile is what a failover would lose.
func TestProxyBetweenPrimaryAndReplica(t *testing.T) {
	t.Parallel()
	primary := testserver.Redis(t)
	p := testserver.NewProxy(t, primary.Addr)
	host, port, _ := net.SplitHostPort(p.Addr)
	replica := testserver.Redis(t, "--replicaof", host, port)
	primary.Client().Set(t.Context(), "k", "1", 0)
	replica.AwaitSync(primary)
	p.Cut()
	primary.Client().Set(t.Context(), "k", "2", 0)
	if got := replica.Client().Get(t.Context(), "k").Val(); got != "1" {
		t.Errorf("replica that was cut off holds %q, want 1", got)
	}
	p.Heal()
	replica.AwaitSync(primary)
	if got := replica.Client().Get(t.Context(), "k").Val(); got != "2" {
		t.Errorf("replica after healing holds %q, want 2", got)
	}
}

func TestProxySubscriber(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	p := testserver.NewProxy(t, server.Addr)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, protocol := range []int{2, 3} {
		sub := client(t, p.Addr, func(o *redis.Options) { o.Protocol = protocol }).Subscribe(ctx, "c")
		if _, err := sub.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, want := range []string{"a", "b"} {
			server.Client().Publish(ctx, "c", want)
			m, err := sub.ReceiveMessage(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, m.Payload)
		}
		if !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("RESP%d: received %q", protocol, got)
		}
		_ = sub.Close()
	}
}
