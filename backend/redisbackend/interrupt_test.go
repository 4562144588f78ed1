//go:build unix

package redisbackend_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/internal/testtier"
	"github.com/sluice-go/sluice/limit"
)

// crumbs is a connection that hands over a few bytes at a time, so that a call can be interrupted amid a reply. It hides
// its socket: nobody can look there for what is left of one.
type crumbs struct{ net.Conn }

func (c crumbs) Read(b []byte) (int, error) {
	if rand.IntN(4) == 0 {
		<-time.After(20 * time.Microsecond)
	}
	return c.Conn.Read(b[:min(len(b), 1+rand.IntN(8))])
}

// TestInterruptReplies: callers who give up amid a reply, thousands of times, never leave it to the next one. Each key has
// a range of counts of its own, by which a reply says whose it is.
func TestInterruptReplies(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"socket": func(c net.Conn) net.Conn { return c }, "crumbs": func(c net.Conn) net.Conn { return crumbs{c} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := testserver.NewProxy(t, server.Addr)
			proxy.SetFault(func(args []string) testserver.Action {
				if args[0] != "EVALSHA" || rand.IntN(8) == 0 {
					return testserver.Pass
				}
				return testserver.Delay(2*time.Millisecond + time.Duration(rand.IntN(800))*time.Microsecond) // as long as they are given
			})
			prefix := backendtesting.NewPrefix()
			b := backendtesting.OpenRedisWith(t, &redis.Options{
				Addr: proxy.Addr,
				Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return wrap(conn), nil
				},
			}, redisbackend.Config{Prefix: prefix})
			b.InterruptAlways()
			const callers, keys, span = 2, 8, 100_000 // as many callers as connections: each has one to itself
			takes := testtier.Size(250, 1000)
			policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(keys*span, time.Hour)}}
			take := func(ctx context.Context, key int, cost int64) (used int64, err error) {
				r, err := b.Take(ctx, backend.Request{Key: fmt.Sprint(key), Policy: policy, Cost: cost})
				if err == nil {
					used = keys*span - r.Binding().Remaining
				}
				return used, err
			}
			for key := 1; key < keys; key++ {
				if _, err := take(t.Context(), key, int64(key*span)); err != nil {
					t.Fatal(err)
				}
			}
			var answered, interrupted atomic.Int64
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for i := range takes {
						key := rand.IntN(keys)
						ctx, cancel := context.WithCancel(t.Context())
						if i%2 == 0 { // the others are not to be hit by what ends these
							time.AfterFunc(time.Duration(rand.IntN(600))*time.Microsecond, cancel)
						}
						used, err := take(ctx, key, 1)
						switch {
						case err == nil && used/span != int64(key):
							t.Errorf("a call for key %d got the reply for key %d", key, used/span)
						case err == nil:
							answered.Add(1)
						case i%2 > 0:
							t.Errorf("a call that nobody interrupted: %v", err)
						case !errors.Is(err, context.Canceled):
							t.Errorf("a call that was interrupted: %v", err)
						default:
							interrupted.Add(1)
						}
						cancel()
					}
				})
			}
			wg.Wait()
			if n := interrupted.Load(); n < int64(takes/20) {
				t.Errorf("%d calls were interrupted, too few to say anything", n)
			}
			t.Logf("%d calls answered, %d interrupted", answered.Load(), interrupted.Load())
			backendtesting.Await(t, "the connections", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 2 && extra == 0 })
		})
	}
}

// endings are the ways in which a context ends while its caller waits.
var endings = map[string]func() (context.Context, func()){
	"cancel": func() (context.Context, func()) {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(200*time.Millisecond, cancel)
		return ctx, cancel
	},
	"timeout": func() (context.Context, func()) {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		return ctx, cancel
	},
	"a parent": func() (context.Context, func()) {
		parent, stop := context.WithTimeout(context.Background(), 200*time.Millisecond)
		ctx, cancel := context.WithCancel(parent)
		return ctx, func() { cancel(); stop() }
	},
	"a foreign one": func() (context.Context, func()) {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		return struct{ context.Context }{ctx}, cancel
	},
}

// TestInterruptPrompt: a caller returns when its context ends, whatever the connection is at.
func TestInterruptPrompt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pool int // 1: all share a client
		dial bool
		tls  bool
	}{
		"reply": {pool: 0}, "reply to a shared client": {pool: 1}, "dial": {dial: true}, "reply over TLS": {tls: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			proxy := testserver.NewProxy(t, server.Addr)
			var dials, hangs atomic.Bool
			over := make(chan struct{})
			opts := &redis.Options{Addr: proxy.Addr, PoolSize: test.pool}
			opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Store(true)
				if hangs.Load() {
					<-over
					return nil, errors.New("nobody is there")
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			if test.tls {
				opts.Dialer = nil
				opts.Addr, opts.TLSConfig = coverTLS(t, proxy.Addr)
			}
			b := backendtesting.OpenRedisWith(t, opts, redisbackend.Config{})
			backendtesting.MustTake(t, b, backendtesting.Request("warm"))
			gate := make(chan struct{})
			proxy.SetFault(func(args []string) testserver.Action {
				if args[0] == "EVALSHA" {
					<-gate
				}
				return testserver.Pass
			})
			if test.dial {
				hangs.Store(true)
				proxy.Cut()
				proxy.Heal()
				dials.Store(false)
				<-time.After(5 * time.Millisecond) // right after a call nobody looks whether the connection lives
			}
			for ending, make := range endings {
				ctx, cancel := make()
				begin := time.Now()
				_, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret))
				took := time.Since(begin)
				cancel()
				var failed *backend.Error
				dial, _ := errors.AsType[*net.OpError](err) // after the call before was interrupted: nothing was sent
				sent := test.pool != 1 && (dial == nil || dial.Op != "dial")
				if !errors.As(err, &failed) || failed.Kind != backend.Interrupted || !failed.MayHaveCharged && sent {
					t.Errorf("%s: %v", ending, err)
				}
				if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v, want the end of the context in it", ending, err)
				}
				if took > backendtesting.Patient/10 {
					t.Errorf("%s: noticed after %s", ending, took)
				}
			}
			if test.dial && !dials.Load() {
				t.Error("nothing was dialled")
			}
			hangs.Store(false)
			close(over)
			proxy.SetFault(nil)
			close(gate)
			for range 10 {
				backendtesting.MustTake(t, b, backendtesting.Request("afterwards"))
			}
			if n := backendtesting.Used(t, server, "afterwards"); n != 10 {
				t.Errorf("10 takes were counted %d times", n)
			}
		})
	}
}

// coverTLS returns the address of a server that passes on what comes by TLS, and how to trust it.
func coverTLS(t *testing.T, target string) (addr string, trust *tls.Config) {
	t.Helper()
	pair := httptest.NewTLSServer(nil) // for its certificate
	t.Cleanup(pair.Close)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: pair.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				to, err := net.Dial("tcp", target)
				if err != nil {
					_ = from.Close()
					return
				}
				shut := func() { _, _ = from.Close(), to.Close() }
				stop := context.AfterFunc(ctx, shut)
				defer stop()
				wg.Go(func() { defer shut(); _, _ = io.Copy(from, to) })
				defer shut()
				_, _ = io.Copy(to, from)
			})
		}
	})
	client := pair.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	client.ServerName = "example.com"
	return listener.Addr().String(), client
}
