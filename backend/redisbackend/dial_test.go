//go:build unix

package redisbackend_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
)

// brief is the timeout of calls that are to end by it, and soon how long after that is soon enough on a busy machine.
// What the clients would wait for is longer by far.
const (
	brief = 200 * time.Millisecond
	soon  = 4 * time.Second
)

// A gate is a dialer that can be shut: who dials then waits, whatever the context says.
type gate struct {
	shut  atomic.Bool
	opens chan struct{} // closed at the end of the test
}

func newGate(t *testing.T) *gate {
	g := &gate{opens: make(chan struct{})}
	t.Cleanup(func() { close(g.opens) }) // before the backend is closed, or it would be after
	return g
}

func (g *gate) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if g.shut.Load() {
		<-g.opens
		return nil, errors.New("too late")
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// oneShard is a cluster client for which the server at addr has all slots.
func oneShard(addr string, g *gate) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{addr}, MaxRedirects: -1, ContextTimeoutEnabled: true, Dialer: g.dial,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{ID: "it", Addr: addr}}}}, nil
		},
	})
}

// TestRedisDials: a call ends by the timeout, also when connections die and new ones don't come about, with a context that
// never ends, with one that can be cancelled, and for whoever shares a round trip. So does Close.
func TestRedisDials(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, addr string, g *gate) *redisbackend.Redis{
		"own client": func(t *testing.T, addr string, g *gate) *redisbackend.Redis {
			return backendtesting.OpenRedisWith(t, &redis.Options{Addr: addr, Dialer: g.dial, DialTimeout: time.Hour, PoolTimeout: time.Hour},
				redisbackend.Config{Timeout: brief})
		},
		"own client, one connection": func(t *testing.T, addr string, g *gate) *redisbackend.Redis {
			return backendtesting.OpenRedisWith(t, &redis.Options{Addr: addr, Dialer: g.dial, PoolSize: 1}, redisbackend.Config{Timeout: brief})
		},
		"another's": func(t *testing.T, addr string, g *gate) *redisbackend.Redis {
			return newRedis(t, redis.NewClient(&redis.Options{
				Addr: addr, Dialer: g.dial, MaxRetries: -1, ContextTimeoutEnabled: true,
			}), redisbackend.Config{})
		},
		"cluster": func(t *testing.T, addr string, g *gate) *redisbackend.Redis {
			return newRedis(t, oneShard(addr, g), redisbackend.Config{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			proxy := testserver.NewProxy(t, server.Addr)
			g := newGate(t)
			b := open(t, proxy.Addr, g)
			backendtesting.Await(t, "a take", func() bool {
				_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
				return err == nil
			})
			g.shut.Store(true)
			proxy.Cut()
			proxy.Heal()
			begin := time.Now()
			backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(op string, _ bool, err error) {
				if took := time.Since(begin); took > soon {
					t.Errorf("%s took %s", op, took)
				}
				var failed *backend.Error
				if !errors.As(err, &failed) || failed.Kind != backend.Unavailable {
					t.Errorf("%s: %v, want an unavailable server", op, err)
				}
				begin = time.Now()
			})
			ends := make(chan time.Duration, 40)
			for i := range cap(ends) { // more than there are connections
				ctx := context.Background()
				if i%2 == 0 {
					ctx = t.Context()
				}
				go func() {
					begin := time.Now()
					_, _ = b.Take(ctx, backendtesting.Request(backendtesting.Secret))
					ends <- time.Since(begin)
				}()
			}
			for range cap(ends) {
				if took := <-ends; took > soon {
					t.Errorf("a take of many took %s", took)
				}
			}
			begin = time.Now()
			if err := b.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if took := time.Since(begin); took > soon {
				t.Errorf("Close took %s", took)
			}
		})
	}
}

// newRedis counts through a client, briefly unless told otherwise.
func newRedis(t *testing.T, client redis.UniversalClient, cfg redisbackend.Config) *redisbackend.Redis {
	t.Helper()
	t.Cleanup(func() { _ = client.Close() })
	if cfg.Timeout == 0 {
		cfg.Timeout = brief
	}
	b, err := redisbackend.New(client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// TestRedisClusterCommands: a cluster client asks for the server's commands before its own first call, under a context of
// its own. No call here is such a call.
func TestRedisClusterCommands(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "COMMAND" {
			return testserver.HangBefore
		}
		return testserver.Pass
	})
	for _, now := range []func() time.Time{nil, time.Now} { // with and without a question for the time before it
		b := newRedis(t, oneShard(proxy.Addr, newGate(t)), redisbackend.Config{Now: now, Timeout: backendtesting.Patient})
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			begin := time.Now()
			_, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret))
			if took := time.Since(begin); err != nil || took > soon {
				t.Errorf("a take took %s: %v", took, err)
			}
		}
	}
	proxy.SetFault(nil)
	proxy.Cut() // ends what hangs
	proxy.Heal()
}

// TestRedisHandshake: what a caller has done on connect gets a context that ends by the timeout.
func TestRedisHandshake(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	for name, opts := range map[string]*redis.Options{
		"credentials": {CredentialsProviderContext: func(ctx context.Context) (string, string, error) {
			<-ctx.Done()
			return "", "", ctx.Err()
		}},
		"on connect": {OnConnect: func(ctx context.Context, _ *redis.Conn) error { <-ctx.Done(); return ctx.Err() }},
	} {
		opts.Addr = server.Addr
		b := backendtesting.OpenRedisWith(t, opts, redisbackend.Config{Timeout: brief, Now: time.Now})
		done := make(chan error, 1)
		go func() {
			_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
			done <- err
		}()
		select {
		case err := <-done:
			var failed *backend.Error
			if !errors.As(err, &failed) || failed.Kind != backend.Unavailable || failed.MayHaveCharged {
				t.Errorf("%s: %v, want an unavailable server", name, err)
			}
		case <-time.After(soon):
			t.Fatalf("%s: a take doesn't end", name)
		}
	}
}

// TestRedisNeverConnected: what no connection was set up for was not counted, and says so: behind a proxy whose server is down,
// what is spent on credit stays to be charged.
func TestRedisNeverConnected(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*net.TCPConn){
		"closes":           func(c *net.TCPConn) { _ = c.Close() },
		"resets":           func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
		"reads and closes": func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1000)); _ = c.Close() },
		"hangs":            func(*net.TCPConn) {},
	} {
		for _, config := range []*tls.Config{nil, {InsecureSkipVerify: true}} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					t.Cleanup(func() { _ = c.Close() })
					serve(c.(*net.TCPConn))
				}
			}()
			b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: l.Addr().String(), TLSConfig: config},
				redisbackend.Config{Timeout: brief, Now: time.Now})
			for _, ctx := range []context.Context{context.Background(), t.Context()} {
				_, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret))
				var failed *backend.Error
				if !errors.As(err, &failed) || failed.Kind != backend.Unavailable || failed.MayHaveCharged {
					t.Errorf("a server that %s, TLS %t: %v", name, config != nil, err)
				}
			}
		}
	}
}
