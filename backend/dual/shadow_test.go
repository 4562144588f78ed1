//go:build unix

package dual_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// shadowed is a Dual that decides on the old side of a stage and asks the new one, too.
func (s *stage) shadowed(t testing.TB, cfg dual.Config) *dual.Dual {
	t.Helper()
	cfg.Old, cfg.New, cfg.Decide = s.old, s.new, backendtesting.Constant(false)
	if cfg.Shadow == nil {
		cfg.Shadow = always
	}
	return backendtesting.NewDual(t, cfg)
}

// answered is how many shadow calls came to an end.
func answered(d *dual.Dual) int64 {
	s := d.Stats().Shadow
	return s.Agreed + s.Denied + s.Allowed + s.Remaining + s.Failed
}

// awaitShadows waits until n shadow calls have ended.
func awaitShadows(t testing.TB, d *dual.Dual, n int64) {
	t.Helper()
	backendtesting.Await(t, fmt.Sprintf("%d shadow calls", n), func() bool { return answered(d) >= n })
	if got := answered(d); got != n {
		t.Errorf("%d shadow calls, want %d", got, n)
	}
}

// holding makes the other side believe that a limit holds so much.
func holding(max int64) fault {
	return func(_ context.Context, _ string, req *backend.Request) error {
		l := req.Policy.Limits[0]
		l.Max = max
		req.Policy = &limit.Policy{Name: req.Policy.Name, Limits: []limit.Limit{l}}
		return nil
	}
}

// TestDualShadow: every kind of answer is counted as that, and no answer changes a decision.
func TestDualShadow(t *testing.T) {
	type stats = dual.ShadowStats
	for name, c := range map[string]struct {
		fault fault
		want  stats // of 12 takes where 10 pass
	}{
		"the same":    {nil, stats{Agreed: 12}},
		"wider":       {holding(15), stats{Remaining: 10, Allowed: 2}},
		"narrower":    {holding(4), stats{Remaining: 4, Denied: 6, Agreed: 2}},
		"no verdict":  {gone, stats{Failed: 12}},
		"interrupted": {func(context.Context, string, *backend.Request) error { return context.DeadlineExceeded }, stats{Failed: 12}},
	} {
		s, alone := newStage(t), newStage(t)
		s.new.set(c.fault)
		d := s.shadowed(t, dual.Config{Shadow: func(key string) bool { return key == "k" }})
		plain := backendtesting.NewDual(t, dual.Config{Old: alone.old, New: alone.new, Decide: backendtesting.Constant(false)})
		for i := range int64(12) {
			got, want := backendtesting.MustTake(t, d, takeTen("k")), backendtesting.MustTake(t, plain, takeTen("k"))
			if got.Allowed != want.Allowed || got.Binding() != want.Binding() || got.Guarantee != want.Guarantee || got.Cause != nil || got.Source != want.Source {
				t.Errorf("%s, take %d: %+v, want %+v", name, i, got, want)
			}
			backendtesting.MustTake(t, d, takeTen("not asked"))
			awaitShadows(t, d, i+1)
		}
		got := d.Stats()
		if got.Shadow != c.want {
			t.Errorf("%s: %+v, want %+v", name, got.Shadow, c.want)
		}
		if got.Old != 24 || got.New != 0 {
			t.Errorf("%s: shadow calls are counted as decisions: %+v", name, got)
		}
		if r := backendtesting.MustTake(t, s.new.Memory, takeTen("k")); r.Binding().Remaining != 9 {
			t.Errorf("%s: shadow calls were counted where real ones are: %d left", name, r.Binding().Remaining)
		}
	}
}

// TestDualShadowFollows: with counts carried over, the shadow asks the side that did not decide, outside of any move.
func TestDualShadowFollows(t *testing.T) {
	s, l := newStage(t), &lever{}
	d := s.process(t, l, dual.Config{Shadow: always})
	asks := func(want string) {
		t.Helper()
		before := answered(d)
		backendtesting.MustTake(t, d, takeTen("k"))
		awaitShadows(t, d, before+1)
		if got := s.read(); got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
	asks("old take 2 ask, new seal 2, old take 2 adopt, new take")
	l.set(1, true)
	asks("new take 5 ask, old seal 5, new take 5 adopt, old take")
	s.new.set(gone)
	if _, err := d.Take(context.Background(), takeTen("k")); err == nil {
		t.Error("a side that is gone decides")
	}
	if got := s.read(); got != "new take 5 ask" {
		t.Errorf("no decision, but a shadow: %s", got)
	}
}

// TestDualShadowQueue: the defaults, and what happens beyond them.
func TestDualShadowQueue(t *testing.T) {
	for _, c := range []struct{ queue, workers, wantQueue, wantWorkers int64 }{{0, 0, 1024, 4}, {3, 2, 3, 2}} {
		s := newStage(t)
		var waiting, ended atomic.Int64
		s.new.set(func(ctx context.Context, _ string, _ *backend.Request) error {
			waiting.Add(1)
			<-ctx.Done()
			<-time.After(5 * time.Millisecond)
			ended.Add(1)
			return ctx.Err()
		})
		d := s.shadowed(t, dual.Config{ShadowQueue: int(c.queue), ShadowWorkers: int(c.workers)})
		for i := range c.wantWorkers {
			backendtesting.MustTake(t, d, takeTen("k"))
			backendtesting.Await(t, "a worker", func() bool { return waiting.Load() == i+1 })
		}
		const more = 2000
		for range more {
			backendtesting.MustTake(t, d, takeTen("k"))
		}
		if n := d.Stats().Shadow.Dropped; n != more-c.wantQueue {
			t.Errorf("%d of %d were dropped, want %d", n, more, more-c.wantQueue)
		}
		if n := waiting.Load(); n != c.wantWorkers {
			t.Errorf("%d calls are under way, want %d", n, c.wantWorkers)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if n := waiting.Load(); n > c.wantWorkers+100 { // a worker may take one or another before it notices
			t.Errorf("Close made %d calls more", n-c.wantWorkers)
		}
		if a, b := waiting.Load(), ended.Load(); a != b {
			t.Errorf("Close left %d calls under way", a-b)
		}
	}
}

// TestDualShadowPolicy: the caller's policy is the caller's own after the take. The race detector looks on.
func TestDualShadowPolicy(t *testing.T) {
	s := newStage(t)
	begun, release := make(chan struct{}, 3), make(chan struct{})
	seen := make(chan limit.Policy, 3)
	s.new.set(func(_ context.Context, _ string, req *backend.Request) error {
		begun <- struct{}{}
		<-release
		seen <- *req.Policy
		return nil
	})
	d := s.shadowed(t, dual.Config{ShadowWorkers: 1})
	policy := limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Hour)}}
	for range 3 {
		backendtesting.MustTake(t, d, backend.Request{Key: "k", Policy: &policy, Cost: 1})
	}
	<-begun // one call is under way, two are waiting
	policy.Name, policy.Limits[0].Max = "q", 1
	close(release)
	awaitShadows(t, d, 3)
	for range 3 {
		if p := <-seen; p.Name != "~p" || p.Limits[0].Max != 10 {
			t.Errorf("a shadow call was made under %+v", p)
		}
	}
	if got := d.Stats().Shadow; got.Agreed != 3 {
		t.Errorf("%+v", got)
	}
}

// TestDualShadowKeepsNothing: a server may reuse the buffer that a key lies in, see TestMemoryKeepsNothing.
func TestDualShadowKeepsNothing(t *testing.T) {
	s := newStage(t)
	release, seen := make(chan struct{}), make(chan string, 2)
	s.new.set(func(_ context.Context, _ string, req *backend.Request) error {
		<-release
		seen <- strings.Clone(req.Key)
		return nil
	})
	d := s.shadowed(t, dual.Config{ShadowWorkers: 1})
	bytes := []byte("alice")
	for range 2 {
		backendtesting.MustTake(t, d, backend.Request{Key: unsafe.String(&bytes[0], len(bytes)), Policy: ten, Cost: 1})
	}
	copy(bytes, "mangl")
	close(release)
	awaitShadows(t, d, 2)
	for range 2 {
		if key := <-seen; key != "alice" {
			t.Errorf("a shadow call was made for %q", key)
		}
	}
}

// TestDualShadowNames: on real servers, shadow calls and real ones don't meet, and the longest names fit.
func TestDualShadowNames(t *testing.T) {
	t.Parallel()
	d := newDuo(t, dual.Config{})
	mc := backendtesting.OpenMemcached(t, memcached.Config{}, d.memcached.Addr)
	redis := backendtesting.OpenRedis(t, d.redis.Addr, redisbackend.Config{})
	backendtesting.MustTake(t, mc, backendtesting.Request("k"))
	for range 2 {
		backendtesting.MustTake(t, redis, backendtesting.Request("k"))
	}
	for _, useNew := range []bool{false, true} {
		shadowed := backendtesting.NewDual(t, dual.Config{
			Old: backendtesting.OpenMemcached(t, memcached.Config{}, d.memcached.Addr), New: backendtesting.OpenRedis(t, d.redis.Addr, redisbackend.Config{}),
			Decide: backendtesting.Constant(useNew), Shadow: always,
		})
		for i := range int64(5) {
			backendtesting.MustTake(t, shadowed, backendtesting.Request("k"))
			awaitShadows(t, shadowed, i+1) // several workers don't keep the order
		}
		// The shadow begins with an empty window, so what is left differs.
		if got := shadowed.Stats().Shadow; got.Remaining != 5 {
			t.Errorf("on the new side %t: %+v", useNew, got)
		}
	}
	if inMemcached, inRedis := backendtesting.MemcachedUsed(t, d.memcached.Addr, "k"), backendtesting.Used(t, d.redis, "k"); inMemcached != 1+5 || inRedis != 2+5 {
		t.Errorf("%d and %d are counted, want 6 and 7 with 5 of each decided there", inMemcached, inRedis)
	}
	if items := backendtesting.MemcachedItems(t, d.memcached.Addr); len(items) != 2 || items["sl:~p:k"] == 0 {
		t.Errorf("Memcached holds %v, want the real counts and the shadow's", items)
	}

	prefix := strings.Repeat("x", 15) + ":"
	long := backendtesting.NewDual(t, dual.Config{
		Old: backendtesting.OpenMemcached(t, memcached.Config{Prefix: prefix}, d.memcached.Addr), New: backendtesting.NewMemory(t, memory.Config{}),
		Decide: backendtesting.Constant(true), Shadow: always,
	})
	n := int64(0)
	for _, name := range []string{strings.Repeat("p", 32), ""} {
		policy := &limit.Policy{Name: name, Limits: backendtesting.Hourly.Limits}
		if err := policy.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{strings.Repeat("k", 1<<20), strings.Repeat(" ", 1<<20), strings.Repeat("k", 200), strings.Repeat("é", 101)} {
			backendtesting.MustTake(t, long, backend.Request{Key: key, Policy: policy, Cost: 1})
			n++
			awaitShadows(t, long, n)
		}
	}
	if got := long.Stats().Shadow; got.Agreed != n {
		t.Errorf("long names: %+v, want %d agreed", got, n)
	}
}

// frozenShadow opens a Dual that decides on a real Redis server and shadows on a Memcached that is frozen, if at all.
func frozenShadow(t testing.TB, timeout time.Duration) func(shadow func(string) bool) *dual.Dual {
	t.Helper()
	server, mc := testserver.Redis(t), testserver.Memcached(t)
	mc.Pause()
	return func(shadow func(string) bool) *dual.Dual {
		return backendtesting.NewDual(t, dual.Config{
			Old: backendtesting.OpenMemcached(t, memcached.Config{Timeout: timeout}, mc.Addr), New: backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{}),
			Decide: backendtesting.Constant(true), Shadow: shadow,
		})
	}
}

// TestDualShadowFrozen: a shadow that hangs costs neither time nor memory. It is not parallel: it looks at the memory and the
// goroutines of the whole process.
func TestDualShadowFrozen(t *testing.T) {
	const timeout, takes = 250 * time.Millisecond, 10_000
	shadowed := frozenShadow(t, timeout)(always)
	take := func(n int) {
		for range n {
			backendtesting.MustTake(t, shadowed, backendtesting.Request("k"))
		}
	}
	take(2000) // until the queue is full
	dropped := shadowed.Stats().Shadow.Dropped
	goroutines, bytes := runtime.NumGoroutine(), backendtesting.Heap()
	begin := time.Now()
	take(takes)
	if took := time.Since(begin); took > takes*timeout/50 { // BenchmarkDualShadowFrozen shows what it costs
		t.Errorf("%d takes last %s beside a shadow that takes %s to fail", takes, took, timeout)
	}
	if more := runtime.NumGoroutine() - goroutines; more > 16 { // a worker's call that has timed out may still be ending
		t.Errorf("%d takes leave %d goroutines", takes, more)
	}
	if more := backendtesting.Heap() - bytes; more > 512<<10 {
		t.Errorf("%d takes leave %d bytes", takes, more)
	}
	// Four workers make four calls in each timeout; the rest has to go.
	if n := shadowed.Stats().Shadow.Dropped - dropped; n < takes*9/10 {
		t.Errorf("%d of %d questions were dropped", n, takes)
	}
	begin = time.Now()
	if err := shadowed.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 2*timeout+backendtesting.Patient/10 {
		t.Errorf("Close takes %s, want what Memcached's own takes: %s", took, 2*timeout)
	}
}

// BenchmarkDualShadowFrozen shows the p99 of a decision over the network with a shadow that hangs, and without one.
func BenchmarkDualShadowFrozen(b *testing.B) {
	for name, shadow := range map[string]func(string) bool{"without": nil, "with": always} {
		b.Run(name, func(b *testing.B) {
			d := frozenShadow(b, 250*time.Millisecond)(shadow)
			for range 2000 { // until the queue is full
				backendtesting.MustTake(b, d, backendtesting.Request("k"))
			}
			var took []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				begin := time.Now()
				backendtesting.MustTake(b, d, backendtesting.Request("k"))
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}

// TestDualClose: both sides are closed once, whatever they say, and nothing is asked of them afterwards.
func TestDualClose(t *testing.T) {
	s, l := newStage(t), &lever{}
	d := s.process(t, l, dual.Config{Shadow: always})
	r := backendtesting.MustTake(t, d, takeTen("k"))
	awaitShadows(t, d, 1)
	s.read()
	for range 3 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if a, b := s.old.closes.Load(), s.new.closes.Load(); a != 1 || b != 1 {
		t.Errorf("the sides were closed %d and %d times", a, b)
	}
	ctx := context.Background()
	_, takeErr := d.Take(ctx, takeTen("k"))
	_, badErr := d.Take(ctx, backend.Request{})
	_, peekErr := d.Peek(ctx, takeTen("k"))
	_, loadErr := d.Load(ctx, takeTen("k"))
	for op, err := range map[string]error{
		"take": takeErr, "bad take": badErr, "peek": peekErr, "load": loadErr, "ping": d.Ping(ctx), "reset": d.Reset(ctx, takeTen("k")),
		"seed": d.Seed(ctx, takeTen("k"), state.State{}), "refund": d.Refund(ctx, takeTen("k"), r.Receipt(), 1),
	} {
		if err != backend.ErrClosed {
			t.Errorf("%s after Close: %v", op, err)
		}
	}
	if calls := s.read(); calls != "" {
		t.Errorf("calls after Close: %s", calls)
	}

	errOld, errNew := errors.New("old"), errors.New("new")
	broken := backendtesting.NewDual(t, dual.Config{
		Old: closing{backendtesting.NewMemory(t, memory.Config{}), errOld}, New: closing{backendtesting.NewMemory(t, memory.Config{}), errNew}, Decide: backendtesting.Constant(false),
	})
	if err := broken.Close(); !errors.Is(err, errOld) || !errors.Is(err, errNew) {
		t.Errorf("Close: %v, want what both sides say", err)
	}
}

// closing is a backend that can't be closed well.
type closing struct {
	backend.Backend
	err error
}

func (c closing) Close() error { return c.err }

// TestDualCloseDuringTakes: takes get a verdict or ErrClosed, and a handover under way ends.
func TestDualCloseDuringTakes(t *testing.T) {
	for range 5 {
		s, l := newStage(t), &lever{}
		d := s.process(t, l, dual.Config{Shadow: always, ShadowQueue: 8})
		var taken atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					_, err := d.Take(context.Background(), takeTen(fmt.Sprint(i%100)))
					if errors.Is(err, backend.ErrClosed) {
						return
					}
					if err != nil {
						t.Errorf("take: %v", err)
						return
					}
					taken.Add(1)
				}
			})
		}
		for i := range uint64(6) { // handovers are under way, too
			backendtesting.Await(t, "takes", func() bool { return taken.Load() >= int64(100*i) })
			l.set(i+1, i%2 == 0)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}
