//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// TestPipelinerFrozen: callers of a server that stands still return by their deadlines, those who wait for a connection too, and
// what was not sent is not counted.
func TestPipelinerFrozen(t *testing.T) {
	const callers, deadline = 256, 300 * time.Millisecond
	for _, pool := range []int{0, 1, 2} {
		server := testserver.Redis(t)
		patientCalls := backendtesting.OpenRedisWith(t, &redis.Options{Addr: server.Addr, PoolSize: pool}, redisbackend.Config{Timeout: 10 * time.Second})
		bounded := backendtesting.OpenRedisWith(t, &redis.Options{Addr: server.Addr, PoolSize: pool}, redisbackend.Config{Timeout: deadline})
		for _, b := range []*redisbackend.Redis{patientCalls, bounded} {
			for {
				if _, err := b.Take(t.Context(), backendtesting.Request("warm")); err == nil {
					break
				}
			}
		}
		server.Pause()
		var wg sync.WaitGroup
		var unknown atomic.Int64
		begin := time.Now()
		for i := range callers {
			wg.Go(func() {
				b, ctx, cancel := patientCalls, context.Background(), func() {}
				switch i % 3 {
				case 0:
					ctx, cancel = context.WithDeadline(ctx, time.Now().Add(deadline))
				case 1:
					var stop func()
					ctx, stop = context.WithCancel(ctx)
					timer := time.AfterFunc(deadline, stop)
					cancel = func() { timer.Stop(); stop() }
				case 2:
					b = bounded
				}
				defer cancel()
				_, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret))
				var failed *backend.Error
				if !errors.As(err, &failed) || failed.Kind != backend.Unavailable && failed.Kind != backend.Interrupted {
					t.Errorf("a frozen server: %v", err)
				} else if failed.MayHaveCharged {
					unknown.Add(1)
				}
			})
		}
		wg.Wait()
		late := time.Since(begin)
		if late > deadline+backendtesting.Patient/10 {
			t.Errorf("pool of %d: a deadline of %s was honoured after %s", pool, deadline, late)
		}
		server.Resume()
		backendtesting.Await(t, "the thaw", func() bool { return bounded.Ping(context.Background()) == nil })
		if n := backendtesting.Used(t, server, backendtesting.Secret); n > unknown.Load() {
			t.Errorf("pool of %d: %d calls may have been counted, %d were", pool, unknown.Load(), n)
		}
		if n := unknown.Load(); n == 0 || pool > 0 && n == callers {
			t.Errorf("pool of %d: %d of %d calls may have been counted", pool, n, callers)
		}
		t.Logf("pool of %d: the last of %d returned after %s; %d may have been counted, %d were",
			pool, callers, late, unknown.Load(), backendtesting.Used(t, server, backendtesting.Secret))
	}
}

// TestPipelinerHangingDial: a caller who dials and those who wait for it return by their deadlines, even if the dial takes longer.
func TestPipelinerHangingDial(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	over := make(chan struct{})
	b := backendtesting.OpenRedisWith(t, &redis.Options{
		Addr: "nobody:1", PoolSize: 2, DialTimeout: 2 * backendtesting.Patient,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			<-over
			return nil, &net.OpError{Op: "dial", Err: errors.New("nobody is there")}
		},
	}, redisbackend.Config{Timeout: timeout, Now: time.Now})
	take := func() error {
		_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		return err
	}
	var first, others sync.WaitGroup
	first.Go(func() { backendtesting.WantError(t, take(), backend.Unavailable, false) })
	backendtesting.Await(t, "the connection", func() bool { _, free, _ := b.Waiting(); return free == 0 })
	begin := time.Now()
	for range 5 {
		others.Go(func() { // in their last moments they may get the connection
			var failed *backend.Error
			if err := take(); !errors.As(err, &failed) || failed.Kind != backend.Unavailable {
				t.Errorf("a server that can't be reached: %v", err)
			}
		})
	}
	others.Wait()
	first.Wait()
	if took := time.Since(begin); took < timeout || took > timeout+backendtesting.Patient/10 {
		t.Errorf("a deadline of %s was honoured after %s", timeout, took)
	}
	close(over)
}

// TestPipelinerAbandoned: a call that was given up while it waited is never sent.
func TestPipelinerAbandoned(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	g.hold()
	var gaveUp sync.WaitGroup
	var cancels []func()
	for i := range 40 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if i%2 == 0 {
			gaveUp.Add(1)
			cancels = append(cancels, cancel)
		}
		g.queue(func() {
			_, err := g.Take(ctx, backendtesting.Request(backendtesting.Secret))
			if i%2 == 0 {
				backendtesting.WantError(t, err, backend.Interrupted, false)
				gaveUp.Done()
			} else if err != nil {
				t.Errorf("a neighbour of those who gave up: %v", err)
			}
		})
	}
	for _, cancel := range cancels {
		cancel()
	}
	gaveUp.Wait() // while the connection is held
	short, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	_, err := g.Take(short, backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Interrupted, false)
	if calls := g.release(); calls != 1 {
		t.Errorf("%d script calls, want one", calls)
	}
	if n := backendtesting.Used(t, g.server, backendtesting.Secret); n != 20 {
		t.Errorf("20 calls that nobody gave up were counted %d times", n)
	}
}

// TestPipelinerOverdue: a call whose deadline is over when its turn comes is not sent, and says so.
func TestPipelinerOverdue(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request("warm"))
	server.ResetStats(t)
	for range 200 {
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			_, err := b.Take(overdue{ctx}, backendtesting.Request(backendtesting.Secret))
			backendtesting.WantError(t, err, backend.Interrupted, false)
		}
	}
	backendtesting.Await(t, "the connections", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 2 && extra == 0 })
	if stats := server.Stats(t); stats["evalsha"] != 0 {
		t.Errorf("overdue calls reached the server: %v", stats)
	}
}

// overdue is a context whose deadline is over but whose timer hasn't fired yet.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// TestPipelinerBounded: when the queue is full, the next call fails at once.
func TestPipelinerBounded(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{Queue: 4})
	g.hold()
	for range 4 {
		g.queue(func() {
			if _, err := g.Take(context.Background(), backendtesting.Request(backendtesting.Secret)); err != nil {
				t.Errorf("a call that had a place: %v", err)
			}
		})
	}
	for name, call := range map[string]func() error{
		"take": func() error {
			_, err := g.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
			return err
		},
		"cancel": func() error { _, err := g.Take(t.Context(), backendtesting.Request(backendtesting.Secret)); return err },
		"refund": func() error {
			return g.Refund(context.Background(), backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), 1)
		},
		"reset": func() error { return g.Reset(context.Background(), backendtesting.Request(backendtesting.Secret)) },
	} {
		begin := time.Now()
		err := call()
		if took := time.Since(begin); took > backendtesting.Patient/10 {
			t.Errorf("%s: there was no place, and it took %s to say so", name, took)
		}
		backendtesting.WantError(t, err, backend.Unavailable, false)
		if !errors.Is(err, backend.ErrOverloaded) {
			t.Errorf("%s: got %v, want ErrOverloaded in it", name, err)
		}
	}
	g.release()
	backendtesting.MustTake(t, g, backendtesting.Request(backendtesting.Secret))
	if n := backendtesting.Used(t, g.server, backendtesting.Secret); n != 5 {
		t.Errorf("5 takes were counted %d times", n)
	}
}

// TestPipelinerStalled: a connection that hangs holds up others until another one is open, and that one
// is closed again.
func TestPipelinerStalled(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	const timeout = 20 * time.Second
	b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: proxy.Addr}, redisbackend.Config{Timeout: timeout, Pipelines: 1})
	backendtesting.MustTake(t, b, backendtesting.Request("warm"))
	var n atomic.Int64
	hung := make(chan struct{})
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" && n.Add(1) == 1 {
			close(hung)
			return testserver.HangAfter
		}
		return testserver.Pass
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := b.Take(context.Background(), backendtesting.Request("hung"))
		backendtesting.WantError(t, err, backend.Unavailable, true)
	})
	<-hung
	var took []time.Duration
	var mu sync.Mutex // guards took
	for range 4 {
		wg.Go(func() {
			for range 5 {
				begin := time.Now()
				backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	backendtesting.Await(t, "those who go on", func() bool { mu.Lock(); defer mu.Unlock(); return len(took) == 20 })
	slices.Sort(took)
	if took[5] > timeout/10 || took[19] > timeout/4 { // 10 ms and a new connection; the rest is for a busy machine
		t.Errorf("beside a connection that hangs, takes took up to %s, a quarter of them up to %s", took[19], took[5])
	}
	backendtesting.Await(t, "the extra connections to close", func() bool { _, free, extra := b.Waiting(); return free == 0 && extra == 0 })
	proxy.SetFault(nil)
	proxy.Cut() // ends what hangs
	proxy.Heal()
	wg.Wait()
	backendtesting.Await(t, "the connection", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 1 && extra == 0 })
	if n := backendtesting.Used(t, server, backendtesting.Secret); n != 20 {
		t.Errorf("20 takes were counted %d times", n)
	}
}

// TestPipelinerExtra: connections that were opened because others stalled are bounded by the pool, and all are closed again.
func TestPipelinerExtra(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: proxy.Addr, PoolSize: 6}, redisbackend.Config{Pipelines: 2})
	backendtesting.MustTake(t, b, backendtesting.Request("warm"))
	gate := make(chan struct{})
	var arrived atomic.Int64
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" {
			arrived.Add(1)
			<-gate
		}
		return testserver.Pass
	})
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() { backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)) })
		backendtesting.Await(t, "a connection or the queue", func() bool { // each call that finds a connection gets it to itself
			queued, _, extra := b.Waiting()
			return arrived.Load() == int64(min(i+1, 4)) && queued == max(i-3, 0) && extra == min(max(i-1, 0), 2)
		})
	}
	close(gate)
	wg.Wait()
	backendtesting.Await(t, "the connections", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 2 && extra == 0 })
	if n := backendtesting.Used(t, server, backendtesting.Secret); n != 6 {
		t.Errorf("6 takes were counted %d times", n)
	}
}

// TestPipelinerLostReplies: what is lost of a batch is reported, and no call counts twice.
func TestPipelinerLostReplies(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]testserver.Action{
		"close before": testserver.CloseBefore, "close after": testserver.CloseAfter, "truncate": testserver.Truncate,
		"hang after": testserver.HangAfter, "hang before": testserver.HangBefore,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, redisbackend.Config{Timeout: 5 * time.Second}) // long enough to queue on a busy machine
			policies := []*limit.Policy{
				backendtesting.Hourly, {Name: "p", Limits: []limit.Limit{limit.Fixed(1000, time.Hour)}}, {Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Hour)}},
			}
			g.hold()
			passed := make([]error, 30)
			for i := range passed {
				g.queue(func() {
					req := backendtesting.Request(fmt.Sprint("k", i))
					req.Policy = policies[i%3]
					_, passed[i] = g.Take(context.Background(), req)
				})
			}
			var scripts atomic.Int64
			g.proxy.SetFault(func(args []string) testserver.Action {
				if args[0] == "EVALSHA" && scripts.Add(1) == 2 {
					return action
				}
				return testserver.Pass
			})
			close(g.gate)
			g.wg.Wait()
			if n := scripts.Load(); n > 3 {
				t.Errorf("%d script calls, want 3 at most: something was sent again", n)
			}
			for i, err := range passed {
				n := backendtesting.Used(t, g.server, fmt.Sprint("k", i))
				switch {
				case i%3 > 0 || err != nil && strings.HasPrefix(name, "hang"): // all of a pipeline have come back, or none
					backendtesting.WantError(t, err, backend.Unavailable, true)
				case err != nil || n != 1:
					t.Errorf("a reply that was not lost: %v, counted %d times", err, n)
				}
				if n > 1 {
					t.Errorf("a take was counted %d times", n)
				}
			}
			backendtesting.MustTake(t, g, backendtesting.Request("afterwards"))
		})
	}
}

// TestPipelinerChaos: callers who cancel at any moment, replies that are late or lost. What is stored lies between what was
// admitted and what may have been.
func TestPipelinerChaos(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedis(t, proxy.Addr, redisbackend.Config{Timeout: 200 * time.Millisecond})
	backendtesting.MustTake(t, b, backendtesting.Request("warm"))
	proxy.SetFault(func(args []string) testserver.Action {
		switch n := rand.IntN(200); {
		case args[0] != "EVALSHA":
		case n == 0:
			return testserver.CloseAfter
		case n == 1:
			return testserver.CloseBefore
		case n == 2:
			return testserver.HangAfter
		case n < 40:
			return testserver.Delay(time.Duration(n) * 50 * time.Microsecond)
		}
		return testserver.Pass
	})
	const callers, takes, keys = 64, 50, 3
	var admitted, unknown [keys]atomic.Int64
	var kinds [8]atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range takes {
				ctx, cancel := context.Background(), func() {}
				span := time.Duration(rand.IntN(4000)) * time.Microsecond
				switch rand.IntN(3) {
				case 0:
					ctx, cancel = context.WithTimeout(ctx, span)
				case 1:
					ctx, cancel = context.WithCancel(ctx)
					time.AfterFunc(span, cancel)
				}
				key := rand.IntN(keys)
				_, err := b.Take(ctx, backendtesting.Request(fmt.Sprint("k", key)))
				cancel()
				var failed *backend.Error
				switch {
				case err == nil:
					admitted[key].Add(1)
				case err == ctx.Err(): // it had ended before the call began
				case !errors.As(err, &failed):
					t.Errorf("take: %v", err)
				default:
					kinds[failed.Kind].Add(1)
					if failed.MayHaveCharged {
						unknown[key].Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	proxy.SetFault(nil)
	proxy.Cut()
	proxy.Heal()
	for key := range keys {
		a, u, n := admitted[key].Load(), unknown[key].Load(), backendtesting.Used(t, server, fmt.Sprint("k", key))
		if a > n || n > a+u || a == 0 || u == 0 {
			t.Errorf("%d takes were admitted, %d may have been, %d are stored", a, u, n)
		}
	}
	for kind := range kinds {
		if k := backend.Kind(kind); kinds[kind].Load() > 0 && k != backend.Unavailable && k != backend.Interrupted {
			t.Errorf("%d calls were %s", kinds[kind].Load(), k)
		}
	}
	backendtesting.Await(t, "the connections", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 2 && extra == 0 })
}

// TestPipelinerClose: calls that run or wait end, and later ones are refused.
func TestPipelinerClose(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		const timeout = 5 * time.Second // long enough to queue on a busy machine
		cfg := redisbackend.Config{}
		if !answers {
			cfg.Timeout = timeout
		}
		g := newRig(t, cfg)
		g.hold()
		for i := range 20 {
			g.queue(func() {
				ctx := context.Background()
				if i%2 == 0 {
					ctx = t.Context()
				}
				_, err := g.Take(ctx, backendtesting.Request(backendtesting.Secret))
				if answers && err != nil {
					t.Errorf("a call that waited when the backend was closed: %v", err)
				} else if failed := (*backend.Error)(nil); !answers && !errors.As(err, &failed) {
					t.Errorf("a call that waited in vain: %v", err)
				}
			})
		}
		closed := make(chan error, 1)
		begin := time.Now()
		go func() { closed <- g.Close() }()
		backendtesting.Await(t, "the refusal", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			_, err := g.Take(ctx, backendtesting.Request(backendtesting.Secret))
			if err == nil {
				t.Error("a call passed the connection that is held")
			}
			return errors.Is(err, backend.ErrClosed)
		})
		if answers {
			select {
			case err := <-closed:
				t.Errorf("Close returned %v while calls were under way", err)
			default:
			}
			close(g.gate)
		}
		if err := <-closed; err != nil {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(begin); !answers && took > timeout+backendtesting.Patient/10 {
			t.Errorf("Close took %s", took)
		}
		g.wg.Wait()
		if queued, free, extra := g.Waiting(); queued != 0 || free != 1 || extra != 0 {
			t.Errorf("after Close %d wait, %d connections are free, %d extra", queued, free, extra)
		}
		if _, err := g.Take(context.Background(), backendtesting.Request(backendtesting.Secret)); !errors.Is(err, backend.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	}
}
