//go:build unix

package backend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// A rig is a backend with a single lane behind a proxy that can hold it, so that calls gather in the queue.
type rig struct {
	*backend.Redis
	t      *testing.T
	server *testserver.Server
	proxy  *testserver.Proxy
	gate   chan struct{} // closed to let scripts pass
	held   chan struct{}
	wg     sync.WaitGroup
}

func newRig(t *testing.T, cfg backend.RedisConfig) *rig {
	t.Helper()
	server := testserver.Redis(t)
	g := &rig{t: t, server: server, proxy: testserver.NewProxy(t, server.Addr)}
	cfg.Lanes = 1
	g.Redis = openRedisWith(t, &redis.Options{Addr: g.proxy.Addr, PoolSize: 1}, cfg)
	for _, script := range []func(context.Context, backend.Request) error{ // the server is to know all of them
		func(ctx context.Context, req backend.Request) error { _, err := g.Take(ctx, req); return err },
		func(ctx context.Context, req backend.Request) error {
			_, err := g.Seal(ctx, moving(req, limit.Ask))
			return err
		},
		func(ctx context.Context, req backend.Request) error { return g.Refund(ctx, req, receipt(t), 1) },
		func(ctx context.Context, req backend.Request) error { return g.Reset(ctx, req) },
		func(ctx context.Context, req backend.Request) error { return g.Seed(ctx, req, limit.State{}) },
	} {
		if err := script(t.Context(), request("warm")); err != nil && !isMoved(err) {
			t.Fatal(err)
		}
	}
	return g
}

func moving(req backend.Request, step limit.Step) backend.Request {
	req.Move = limit.Move{Version: 7, Step: step, Hold: time.Hour}
	return req
}

func isMoved(err error) bool {
	_, ok := errors.AsType[*limit.MovedError](err)
	return ok
}

// hold makes a take of key "held" that gets no reply until release.
func (g *rig) hold() {
	g.t.Helper()
	gate := make(chan struct{})
	g.gate, g.held = gate, make(chan struct{}, 1000)
	held := g.held
	g.proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" || args[0] == "EVAL" {
			held <- struct{}{}
			<-gate
		}
		return testserver.Pass
	})
	g.t.Cleanup(func() { // before the proxy's, which waits for it
		select {
		case <-gate:
		default:
			close(gate)
		}
	})
	g.wg.Go(func() {
		if _, err := g.Take(context.Background(), request("held")); err != nil && g.held == held && !g.t.Failed() {
			g.t.Logf("the call that holds the lane: %v", err)
		}
	})
	<-held
}

// queue starts a call and waits until it is in the queue, so that calls have an order.
func (g *rig) queue(call func()) {
	g.t.Helper()
	before, _, _ := g.Waiting()
	g.wg.Go(call)
	await(g.t, "the queue", func() bool { n, _, _ := g.Waiting(); return n > before })
}

// release lets the lane go on, and waits for all calls. It returns how many script calls the server had meanwhile, that
// of the call which held the lane left out.
func (g *rig) release() int64 {
	g.t.Helper()
	g.server.ResetStats(g.t)
	close(g.gate)
	g.wg.Wait()
	stats := g.server.Stats(g.t)
	return stats["evalsha"] + stats["eval"] - 1
}

// TestLanesShare: many callers share round trips, each key is counted exactly, and a lone caller's take is one call.
func TestLanesShare(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := openRedisWith(t, &redis.Options{Addr: proxy.Addr, PoolSize: 2}, backend.RedisConfig{})
	mustTake(t, b, request("warm"))
	const callers, takes, keys, max = 64, 12, 16, 40
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(max, time.Hour)}}
	for name, ctx := range map[string]context.Context{"background": context.Background(), "cancellable": t.Context()} {
		server.ResetStats(t)
		for range 10 {
			if _, err := b.Take(ctx, request("lone")); err != nil {
				t.Fatal(err)
			}
		}
		if stats := server.Stats(t); stats["evalsha"] != 10 || stats["mget"] != 10 || stats["eval"] != 0 || stats["set"] != 10 {
			t.Errorf("%s: 10 takes of a lone caller made the calls %v", name, stats)
		}
	}
	proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" {
			return testserver.Delay(3 * time.Millisecond)
		}
		return testserver.Pass
	})
	server.ResetStats(t)
	var mu sync.Mutex // guards left and denied
	left := make(map[string][]int64)
	denied := make(map[string]int)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range takes {
				key := fmt.Sprint("k", (i+j)%keys)
				ctx := context.Background()
				if i%2 == 0 {
					ctx = t.Context()
				}
				r, err := b.Take(ctx, backend.Request{Key: key, Policy: policy, Cost: 1})
				mu.Lock()
				switch {
				case err != nil:
					t.Errorf("take: %v", err)
				case r.Allowed:
					left[key] = append(left[key], r.Binding().Remaining)
				default:
					denied[key]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if stats := server.Stats(t); stats["evalsha"] > callers*takes/8 {
		t.Errorf("%d takes of %d callers were %d calls", callers*takes, callers, stats["evalsha"])
	}
	for i := range keys {
		key := fmt.Sprint("k", i)
		wantEach(t, key, left[key], max)
		if denied[key] != callers*takes/keys-max {
			t.Errorf("%s: %d denied, want %d", key, denied[key], callers*takes/keys-max)
		}
	}
}

// wantEach checks that n takes were admitted, which were told n-1, n-2, ... 0 to be left.
func wantEach(t *testing.T, key string, left []int64, n int) {
	t.Helper()
	slices.Sort(left)
	for i := range left {
		if left[i] != int64(i) {
			t.Errorf("%s: those admitted were told that %v are left", key, left)
			return
		}
	}
	if len(left) != n {
		t.Errorf("%s: %d admitted, want %d", key, len(left), n)
	}
}

// TestLanesSameKey: takes from one key in one script call get what they would get one after the other.
func TestLanesSameKey(t *testing.T) {
	t.Parallel()
	g := newRig(t, backend.RedisConfig{})
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(25, time.Hour)}}
	for round, costs := range [][]int64{{1}, {1, 2, 3}} {
		key := fmt.Sprint("same", round)
		g.hold()
		var model limit.State
		at := limit.At{Micros: g.NowMicros()}
		type outcome struct {
			backend.Result
			err error
		}
		var outcomes [40]outcome
		for i := range outcomes {
			g.queue(func() {
				o := &outcomes[i]
				o.Result, o.err = g.Take(context.Background(), backend.Request{Key: key, Policy: policy, Cost: costs[i%len(costs)]})
			})
		}
		if calls := g.release(); calls != 1 {
			t.Errorf("%d takes from one key were %d calls", len(outcomes), calls)
		}
		var left []int64
		for i, o := range outcomes {
			want := model.Take(policy, at, costs[i%len(costs)])
			if o.err != nil || o.Allowed != want.Allowed || o.Binding().Remaining != want.Binding().Remaining {
				t.Errorf("take %d of %d: %v, %d left, %v; want %v, %d left", i, costs[i%len(costs)], o.Allowed,
					o.Binding().Remaining, o.err, want.Allowed, want.Binding().Remaining)
			}
			if o.Allowed {
				left = append(left, o.Binding().Remaining)
			}
		}
		if len(costs) == 1 {
			wantEach(t, key, left, 25)
		}
	}
}

// TestLanesCrowd: what is more than one round trip may carry goes in the next ones.
func TestLanesCrowd(t *testing.T) {
	t.Parallel()
	g := newRig(t, backend.RedisConfig{})
	g.hold()
	const callers = 128 + 128 + 20
	for range callers {
		g.queue(func() {
			if _, err := g.Take(context.Background(), request(secret)); err != nil {
				t.Errorf("take: %v", err)
			}
		})
	}
	if calls := g.release(); calls != 3 {
		t.Errorf("%d takes were %d calls, want 3", callers, calls)
	}
	if n := used(t, g.server, secret); n != callers {
		t.Errorf("%d takes were counted %d times", callers, n)
	}
}

// TestLanesDeadlines: a round trip lasts as long as the most patient of those who share it.
func TestLanesDeadlines(t *testing.T) {
	t.Parallel()
	g := newRig(t, backend.RedisConfig{})
	g.hold()
	const short = 300 * time.Millisecond
	limited, cancel := context.WithTimeout(context.Background(), short)
	defer cancel()
	g.queue(func() {
		if _, err := g.Take(context.Background(), request(secret)); err != nil {
			t.Errorf("a patient call beside a hasty one: %v", err)
		}
	})
	g.queue(func() {
		if _, err := g.Take(limited, request("hasty")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a hasty call: %v", err)
		}
	})
	g.proxy.SetFault(func([]string) testserver.Action { return testserver.Delay(short + 100*time.Millisecond) })
	g.release()
}

// TestLanesMixture: calls of every kind, policy and cost travel together, and each gets its own outcome.
func TestLanesMixture(t *testing.T) {
	t.Parallel()
	clock := newClock()
	g := newRig(t, backend.RedisConfig{Now: clock.Now})
	at := limit.At{Micros: clock.Now().UnixMicro()}
	policies := []*limit.Policy{
		{Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Hour)}},
		{Name: "p", Limits: []limit.Limit{limit.Fixed(4, time.Hour)}}, // the same id, another max
		{Name: "q", Limits: []limit.Limit{limit.Fixed(10, time.Hour)}},
		{Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Minute).Aligned()}},
		{Name: "p", Limits: []limit.Limit{limit.Sliding(10, time.Hour, time.Minute)}},
		{Name: "p", Limits: []limit.Limit{limit.TokenBucket(1, time.Hour, 10)}},
		{Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Hour), limit.Fixed(5, time.Minute)}},
	}
	kinds := []string{"take", "take 3", "floor", "adopt", "ask", "refund", "reset", "seed", "seal"}
	type call struct {
		name   string
		req    backend.Request
		check  func()
		model  limit.State
		before limit.Receipt
	}
	var all []*call
	for _, p := range policies {
		for i, kind := range kinds {
			c := &call{name: fmt.Sprint(kind, " under ", p.Name, p.Limits)}
			c.req = backend.Request{Key: c.name, Policy: p, Cost: 1}
			for range i % 4 { // what is there before
				mustTake(t, g, c.req)
				v := c.model.Take(p, at, 1)
				c.before = v.Receipt()
			}
			all = append(all, c)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	g.hold()
	for _, c := range all {
		kind, _, _ := strings.Cut(c.name, " under")
		p := c.req.Policy
		var floor limit.State
		floor.Take(p, at, 3)
		take := func() {
			if kind == "ask" || kind == "adopt" {
				c.req = moving(c.req, limit.Ask)
				if kind == "adopt" {
					c.req.Move.Step = limit.Adopt
				}
			}
			got, err := g.Take(context.Background(), c.req)
			c.check = func() {
				if _, refusal := c.model.Arrive(p, at, c.req.Move, c.req.Floor); refusal != nil || err != nil {
					if !errors.Is(err, refusal) {
						t.Errorf("%s: %v, want %v", c.name, err, refusal)
					}
					return
				}
				want := c.model.Take(p, at, c.req.Cost)
				if say(&got.Verdict) != say(&want) || !got.State.Equal(&c.model) {
					t.Errorf("%s: %s, %s; want %s, %s", c.name, say(&got.Verdict), got.State.String(), say(&want), c.model.String())
				}
			}
		}
		plainly := func(do func() error, model func()) func() {
			return func() {
				err := do()
				c.check = func() {
					if err != nil {
						t.Errorf("%s: %v", c.name, err)
					}
					model()
				}
			}
		}
		ctx := context.Background()
		var run func()
		switch kind {
		case "take 3":
			c.req.Cost = 3
			run = take
		case "floor", "adopt":
			c.req.Floor = &floor
			run = take
		case "refund":
			run = plainly(func() error { return g.Refund(ctx, c.req, c.before, 1) }, func() { c.model.Refund(at, &c.before, 1) })
		case "reset":
			run = plainly(func() error { return g.Reset(ctx, c.req) }, func() { c.model.Reset(p, at) })
		case "seed":
			run = plainly(func() error { return g.Seed(ctx, c.req, floor) }, func() { c.model.Join(p, at, &floor) })
		case "seal":
			sealed := moving(c.req, limit.Ask)
			run = plainly(func() error { _, err := g.Seal(ctx, sealed); return err }, func() { _, _ = c.model.Seal(at, sealed.Move) })
		default:
			run = take
		}
		g.queue(run)
	}
	// Three plain limits go in one call each; the others, and what is left to take, in one call each.
	calls := g.release()
	plain, limits := 0, make(map[limit.Limit]bool)
	for _, c := range all {
		if l := c.req.Policy.Limits[0]; strings.HasPrefix(c.name, "take") && len(c.req.Policy.Limits) == 1 && l.Algorithm == limit.FixedWindow {
			plain++
			limits[l] = true
		}
	}
	refunds := 0
	for _, c := range all {
		if strings.HasPrefix(c.name, "refund") && c.before.Cost == 0 {
			refunds++ // of nothing, is no call
		}
	}
	if want := len(all) - plain + len(limits) - refunds; calls != int64(want) {
		t.Errorf("%d calls travelled as %d script calls, want %d", len(all), calls, want)
	}
	for _, c := range all {
		c.check()
		got, err := g.Load(t.Context(), c.req)
		if mine, want := settled(got.State, at), settled(c.model, at); err != nil || !mine.Equal(&want) {
			t.Errorf("%s: the server has %s, %v; want %s", c.name, mine.String(), err, want.String())
		}
	}
}

// TestLanesNeighbours: a key that can't be counted fails its own calls only.
func TestLanesNeighbours(t *testing.T) {
	t.Parallel()
	g := newRig(t, backend.RedisConfig{})
	ctx := t.Context()
	do(t, g.server.Client(), "HSET", stored("hash"), "a", "b")
	do(t, g.server.Client(), "SET", stored("garbage"), "garbage")
	if _, err := g.Seal(ctx, moving(request("sealed"), limit.Ask)); err != nil {
		t.Fatal(err)
	}
	g.hold()
	failed := make([]error, 60)
	name := func(i int) string {
		switch i % 6 {
		case 1:
			return "hash"
		case 3:
			return "garbage"
		case 5:
			return "sealed"
		}
		return fmt.Sprint("good", i)
	}
	for i := range failed {
		g.queue(func() { _, failed[i] = g.Take(context.Background(), request(name(i))) })
	}
	if calls := g.release(); calls != 1+30 {
		t.Errorf("%d takes were %d calls, want one and 30 for those that it left", len(failed), calls)
	}
	for i, err := range failed {
		switch key := name(i); key {
		case "hash":
			wantError(t, err, backend.Misconfigured, false)
		case "garbage":
			wantError(t, err, backend.Corrupt, false)
		case "sealed":
			if !isMoved(err) {
				t.Errorf("a sealed key: %v", err)
			}
		default:
			if n := used(t, g.server, key); err != nil || n != 1 {
				t.Errorf("%s: %v, counted %d times", key, err, n)
			}
		}
	}
	if text := g.server.Client().Get(ctx, stored("garbage")).Val(); text != "garbage" {
		t.Errorf("garbage was replaced by %q", text)
	}
}

// TestLanesFlush: a server that forgets the scripts under load costs no call and counts none twice.
func TestLanesFlush(t *testing.T) {
	t.Parallel()
	g := newRig(t, backend.RedisConfig{})
	sliding := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Sliding(1000, time.Hour, time.Minute)}}
	other := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(1000, time.Hour)}}
	g.hold()
	for i := range 30 {
		g.queue(func() {
			req := request(fmt.Sprint("k", i))
			req.Policy = []*limit.Policy{hourly, sliding, other}[i%3]
			if r, err := g.Take(context.Background(), req); err != nil || r.Binding().Remaining != req.Policy.Limits[0].Max-1 {
				t.Errorf("%v: %d left, %v", req.Policy.Limits, r.Binding().Remaining, err)
			}
		})
	}
	do(t, g.server.Client(), "SCRIPT", "FLUSH")
	// The call that holds the lane is made twice, and so are the ten that are not plain. Of the plain ones there are two
	// policies, whose script the holder has brought along.
	if calls := g.release(); calls != 1+2+2*10 {
		t.Errorf("30 takes were %d calls of scripts that were forgotten once", calls)
	}

	g.proxy.SetFault(nil)
	const callers, takes = 16, 30
	var left atomic.Int64
	left.Store(callers)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			defer left.Add(-1)
			for range takes {
				if _, err := g.Take(context.Background(), request(secret)); err != nil {
					t.Errorf("a server that forgot the script: %v", err)
				}
			}
		})
	}
	for left.Load() > 0 {
		do(t, g.server.Client(), "SCRIPT", "FLUSH")
	}
	wg.Wait()
	if n := used(t, g.server, secret); n != callers*takes {
		t.Errorf("%d takes were counted %d times", callers*takes, n)
	}
}

// TestLanesFrozen: callers of a server that stands still return by their deadlines, those who wait for a lane too, and
// what was not sent is not counted.
func TestLanesFrozen(t *testing.T) {
	const callers, deadline = 256, 50 * time.Millisecond
	for _, pool := range []int{0, 1} {
		server := testserver.Redis(t)
		patientCalls := openRedisWith(t, &redis.Options{Addr: server.Addr, PoolSize: pool}, backend.RedisConfig{Timeout: 10 * time.Second})
		bounded := openRedisWith(t, &redis.Options{Addr: server.Addr, PoolSize: pool}, backend.RedisConfig{Timeout: deadline})
		for _, b := range []*backend.Redis{patientCalls, bounded} {
			for {
				if _, err := b.Take(t.Context(), request("warm")); err == nil {
					break
				}
			}
		}
		server.Pause()
		var wg sync.WaitGroup
		var unknown atomic.Int64
		var mu sync.Mutex // guards late and noise
		var late, noise time.Duration
		timed := func(longest *time.Duration, call func()) {
			begin := time.Now()
			call()
			took := time.Since(begin)
			mu.Lock()
			*longest = max(*longest, took)
			mu.Unlock()
		}
		for i := range callers {
			wg.Go(func() { // what this machine makes of a timer meanwhile
				timed(&noise, func() { <-time.After(deadline) })
			})
			wg.Go(func() {
				timed(&late, func() {
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
					_, err := b.Take(ctx, request(secret))
					var failed *backend.Error
					if !errors.As(err, &failed) || failed.Kind != backend.Unavailable && failed.Kind != backend.Interrupted {
						t.Errorf("a frozen server: %v", err)
					} else if failed.MayHaveCharged {
						unknown.Add(1)
					}
				})
			})
		}
		wg.Wait()
		// 10 ms are for the way back. The rest is noise: of 512 goroutines that a machine of two cores wakes at once, the
		// last is 40 ms late when another process has the cores (a time slice or a few); when it was even worse, the
		// timers above say by how much.
		if allowed := deadline + 10*time.Millisecond + max(40*time.Millisecond, 2*(noise-deadline)); late > allowed {
			t.Errorf("pool of %d: a deadline of %s was honoured after %s; a bare timer took %s", pool, deadline, late, noise)
		}
		server.Resume()
		await(t, "the thaw", func() bool { return bounded.Ping(context.Background()) == nil })
		if n := used(t, server, secret); n > unknown.Load() {
			t.Errorf("pool of %d: %d calls may have been counted, %d were", pool, unknown.Load(), n)
		}
		if n := unknown.Load(); n == 0 || pool == 1 && n == callers {
			t.Errorf("pool of %d: %d of %d calls may have been counted", pool, n, callers)
		}
		t.Logf("pool of %d: the last of %d returned after %s, the last timer after %s; %d may have been counted, %d were",
			pool, callers, late, noise, unknown.Load(), used(t, server, secret))
	}
}

// TestLanesAbandoned: a call that was given up while it waited is never sent.
func TestLanesAbandoned(t *testing.T) {
	t.Parallel()
	g := newRig(t, backend.RedisConfig{})
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
			_, err := g.Take(ctx, request(secret))
			if i%2 == 0 {
				wantError(t, err, backend.Interrupted, false)
				gaveUp.Done()
			} else if err != nil {
				t.Errorf("a neighbour of those who gave up: %v", err)
			}
		})
	}
	for _, cancel := range cancels {
		cancel()
	}
	gaveUp.Wait() // while the lane is held
	short, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	_, err := g.Take(short, request(secret))
	wantError(t, err, backend.Interrupted, false)
	if calls := g.release(); calls != 1 {
		t.Errorf("%d script calls, want one", calls)
	}
	if n := used(t, g.server, secret); n != 20 {
		t.Errorf("20 calls that nobody gave up were counted %d times", n)
	}
}

// TestLanesOverdue: a call whose deadline is over when its turn comes is not sent, and says so.
func TestLanesOverdue(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := openRedis(t, server.Addr, backend.RedisConfig{})
	mustTake(t, b, request("warm"))
	server.ResetStats(t)
	for range 200 {
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			_, err := b.Take(overdue{ctx}, request(secret))
			wantError(t, err, backend.Interrupted, false)
		}
	}
	await(t, "the lanes", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 2 && extra == 0 })
	if stats := server.Stats(t); stats["evalsha"] != 0 {
		t.Errorf("overdue calls reached the server: %v", stats)
	}
}

// overdue is a context whose deadline is over but whose timer hasn't fired yet.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// TestLanesBounded: when the queue is full, the next call fails at once.
func TestLanesBounded(t *testing.T) {
	t.Parallel()
	g := newRig(t, backend.RedisConfig{Queue: 4})
	g.hold()
	for range 4 {
		g.queue(func() {
			if _, err := g.Take(context.Background(), request(secret)); err != nil {
				t.Errorf("a call that had a place: %v", err)
			}
		})
	}
	for name, call := range map[string]func() error{
		"take":   func() error { _, err := g.Take(context.Background(), request(secret)); return err },
		"cancel": func() error { _, err := g.Take(t.Context(), request(secret)); return err },
		"refund": func() error { return g.Refund(context.Background(), request(secret), receipt(t), 1) },
		"reset":  func() error { return g.Reset(context.Background(), request(secret)) },
	} {
		begin := time.Now()
		err := call()
		if took := time.Since(begin); took > patient/10 {
			t.Errorf("%s: there was no place, and it took %s to say so", name, took)
		}
		wantError(t, err, backend.Unavailable, false)
		if !errors.Is(err, backend.ErrOverloaded) {
			t.Errorf("%s: got %v, want ErrOverloaded in it", name, err)
		}
	}
	g.release()
	mustTake(t, g, request(secret))
	if n := used(t, g.server, secret); n != 5 {
		t.Errorf("5 takes were counted %d times", n)
	}
}

// TestLanesStalled: a connection that hangs holds up others for as long as it takes to open another lane, and that one
// is closed again.
func TestLanesStalled(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	const timeout = 2 * time.Second
	b := openRedisWith(t, &redis.Options{Addr: proxy.Addr}, backend.RedisConfig{Timeout: timeout, Lanes: 1})
	mustTake(t, b, request("warm"))
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
		_, err := b.Take(context.Background(), request("hung"))
		wantError(t, err, backend.Unavailable, true)
	})
	<-hung
	var took []time.Duration
	var mu sync.Mutex // guards took
	for range 4 {
		wg.Go(func() {
			for range 5 {
				begin := time.Now()
				mustTake(t, b, request(secret))
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	await(t, "those who go on", func() bool { mu.Lock(); defer mu.Unlock(); return len(took) == 20 })
	slices.Sort(took)
	if took[5] > timeout/10 || took[19] > timeout/4 { // 10 ms and a new connection; the rest is for a busy machine
		t.Errorf("beside a connection that hangs, takes took up to %s, a quarter of them up to %s", took[19], took[5])
	}
	await(t, "the extra lanes to close", func() bool { _, free, extra := b.Waiting(); return free == 0 && extra == 0 })
	proxy.SetFault(nil)
	proxy.Cut() // ends what hangs
	proxy.Heal()
	wg.Wait()
	await(t, "the lane", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 1 && extra == 0 })
	if n := used(t, server, secret); n != 20 {
		t.Errorf("20 takes were counted %d times", n)
	}
}

// TestLanesExtra: lanes that were opened because others stalled are bounded by the pool, and all are closed again.
func TestLanesExtra(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := openRedisWith(t, &redis.Options{Addr: proxy.Addr, PoolSize: 4}, backend.RedisConfig{Lanes: 2})
	mustTake(t, b, request("warm"))
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
		wg.Go(func() { mustTake(t, b, request(secret)) })
		await(t, "a lane or the queue", func() bool { // each call that finds a lane gets it to itself
			queued, _, extra := b.Waiting()
			return arrived.Load() == int64(min(i+1, 4)) && queued == max(i-3, 0) && extra == min(max(i-1, 0), 2)
		})
	}
	close(gate)
	wg.Wait()
	await(t, "the lanes", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 2 && extra == 0 })
	if n := used(t, server, secret); n != 6 {
		t.Errorf("6 takes were counted %d times", n)
	}
}

// TestLanesLostReplies: what is lost of a batch is reported, and no call counts twice.
func TestLanesLostReplies(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]testserver.Action{
		"close before": testserver.CloseBefore, "close after": testserver.CloseAfter, "truncate": testserver.Truncate,
		"hang after": testserver.HangAfter, "hang before": testserver.HangBefore,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, backend.RedisConfig{Timeout: time.Second})
			policies := []*limit.Policy{
				hourly, {Name: "p", Limits: []limit.Limit{limit.Fixed(1000, time.Hour)}}, {Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Hour)}},
			}
			g.hold()
			passed := make([]error, 30)
			for i := range passed {
				g.queue(func() {
					req := request(fmt.Sprint("k", i))
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
				n := used(t, g.server, fmt.Sprint("k", i))
				switch {
				case i%3 > 0 || err != nil && strings.HasPrefix(name, "hang"): // all of a trip have come back, or none
					wantError(t, err, backend.Unavailable, true)
				case err != nil || n != 1:
					t.Errorf("a reply that was not lost: %v, counted %d times", err, n)
				}
				if n > 1 {
					t.Errorf("a take was counted %d times", n)
				}
			}
			mustTake(t, g, request("afterwards"))
		})
	}
}

// TestLanesChaos: callers who cancel at any moment, replies that are late or lost. What is stored lies between what was
// admitted and what may have been.
func TestLanesChaos(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := openRedis(t, proxy.Addr, backend.RedisConfig{Timeout: 200 * time.Millisecond})
	mustTake(t, b, request("warm"))
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
				_, err := b.Take(ctx, request(fmt.Sprint("k", key)))
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
		a, u, n := admitted[key].Load(), unknown[key].Load(), used(t, server, fmt.Sprint("k", key))
		if a > n || n > a+u || a == 0 || u == 0 {
			t.Errorf("%d takes were admitted, %d may have been, %d are stored", a, u, n)
		}
	}
	for kind := range kinds {
		if k := backend.Kind(kind); kinds[kind].Load() > 0 && k != backend.Unavailable && k != backend.Interrupted {
			t.Errorf("%d calls were %s", kinds[kind].Load(), k)
		}
	}
	await(t, "the lanes", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 2 && extra == 0 })
}

// TestLanesClose: calls that run or wait end, and later ones are refused.
func TestLanesClose(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		const timeout = 500 * time.Millisecond
		cfg := backend.RedisConfig{}
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
				_, err := g.Take(ctx, request(secret))
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
		await(t, "the refusal", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			_, err := g.Take(ctx, request(secret))
			if err == nil {
				t.Error("a call passed the lane that is held")
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
		if took := time.Since(begin); !answers && took > timeout+patient/10 {
			t.Errorf("Close took %s", took)
		}
		g.wg.Wait()
		if queued, free, extra := g.Waiting(); queued != 0 || free != 1 || extra != 0 {
			t.Errorf("after Close %d wait, %d lanes are free, %d extra", queued, free, extra)
		}
		if _, err := g.Take(context.Background(), request(secret)); !errors.Is(err, backend.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	}
}

func TestLanesConfig(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	for field, cfg := range map[string]backend.RedisConfig{"lanes": {Lanes: -1}, "queue": {Queue: -1}} {
		_, err := backend.OpenRedis(&redis.Options{Addr: server.Addr}, cfg)
		var refused *limit.Error
		if !errors.As(err, &refused) || refused.Field != field {
			t.Errorf("%s of -1: got %v, want a *limit.Error", field, err)
		}
	}
	for _, lanes := range []int{0, 1, 5} {
		b := openRedisWith(t, &redis.Options{Addr: server.Addr, PoolSize: 1}, backend.RedisConfig{Lanes: lanes, Prefix: newPrefix()})
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range 10 {
					mustTake(t, b, request(secret))
				}
			})
		}
		wg.Wait()
		if r := mustTake(t, b, request(secret)); r.Binding().Remaining != 1_000_000-161 {
			t.Errorf("%d lanes on one connection: 161 takes left %d", lanes, r.Binding().Remaining)
		}
		await(t, "the lane", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 1 && extra == 0 })
	}
}

// TestLanesAllocs pins what a lone take allocates.
func TestLanesAllocs(t *testing.T) {
	server := testserver.Redis(t)
	b := openRedis(t, server.Addr, backend.RedisConfig{})
	sliding := request("sliding")
	sliding.Policy = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Sliding(1_000_000, time.Hour, time.Minute)}}
	for name, test := range map[string]struct {
		req  backend.Request
		most float64
	}{"plain": {request("plain"), 24}, "sliding": {sliding, 27}} {
		mustTake(t, b, test.req)
		got := testing.AllocsPerRun(300, func() { mustTake(t, b, test.req) })
		if got > test.most && !raced {
			t.Errorf("a %s take allocates %v times, want %v at most", name, got, test.most)
		}
	}
}
