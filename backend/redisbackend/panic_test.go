//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
)

// panicHook panics before or after each command while it is broken.
type panicHook struct {
	broken *atomic.Bool
	after  bool
}

func (h panicHook) fail(at bool) {
	if at == h.after && h.broken.Load() {
		panic("the hook's words: user:42")
	}
}

func (h panicHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h panicHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.fail(false)
		err := next(ctx, cmd)
		h.fail(true)
		return err
	}
}

func (h panicHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.fail(false)
		err := next(ctx, cmds)
		h.fail(true)
		return err
	}
}

// TestPanicsKeepConnections: a panic in what the application gave to the client fails the calls that meet it, and no later one.
func TestPanicsKeepConnections(t *testing.T) {
	t.Parallel()
	const pool = 6
	cfg := redisbackend.Config{Timeout: 5 * time.Second}
	hooked := func(after bool) func(*testing.T, string, *atomic.Bool) *redisbackend.Redis {
		return func(t *testing.T, addr string, broken *atomic.Bool) *redisbackend.Redis {
			client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: pool})
			t.Cleanup(func() { _ = client.Close() })
			b, err := redisbackend.New(client, cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			client.AddHook(panicHook{broken, after})
			return b
		}
	}
	opened := func(set func(*redis.Options, func())) func(*testing.T, string, *atomic.Bool) *redisbackend.Redis {
		return func(t *testing.T, addr string, broken *atomic.Bool) *redisbackend.Redis {
			opts := &redis.Options{Addr: addr, PoolSize: pool}
			set(opts, func() {
				if broken.Load() {
					var none *panicHook
					_ = none.after // a runtime error
				}
			})
			return backendtesting.OpenRedisWith(t, opts, cfg)
		}
	}
	for name, open := range map[string]func(*testing.T, string, *atomic.Bool) *redisbackend.Redis{
		"hook before": hooked(false),
		"hook after":  hooked(true),
		"OnConnect": opened(func(o *redis.Options, fail func()) {
			o.OnConnect = func(context.Context, *redis.Conn) error { fail(); return nil }
		}),
		"CredentialsProvider": opened(func(o *redis.Options, fail func()) {
			o.CredentialsProvider = func() (string, string) { fail(); return "", "" }
		}),
		"CredentialsProviderContext": opened(func(o *redis.Options, fail func()) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { fail(); return "", "", nil }
		}),
		"Dialer": opened(func(o *redis.Options, fail func()) {
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				fail()
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			var broken atomic.Bool
			b := open(t, server.Addr, &broken)
			if strings.HasPrefix(name, "hook") {
				if err := b.Ping(t.Context()); err != nil { // it knows the clock: takes go further
					t.Fatal(err)
				}
			}
			request := func() backend.Request {
				return backend.Request{Key: "user:42", Policy: backendtesting.Hour(1000), Cost: 1}
			}
			broken.Store(true)
			cancellable, cancel := context.WithCancel(context.Background())
			defer cancel()
			var all sync.WaitGroup
			for i := range 4 { // some alone, some together
				all.Go(func() {
					for range 5 * pool {
						for _, ctx := range []context.Context{context.Background(), cancellable} {
							_, takeErr := b.Take(ctx, request())
							_, loadErr := b.Load(ctx, request())
							for _, err := range []error{takeErr, loadErr} {
								var failed *backend.Error
								if !errors.As(err, &failed) {
									t.Errorf("%v, want a *backend.Error", err)
								} else if text := err.Error(); !strings.Contains(text, "panic_test.go:") || strings.Contains(text, "user:42") {
									t.Errorf("the error should name the place and nothing of the key: %s", text)
								}
							}
						}
					}
				})
				if i == 0 {
					all.Wait()
				}
			}
			all.Wait()
			broken.Store(false)
			if name == "Dialer" { // after PoolSize dials that fail the client rests for up to a second
				backendtesting.Await(t, "a connection", func() bool { return b.Ping(t.Context()) == nil })
			}
			for range 3 * pool {
				for _, ctx := range []context.Context{context.Background(), cancellable} {
					if _, err := b.Take(ctx, request()); err != nil {
						t.Fatalf("a take after the panics: %v", err)
					}
					if _, err := b.Load(ctx, request()); err != nil {
						t.Fatalf("a load after the panics: %v", err)
					}
				}
			}
		})
	}
}
