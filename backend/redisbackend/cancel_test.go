//go:build unix

package redisbackend_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
)

// TestLeavingCostsNoConnections: callers who leave amid their calls, thousands of them, cost a few connections a second, with
// TLS and without; calls of others all succeed, and what was given up counts at most once.
func TestLeavingCostsNoConnections(t *testing.T) {
	t.Parallel()
	cancelled := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		stop := time.AfterFunc(time.Millisecond, cancel)
		return ctx, func() { stop.Stop(); cancel() }
	}
	short := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Millisecond)
	}
	peek := func(ctx context.Context, b *redisbackend.Redis) error {
		_, err := b.Peek(ctx, backendtesting.Request("left"))
		return err
	}
	take := func(ctx context.Context, b *redisbackend.Redis) error {
		_, err := b.Take(ctx, backendtesting.Request("left"))
		return err
	}
	for name, test := range map[string]struct {
		leave func(context.Context) (context.Context, context.CancelFunc)
		call  func(context.Context, *redisbackend.Redis) error
		delay time.Duration // of replies
		dial  time.Duration // how long it takes to get a connection
		tls   bool
	}{
		"cancelled":                        {leave: cancelled, call: take, delay: 10 * time.Millisecond},
		"cancelled, TLS":                   {leave: cancelled, call: take, delay: 10 * time.Millisecond, tls: true},
		"cancelled, a server that is fast": {leave: cancelled, call: take},
		"cancelled while connecting":       {leave: cancelled, call: take, delay: time.Millisecond, dial: 10 * time.Millisecond},
		"short deadlines":                  {leave: short, call: take, delay: 10 * time.Millisecond},
		"short deadlines, TLS":             {leave: short, call: take, delay: 10 * time.Millisecond, tls: true},
		"short deadlines, connecting":      {leave: short, call: take, delay: time.Millisecond, dial: 10 * time.Millisecond},
		"peeks with short deadlines":       {leave: short, call: peek, delay: 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			proxy := testserver.NewProxy(t, server.Addr)
			opts := &redis.Options{Addr: proxy.Addr, PoolSize: 20}
			if test.tls {
				opts.Addr, opts.TLSConfig = coverTLS(t, proxy.Addr)
			}
			var dials atomic.Int64
			dial := redis.NewDialer(&redis.Options{TLSConfig: opts.TLSConfig, DialTimeout: backendtesting.Patient})
			opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Add(1)
				if test.dial > 0 {
					select {
					case <-time.After(test.dial):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				return dial(ctx, network, addr)
			}
			b := backendtesting.OpenRedisWith(t, opts, redisbackend.Config{})
			if test.dial == 0 {
				backendtesting.MustTake(t, b, backendtesting.Request("warm"))
			} else if err := b.Ping(t.Context()); err != nil { // the connections have no connection yet
				t.Fatal(err)
			}
			proxy.SetFault(func([]string) testserver.Action { return testserver.Delay(test.delay) })
			before, begin := dials.Load(), time.Now()
			const calls = 500
			var admitted, left atomic.Int64
			var leaving, staying sync.WaitGroup
			leaving.Go(func() {
				for range calls {
					ctx, cancel := test.leave(t.Context())
					if test.call(ctx, b) == nil {
						admitted.Add(1)
					} else {
						left.Add(1)
					}
					cancel()
				}
			})
			stop := make(chan struct{})
			staying.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := b.Take(t.Context(), backendtesting.Request("stays")); err != nil {
						t.Errorf("a caller who stays: %v", err)
					}
				}
			})
			leaving.Wait()
			close(stop)
			staying.Wait()
			took, opened := time.Since(begin), dials.Load()-before
			// Lanes that are opened because others stall need a connection each, once.
			if most := int64(20 + 4*took/time.Second); opened > most {
				t.Errorf("%d callers who left cost %d connections in %s, want %d at most", left.Load(), opened, took, most)
			}
			if test.delay > time.Millisecond && left.Load() < calls/2 {
				t.Errorf("only %d of %d calls were given up: the test shows nothing", left.Load(), calls)
			}
			proxy.SetFault(nil)
			backendtesting.Await(t, "the connections", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 2 && extra == 0 })
			if n := backendtesting.Used(t, server, "left"); n > admitted.Load()+left.Load() {
				t.Errorf("%d calls were counted %d times", admitted.Load()+left.Load(), n)
			}
			t.Logf("%d answered, %d given up, %d connections in %s", admitted.Load(), left.Load(), opened, took)
		})
	}
}
