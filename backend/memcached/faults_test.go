//go:build unix

package memcached_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit/state"
)

// promptly asks that the slowest call of a round, in the time that round returns, keeps the bound, but for what a busy machine
// may add.
func promptly(t *testing.T, bound time.Duration, round func() time.Duration) {
	t.Helper()
	if took := round(); took > bound+backendtesting.Patient/10 {
		t.Errorf("calls took up to %s, want %s", took, bound)
	}
}

// takeAll takes for n keys at once, by a goroutine each.
func takeAll(b *memcached.Memcached, n int) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = b.Take(context.Background(), backendtesting.Request(strconv.Itoa(i))) })
	}
	wg.Wait()
	return errs
}

// idle makes n connections that are open and not in use.
func idle(t *testing.T, proxy *memcachedProxy, b *memcached.Memcached, n int) {
	t.Helper()
	var together sync.WaitGroup
	together.Add(n)
	var reads atomic.Int64
	proxy.set(func(verb string) fate {
		if verb == "gets" && reads.Add(1) <= int64(n) {
			together.Done()
			together.Wait()
		}
		return handOn
	})
	if err := errors.Join(takeAll(b, n)...); err != nil {
		t.Fatal(err)
	}
	if open := proxy.open.Load(); open != int64(n) {
		t.Fatalf("%d calls left %d connections", n, open)
	}
}

// TestMemcachedDead: a server that is gone is told at once, and nothing was charged.
func TestMemcachedDead(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	const timeout = 5 * time.Second
	b := backendtesting.OpenMemcached(t, memcached.Config{Timeout: timeout}, server.Addr)
	for _, err := range takeAll(b, 8) {
		if err != nil {
			t.Fatal(err)
		}
	}
	server.Kill()
	for range 2 {
		begin := time.Now()
		backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(op string, _ bool, err error) {
			if err == nil {
				t.Errorf("%s succeeds at nobody", op)
				return
			}
			backendtesting.WantError(t, err, backend.Unavailable, false)
			if took := time.Since(begin); took > timeout/2 {
				t.Errorf("%s takes %s to fail", op, took)
			}
			begin = time.Now()
		})
	}
	for _, err := range takeAll(b, 32) {
		backendtesting.WantError(t, err, backend.Unavailable, false)
	}
	server.Restart()
	if r := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)); r.Binding().Remaining != 1_000_000-1 {
		t.Errorf("the first take at a new server leaves %d", r.Binding().Remaining)
	}
}

// TestMemcachedRestart: connections that died while nobody used them cost no call.
func TestMemcachedRestart(t *testing.T) {
	t.Parallel()
	type config = memcached.Config
	take := func(b *memcached.Memcached) error {
		_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
		return err
	}
	for name, c := range map[string]struct {
		cfg  config
		call func(*memcached.Memcached) error
	}{
		"take":      {config{}, take},
		"one try":   {config{Tries: 1}, take},
		"many idle": {config{IdleConns: 64}, take},
		"peek": {config{}, func(b *memcached.Memcached) error {
			_, err := b.Peek(context.Background(), backendtesting.Request(backendtesting.Secret))
			return err
		}},
		"load": {config{}, func(b *memcached.Memcached) error {
			_, err := b.Load(context.Background(), backendtesting.Request(backendtesting.Secret))
			return err
		}},
		"ping":    {config{}, func(b *memcached.Memcached) error { return b.Ping(context.Background()) }},
		"at once": {config{}, func(b *memcached.Memcached) error { return errors.Join(takeAll(b, 64)...) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Memcached(t)
			proxy := newMemcachedProxy(t, server.Addr)
			b := backendtesting.OpenMemcached(t, c.cfg, proxy.addr)
			if c.cfg.IdleConns == 0 {
				c.cfg.IdleConns = 16
			}
			idle(t, proxy, b, c.cfg.IdleConns)
			server.Restart()
			if err := c.call(b); err != nil {
				t.Errorf("the first call after a restart: %v", err)
			}
			if errs := errors.Join(takeAll(b, 8)...); errs != nil {
				t.Errorf("the next calls: %v", errs)
			}
		})
	}
}

// TestMemcachedFrozen: calls to a frozen server end by the caller's deadline or the timeout, and after the thaw each
// counts once at most.
func TestMemcachedFrozen(t *testing.T) {
	t.Parallel()
	const bound = 50 * time.Millisecond
	for name, c := range map[string]struct {
		timeout time.Duration // of the backend
		context func() (context.Context, context.CancelFunc)
		want    backend.Kind
	}{
		"deadline": {backendtesting.Patient, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), bound)
		}, backend.Interrupted},
		"timeout": {bound, func() (context.Context, context.CancelFunc) {
			return context.Background(), func() {}
		}, backend.Unavailable},
		"timeout, cancellable": {bound, func() (context.Context, context.CancelFunc) {
			return context.WithCancel(context.Background())
		}, backend.Unavailable},
		"timeout, late deadline": {bound, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), backendtesting.Patient)
		}, backend.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Memcached(t)
			b := backendtesting.OpenMemcached(t, memcached.Config{Timeout: c.timeout}, server.Addr)
			const callers = 32
			var admitted, unknown [callers]int64
			promptly(t, bound, func() time.Duration {
				var slowest atomic.Int64
				var started, wg sync.WaitGroup
				started.Add(callers)
				for i := range callers {
					wg.Go(func() {
						// Others are at work when the server freezes, with a reply still to come.
						frozen := false
						for first := true; !frozen; first = false {
							ctx, cancel := c.context()
							begin := time.Now()
							_, err := b.Take(ctx, backendtesting.Request(strconv.Itoa(i)))
							took := time.Since(begin)
							cancel()
							if first {
								started.Done()
							}
							if err == nil {
								admitted[i]++
								continue
							}
							frozen = true
							for most := slowest.Load(); int64(took) > most && !slowest.CompareAndSwap(most, int64(took)); most = slowest.Load() {
							}
							var failed *backend.Error
							if !errors.As(err, &failed) || failed.Kind != c.want {
								t.Errorf("a frozen server: %v, want %s", err, c.want)
							} else if failed.MayHaveCharged {
								unknown[i]++
							}
							if c.want == backend.Interrupted && !errors.Is(err, context.DeadlineExceeded) {
								t.Errorf("got %v, want the context's own error in it", err)
							}
						}
					})
				}
				started.Wait()
				server.Pause()
				wg.Wait()
				server.Resume()
				return time.Duration(slowest.Load())
			})
			if err := b.Close(); err != nil { // with what was abandoned
				t.Error(err)
			}
			for i := range callers {
				used := backendtesting.MemcachedUsed(t, server.Addr, strconv.Itoa(i))
				if used < admitted[i] || used > admitted[i]+unknown[i] {
					t.Errorf("%d calls were admitted and %d may have been: %d are counted", admitted[i], unknown[i], used)
				}
			}
		})
	}
}

// awaitedContext tells when its end is awaited.
type awaitedContext struct {
	context.Context
	awaited chan struct{}
}

func (c awaitedContext) Done() <-chan struct{} {
	select {
	case c.awaited <- struct{}{}:
	default:
	}
	return c.Context.Done()
}

// TestMemcachedCancellation: who cancels returns at once, though the client goes on waiting.
func TestMemcachedCancellation(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	b := backendtesting.OpenMemcached(t, memcached.Config{}, server.Addr)
	first := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	server.Pause()
	backendtesting.Await(t, "a server that stands still", func() bool { // a stop takes a moment to reach all threads
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		return b.Ping(ctx) != nil
	})
	for op, c := range map[string]struct {
		charges bool
		call    func(context.Context) error
	}{
		"take": {true, func(ctx context.Context) error {
			_, err := b.Take(ctx, backendtesting.Request(backendtesting.Secret))
			return err
		}},
		"peek": {false, func(ctx context.Context) error {
			_, err := b.Peek(ctx, backendtesting.Request(backendtesting.Secret))
			return err
		}},
		"load": {false, func(ctx context.Context) error {
			_, err := b.Load(ctx, backendtesting.Request(backendtesting.Secret))
			return err
		}},
		"seed": {true, func(ctx context.Context) error {
			return b.Seed(ctx, backendtesting.Request(backendtesting.Secret), state.State{})
		}},
		"refund": {true, func(ctx context.Context) error {
			return b.Refund(ctx, backendtesting.Request(backendtesting.Secret), first.Receipt(), 1)
		}},
		"reset": {true, func(ctx context.Context) error { return b.Reset(ctx, backendtesting.Request(backendtesting.Secret)) }},
		"ping":  {false, func(ctx context.Context) error { return b.Ping(ctx) }},
	} {
		promptly(t, 0, func() time.Duration {
			canceled, cancel := context.WithCancel(context.Background())
			ctx := awaitedContext{canceled, make(chan struct{}, 1)}
			done := make(chan error, 1)
			go func() { done <- c.call(ctx) }()
			<-ctx.awaited                       // the call has begun
			<-time.After(10 * time.Millisecond) // and waits for the server, most likely
			begin := time.Now()
			cancel()
			err := <-done
			took := time.Since(begin)
			var failed *backend.Error
			if !errors.As(err, &failed) || failed.Kind != backend.Interrupted || failed.Op != op && op != "peek" ||
				failed.MayHaveCharged && !c.charges || !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want it cancelled", op, err)
			}
			return took
		})
	}
	server.Resume()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if used := backendtesting.MemcachedUsed(t, server.Addr, backendtesting.Secret); used != 1 {
		t.Errorf("calls that were cancelled before they wrote changed 1 to %d", used)
	}
}

// TestMemcachedLostReplies: a proxy loses the reply of every third write.
func TestMemcachedLostReplies(t *testing.T) {
	t.Parallel()
	const callers, takes = 4, 30
	for name, c := range map[string]struct {
		fate fate
		cfg  memcached.Config
		keys int // 1: callers meet at one key, and lose replies that say that others were faster
	}{
		"closed":           {lose, memcached.Config{}, callers},
		"closed, one key":  {lose, memcached.Config{}, 1},
		"silence":          {swallow, memcached.Config{Timeout: 20 * time.Millisecond}, callers},
		"silence, one key": {swallow, memcached.Config{Timeout: 20 * time.Millisecond}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Memcached(t)
			proxy := newMemcachedProxy(t, server.Addr)
			b := backendtesting.OpenMemcached(t, c.cfg, proxy.addr)
			var writes, lost atomic.Int64
			proxy.set(func(verb string) fate {
				if verb != "gets" && writes.Add(1)%3 == 0 {
					lost.Add(1)
					return c.fate
				}
				return handOn
			})
			var admitted, unknown, refused atomic.Int64
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for range takes {
						_, err := b.Take(context.Background(), backendtesting.Request(strconv.Itoa(i%c.keys)))
						var failed *backend.Error
						switch {
						case err == nil:
							admitted.Add(1)
						case isContended(err):
							refused.Add(1)
						case !errors.As(err, &failed) || failed.Kind != backend.Unavailable:
							t.Errorf("a lost reply: %v", err)
						case failed.MayHaveCharged:
							unknown.Add(1)
						default:
							refused.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if err := b.Close(); err != nil { // with what was abandoned
				t.Error(err)
			}
			var used int64
			for i := range c.keys {
				used += backendtesting.MemcachedUsed(t, server.Addr, strconv.Itoa(i))
			}
			if lost.Load() == 0 || unknown.Load() < lost.Load() {
				t.Errorf("of %d lost replies only %d calls say so", lost.Load(), unknown.Load())
			}
			if used < admitted.Load() || used > admitted.Load()+unknown.Load() || used > callers*takes {
				t.Errorf("%d calls were admitted and %d may have been, of %d: %d are counted", admitted.Load(), unknown.Load(), callers*takes, used)
			}
			if c.fate == lose && c.keys == callers && (unknown.Load() != lost.Load() || used != callers*takes) {
				t.Errorf("%d calls were counted %d times, %d are unknown for %d lost replies", callers*takes, used, unknown.Load(), lost.Load())
			}
		})
	}
}

// TestMemcachedLostReads: a reply lost to a call that only read costs nothing, it reads again.
func TestMemcachedLostReads(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	proxy := newMemcachedProxy(t, server.Addr)
	b := backendtesting.OpenMemcached(t, memcached.Config{}, proxy.addr)
	var reads atomic.Int64
	proxy.set(func(verb string) fate {
		if verb == "gets" && reads.Add(1)%3 == 0 {
			return lose
		}
		return handOn
	})
	const takes = 30
	for i := range int64(takes) {
		if r := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)); r.Binding().Remaining != 1_000_000-i-1 {
			t.Errorf("take %d leaves %d", i, r.Binding().Remaining)
		}
	}
	if used := backendtesting.MemcachedUsed(t, server.Addr, backendtesting.Secret); used != takes {
		t.Errorf("%d takes were counted %d times", takes, used)
	}
}

// TestMemcachedNoRoom: a server that is full and may not evict says so, and has charged nothing.
func TestMemcachedNoRoom(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t, "-m", "1", "-I", "512k", "-n", "1024", "-M")
	b := backendtesting.OpenMemcached(t, memcached.Config{}, server.Addr)
	backendtesting.MustTake(t, b, backendtesting.Request("before"))
	var fillers strings.Builder
	for i := range 3000 {
		fillers.WriteString("set filler-" + strconv.Itoa(i) + " 0 3600 1 noreply\r\nx\r\n")
	}
	backendtesting.AskMemcached(t, server.Addr, fillers.String()+"version")
	_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Misconfigured, false)
	_, err = b.Take(context.Background(), backendtesting.Request("before")) // also where it only replaces
	backendtesting.WantError(t, err, backend.Misconfigured, false)
	if used := backendtesting.MemcachedUsed(t, server.Addr, "before"); used != 1 {
		t.Errorf("what was counted before is %d now, was 1", used)
	}
	if used := backendtesting.MemcachedUsed(t, server.Addr, backendtesting.Secret); used != 0 {
		t.Errorf("a refused take was counted %d times", used)
	}
}

// TestMemcachedWithoutCAS: a server started with -C can't swap. Nobody is faster, no try will succeed.
func TestMemcachedWithoutCAS(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t, "-C")
	b := backendtesting.OpenMemcached(t, memcached.Config{}, server.Addr)
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
	_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
	backendtesting.WantError(t, err, backend.Misconfigured, false)
	if used := backendtesting.MemcachedUsed(t, server.Addr, backendtesting.Secret); used != 1 {
		t.Errorf("1 take was counted %d times", used)
	}
}

// TestMemcachedForeignReplies: what is no reply of Memcached is no verdict, and errors don't quote keys from it.
func TestMemcachedForeignReplies(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	for _, c := range []struct {
		reply   string
		charged bool // whether a write that is answered so may have charged
		read    bool // whether it is no reply to a read, either
	}{
		{"ERROR\r\n", true, true},
		{"CLIENT_ERROR " + backendtesting.Secret + "\r\n", true, true},
		{"VALUE " + backendtesting.Stored(backendtesting.Secret) + " 0 1\r\n", true, false},
		{"END\r\n", true, false},
		{"HTTP/1.1 400 Bad " + backendtesting.Secret + "\r\n", true, true},
		{strings.Repeat(backendtesting.Secret, 1<<13) + "\r\n", true, true},
		{"SERVER_ERROR reply timeout\r\n", true, true}, // a proxy such as mcrouter, of a server that may have stored it
		{"SERVER_ERROR out of memory storing object\r\n", false, true},
		{"SERVER_ERROR object too large for cache\r\n", false, true},
	} {
		for _, verb := range []string{"gets", "add"} {
			if verb == "gets" && !c.read {
				continue
			}
			proxy := newMemcachedProxy(t, server.Addr)
			proxy.text = c.reply
			b := backendtesting.OpenMemcached(t, memcached.Config{Prefix: backendtesting.NewPrefix()}, proxy.addr)
			proxy.set(func(v string) fate {
				if v == verb {
					return forge
				}
				return handOn
			})
			_, err := b.Take(context.Background(), backendtesting.Request(backendtesting.Secret))
			var failed *backend.Error
			if !errors.As(err, &failed) || failed.Kind != backend.Unavailable && failed.Kind != backend.Misconfigured {
				t.Errorf("%s answered %.60q: %v, want a *backend.Error", verb, c.reply, err)
				continue
			}
			if want := c.charged && verb == "add"; failed.MayHaveCharged != want {
				t.Errorf("%s answered %.60q: may have charged: %t, want %t", verb, c.reply, failed.MayHaveCharged, want)
			}
			if strings.Contains(err.Error(), backendtesting.Secret) {
				t.Errorf("%s answered %.60q: the error names the key: %.200s", verb, c.reply, err)
			}
		}
	}
}

// TestMemcachedContendedForLong: who meets others for all of its time says so while it still can, rather than that the
// server is too slow.
func TestMemcachedContendedForLong(t *testing.T) {
	t.Parallel()
	proxy := newMemcachedProxy(t, testserver.Memcached(t).Addr)
	proxy.text = "NOT_STORED\r\n" // others were faster
	proxy.set(func(verb string) fate {
		if verb == "add" {
			return forge
		}
		return handOn
	})
	for name, timeouts := range map[string][2]time.Duration{ // of the backend and of the caller
		"its own time": {200 * time.Millisecond, backendtesting.Patient}, "the caller's time": {backendtesting.Patient, 200 * time.Millisecond},
	} {
		b := backendtesting.OpenMemcached(t, memcached.Config{Tries: 1 << 20, Timeout: timeouts[0]}, proxy.addr)
		var err error
		for range 20 { // on a busy machine the last quarter may pass in one step
			ctx, cancel := context.WithTimeout(t.Context(), timeouts[1])
			_, err = b.Take(ctx, backendtesting.Request(backendtesting.Secret))
			cancel()
			if isContended(err) {
				break
			}
		}
		if !isContended(err) {
			t.Errorf("%s: %v, want to hear of contention", name, err)
		}
	}
}

// TestMemcachedPingsAllAtOnce: one frozen server doesn't hide the others, and Close doesn't wait for one after another.
func TestMemcachedPingsAllAtOnce(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	var addrs []string
	for range 8 {
		listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its backlog, and never answers
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		addrs = append(addrs, listener.Addr().String())
	}
	promptly(t, 2*timeout, func() time.Duration { // what Close promises
		b := backendtesting.OpenMemcached(t, memcached.Config{Timeout: timeout}, addrs...)
		begin := time.Now()
		backendtesting.WantError(t, b.Ping(context.Background()), backend.Unavailable, false)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		return time.Since(begin)
	})
}

// TestMemcachedCloseWaits: calls under way get their reply, and Close comes after them.
func TestMemcachedCloseWaits(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	proxy := newMemcachedProxy(t, server.Addr)
	b := backendtesting.OpenMemcached(t, memcached.Config{}, proxy.addr)
	called, release := make(chan struct{}), make(chan struct{})
	proxy.set(func(verb string) fate {
		if verb == "add" {
			called <- struct{}{}
			<-release
		}
		return handOn
	})
	const callers = 8
	var answered atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			if _, err := b.Take(context.Background(), backendtesting.Request(strconv.Itoa(i))); err != nil {
				t.Errorf("the call under way: %v", err)
			}
			answered.Add(1)
		})
	}
	abandoned, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		if _, err := b.Take(abandoned, backendtesting.Request("abandoned")); !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled call: %v", err)
		}
	})
	for range callers + 1 {
		<-called
	}
	cancel() // its caller goes, the call has still to end
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	backendtesting.Await(t, "a backend that refuses calls", func() bool {
		return errors.Is(b.Ping(context.Background()), backend.ErrClosed)
	})
	backendtesting.Each(b, backendtesting.Request(backendtesting.Secret), backendtesting.Receipt(t), func(op string, _ bool, err error) {
		if !errors.Is(err, backend.ErrClosed) {
			t.Errorf("%s after Close: %v", op, err)
		}
	})
	select {
	case err := <-closed:
		closed <- err
		t.Errorf("Close returned %v before the calls did", err)
	case <-time.After(30 * time.Millisecond):
	}
	if n := answered.Load(); n > 0 {
		t.Errorf("%d calls were answered early", n)
	}
	close(release)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	wg.Wait()
	if n := backendtesting.MemcachedStat(t, server.Addr, "curr_items"); n != callers+1 {
		t.Errorf("%d calls left %d items", callers+1, n)
	}
	backendtesting.Await(t, "the end of the idle connections", func() bool { return proxy.open.Load() == 0 })
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// fate is what a memcachedProxy does to a command.
type fate int

const (
	handOn  fate = iota // and the reply back
	lose                // execute it, lose the reply, close the connection
	swallow             // execute it, and never answer
	forge               // don't execute it: answer with memcachedProxy.text
)

// memcachedProxy stands before a Memcached server. It knows as much of the text protocol as gomemcache speaks.
type memcachedProxy struct {
	addr        string
	text        string       // what forge answers; set before any call
	conns, open atomic.Int64 // connections so far, and now
	fault       atomic.Pointer[func(verb string) fate]
}

// set sets what happens to commands from now on. fault may block, and its command waits.
func (p *memcachedProxy) set(fault func(verb string) fate) { p.fault.Store(&fault) }

func newMemcachedProxy(t testing.TB, target string) *memcachedProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &memcachedProxy{addr: listener.Addr().String()}
	p.set(func(string) fate { return handOn })
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); _ = listener.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.conns.Add(1)
			p.open.Add(1)
			wg.Go(func() {
				defer p.open.Add(-1)
				defer client.Close()
				server, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer server.Close()
				defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = server.Close() })()
				in, out := bufio.NewReader(client), bufio.NewReader(server)
				for p.serve(client, server, in, out) {
				}
			})
		}
	})
	return p
}

// serve passes one command, and reports whether the connection goes on.
func (p *memcachedProxy) serve(client, server net.Conn, in, out *bufio.Reader) bool {
	line, err := in.ReadString('\n')
	if err != nil {
		return false
	}
	fields := strings.Fields(line)
	command := []byte(line)
	if fields[0] == "add" || fields[0] == "cas" {
		if command, err = appendBlock(command, in, fields[4]); err != nil {
			return false
		}
	}
	fate := (*p.fault.Load())(fields[0])
	if fate == forge {
		_, err := io.WriteString(client, p.text)
		return err == nil
	}
	if _, err := server.Write(command); err != nil {
		return false
	}
	var reply []byte
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			return false
		}
		reply = append(reply, line...)
		if !strings.HasPrefix(line, "VALUE ") {
			break
		}
		if reply, err = appendBlock(reply, out, strings.Fields(line)[3]); err != nil {
			return false
		}
	}
	switch fate {
	case lose:
		return false
	case swallow:
		_, _ = io.Copy(io.Discard, in) // until the client leaves
		return false
	}
	_, err = client.Write(reply)
	return err == nil
}

// appendBlock appends a data block and the line's end after it.
func appendBlock(b []byte, in io.Reader, size string) ([]byte, error) {
	n, err := strconv.Atoi(size)
	if err != nil {
		return nil, err
	}
	block := make([]byte, n+2)
	_, err = io.ReadFull(in, block)
	return append(b, block...), err
}
