//go:build unix

package redisbackend_test

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

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// A rig is a backend with a single connection behind a proxy that can hold it, so that calls gather in the queue.
type rig struct {
	*redisbackend.Redis
	t      *testing.T
	server *testserver.Server
	proxy  *testserver.Proxy
	gate   chan struct{} // closed to let scripts pass
	held   chan struct{}
	wg     sync.WaitGroup
}

func newRig(t *testing.T, cfg redisbackend.Config) *rig {
	t.Helper()
	server := testserver.Redis(t)
	g := &rig{t: t, server: server, proxy: testserver.NewProxy(t, server.Addr)}
	cfg.Pipelines = 1
	g.Redis = backendtesting.OpenRedisWith(t, &redis.Options{Addr: g.proxy.Addr, PoolSize: 2}, cfg)
	do(t, server.Client(), "SCRIPT", "LOAD", scripts.TakesFixed.Source)
	for _, script := range []func(context.Context, backend.Request) error{ // the server is to know all of them
		func(ctx context.Context, req backend.Request) error { _, err := g.Take(ctx, req); return err },
		func(ctx context.Context, req backend.Request) error {
			req.Policy = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Sliding(10, time.Hour, time.Minute)}}
			_, err := g.Take(ctx, req)
			return err
		},
		func(ctx context.Context, req backend.Request) error {
			_, err := g.Seal(ctx, moving(req, state.Ask))
			return err
		},
		func(ctx context.Context, req backend.Request) error {
			return g.Refund(ctx, req, backendtesting.Receipt(t), 1)
		},
		func(ctx context.Context, req backend.Request) error { return g.Reset(ctx, req) },
		func(ctx context.Context, req backend.Request) error { return g.Seed(ctx, req, state.State{}) },
	} {
		if err := script(t.Context(), backendtesting.Request("warm")); err != nil && !isMoved(err) {
			t.Fatal(err)
		}
	}
	return g
}

func moving(req backend.Request, step state.Step) backend.Request {
	req.Move = state.Move{Version: 7, Step: step, TTL: time.Hour}
	return req
}

func isMoved(err error) bool {
	_, ok := errors.AsType[*state.MovedError](err)
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
		if _, err := g.Take(context.Background(), backendtesting.Request("held")); err != nil && g.held == held && !g.t.Failed() {
			g.t.Logf("the call that holds the connection: %v", err)
		}
	})
	<-held
}

// queue starts a call and waits until it is in the queue, so that calls have an order.
func (g *rig) queue(call func()) {
	g.t.Helper()
	before, _, _ := g.Waiting()
	g.wg.Go(call)
	backendtesting.Await(g.t, "the queue", func() bool { n, _, _ := g.Waiting(); return n > before })
}

// release lets the connection go on, and waits for all calls. It returns how many script calls the server had meanwhile, that
// of the call which held the connection left out.
func (g *rig) release() int64 {
	g.t.Helper()
	g.server.ResetStats(g.t)
	close(g.gate)
	g.wg.Wait()
	stats := g.server.Stats(g.t)
	return stats["evalsha"] + stats["eval"] - 1
}

// TestPipelinerShare: many callers share round trips, each key is counted exactly, and a lone caller's take is one call.
func TestPipelinerShare(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: proxy.Addr, PoolSize: 2}, redisbackend.Config{})
	backendtesting.MustTake(t, b, backendtesting.Request("warm"))
	const callers, takes, keys, max = 64, 12, 16, 40
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(max, time.Hour)}}
	for name, ctx := range map[string]context.Context{"background": context.Background(), "cancellable": t.Context()} {
		server.ResetStats(t)
		for range 10 {
			if _, err := b.Take(ctx, backendtesting.Request("lone")); err != nil {
				t.Fatal(err)
			}
		}
		if stats := server.Stats(t); stats["evalsha"] != 10 || stats["get"] != 10 || stats["eval"] != 0 || stats["set"] != 10 {
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

// TestPipelinerSameKey: takes from one key in one script call get what they would get one after the other.
func TestPipelinerSameKey(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(25, time.Hour)}}
	for round, costs := range [][]int64{{1}, {1, 2, 3}} {
		key := fmt.Sprint("same", round)
		g.hold()
		var model state.State
		at := state.At{Micros: g.NowMicros()}
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

// TestPipelinerCrowd: what is more than one round trip may carry goes in the next ones.
func TestPipelinerCrowd(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	g.hold()
	const callers = 128 + 128 + 20
	for range callers {
		g.queue(func() {
			if _, err := g.Take(context.Background(), backendtesting.Request(backendtesting.Secret)); err != nil {
				t.Errorf("take: %v", err)
			}
		})
	}
	if calls := g.release(); calls != 3 {
		t.Errorf("%d takes were %d calls, want 3", callers, calls)
	}
	if n := backendtesting.Used(t, g.server, backendtesting.Secret); n != callers {
		t.Errorf("%d takes were counted %d times", callers, n)
	}
}

// TestPipelinerDeadlines: a round trip lasts as long as the most patient of those who share it.
func TestPipelinerDeadlines(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	g.hold()
	const short = 300 * time.Millisecond
	limited, cancel := context.WithTimeout(context.Background(), short)
	defer cancel()
	g.queue(func() {
		if _, err := g.Take(context.Background(), backendtesting.Request(backendtesting.Secret)); err != nil {
			t.Errorf("a patient call beside a hasty one: %v", err)
		}
	})
	g.queue(func() {
		if _, err := g.Take(limited, backendtesting.Request("hasty")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a hasty call: %v", err)
		}
	})
	g.proxy.SetFault(func([]string) testserver.Action { return testserver.Delay(short + 100*time.Millisecond) })
	g.release()
}

// TestPipelinerMixture: calls of every kind, policy and cost travel together, and each gets its own outcome.
func TestPipelinerMixture(t *testing.T) {
	t.Parallel()
	clock := backendtesting.NewClock()
	g := newRig(t, redisbackend.Config{Now: clock.Now})
	at := state.At{Micros: clock.Now().UnixMicro()}
	policies := []*limit.Policy{
		{Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Hour)}},
		{Name: "p", Limits: []limit.Limit{limit.Fixed(4, time.Hour)}}, // the same id, another max
		{Name: "q", Limits: []limit.Limit{limit.Fixed(10, time.Hour)}},
		{Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Minute).Aligned()}},
		{Name: "p", Limits: []limit.Limit{limit.Sliding(10, time.Hour, time.Minute)}},
		{Name: "p", Limits: []limit.Limit{limit.TokenBucket(1, time.Hour, 10)}},
		{Name: "p", Limits: []limit.Limit{limit.Fixed(10, time.Hour), limit.Fixed(5, time.Minute)}},
	}
	kinds := []string{"take", "take 3", "floor", "adopt", "ask", "refund", "reset", "grant", "seed", "seal"}
	type call struct {
		name   string
		req    backend.Request
		check  func()
		model  state.State
		before state.Receipt
	}
	var all []*call
	for _, p := range policies {
		for i, kind := range kinds {
			c := &call{name: fmt.Sprint(kind, " under ", p.Name, p.Limits)}
			c.req = backend.Request{Key: c.name, Policy: p, Cost: 1}
			for range i % 4 { // what is there before
				backendtesting.MustTake(t, g, c.req)
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
		var floor state.State
		floor.Take(p, at, 3)
		take := func() {
			if kind == "ask" || kind == "adopt" {
				c.req = moving(c.req, state.Ask)
				if kind == "adopt" {
					c.req.Move.Step = state.Adopt
				}
			}
			got, err := g.Take(context.Background(), c.req)
			c.check = func() {
				if _, refusal := c.model.Arrive(p, at, c.req.Move, c.req.Floor, true); refusal != nil || err != nil {
					if !errors.Is(err, refusal) {
						t.Errorf("%s: %v, want %v", c.name, err, refusal)
					}
					return
				}
				want := c.model.Take(p, at, c.req.Cost)
				if backendtesting.Say(&got.Verdict) != backendtesting.Say(&want) || !got.State.Equal(&c.model) {
					t.Errorf("%s: %s, %s; want %s, %s", c.name, backendtesting.Say(&got.Verdict), got.State.String(), backendtesting.Say(&want), c.model.String())
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
		case "grant":
			run = plainly(func() error { return g.Grant(ctx, c.req, 2) }, func() { c.model.Grant(p, at, 2) })
		case "seed":
			run = plainly(func() error { return g.Seed(ctx, c.req, floor) }, func() { c.model.Join(p, at, &floor) })
		case "seal":
			sealed := moving(c.req, state.Ask)
			run = plainly(func() error { _, err := g.Seal(ctx, sealed); return err }, func() { _, _ = c.model.Seal(at, sealed.Move) })
		default:
			run = take
		}
		g.queue(run)
	}
	// Takes under the same limits go in one call if a script for several keys knows these; a floor that tells news is left
	// to take. The others go in one call each.
	calls := g.release()
	plain, limits := 0, make(map[string]bool)
	for _, c := range all {
		if !isPlain(c.req.Policy.Limits) {
			continue
		}
		if strings.HasPrefix(c.name, "take") {
			plain++
			limits[fmt.Sprint(c.req.Policy.Limits)] = true
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

// TestPipelinerNeighbours: a key that can't be counted fails its own calls only.
func TestPipelinerNeighbours(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	ctx := t.Context()
	do(t, g.server.Client(), "HSET", backendtesting.Stored("hash"), "a", "b")
	do(t, g.server.Client(), "SET", backendtesting.Stored("garbage"), "garbage")
	if _, err := g.Seal(ctx, moving(backendtesting.Request("sealed"), state.Ask)); err != nil {
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
		g.queue(func() { _, failed[i] = g.Take(context.Background(), backendtesting.Request(name(i))) })
	}
	if calls := g.release(); calls != 1+30 {
		t.Errorf("%d takes were %d calls, want one and 30 for those that it left", len(failed), calls)
	}
	for i, err := range failed {
		switch key := name(i); key {
		case "hash":
			backendtesting.WantError(t, err, backend.Misconfigured, false)
		case "garbage":
			backendtesting.WantError(t, err, backend.Corrupt, false)
		case "sealed":
			if !isMoved(err) {
				t.Errorf("a sealed key: %v", err)
			}
		default:
			if n := backendtesting.Used(t, g.server, key); err != nil || n != 1 {
				t.Errorf("%s: %v, counted %d times", key, err, n)
			}
		}
	}
	if text := g.server.Client().Get(ctx, backendtesting.Stored("garbage")).Val(); text != "garbage" {
		t.Errorf("garbage was replaced by %q", text)
	}
}

// TestPipelinerForeignTail: what the script for plain takes hands on unread can't shift the replies of others.
func TestPipelinerForeignTail(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	take := func(key string) error {
		req := backendtesting.Request(key)
		req.Policy = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Sliding(1000, time.Hour, time.Minute), limit.Fixed(1000, time.Hour)}}
		_, err := g.Take(context.Background(), req)
		return err
	}
	keys := []string{"one", "foreign", "other"}
	for _, key := range keys {
		if err := take(key); err != nil {
			t.Fatal(err)
		}
	}
	there := g.server.Client().Get(t.Context(), backendtesting.Stored("foreign")).Val()
	for _, tail := range []string{" ;", " 1;", ",1 1s;"} {
		text := strings.Replace(there, ";", tail, 1)
		do(t, g.server.Client(), "SET", backendtesting.Stored("foreign"), text)
		g.hold()
		for _, key := range keys {
			g.queue(func() {
				if err := take(key); key == "foreign" {
					backendtesting.WantError(t, err, backend.Corrupt, false)
				} else if err != nil {
					t.Errorf("beside %q: %v", text, err)
				}
			})
		}
		g.release()
		g.proxy.SetFault(nil)
	}
}

// TestPipelinerFlush: a server that forgets the scripts under load costs no call and counts none twice.
func TestPipelinerFlush(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	bucket := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.TokenBucket(1000, time.Hour, 1000)}}
	other := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(1000, time.Hour)}}
	g.hold()
	for i := range 30 {
		g.queue(func() {
			req := backendtesting.Request(fmt.Sprint("k", i))
			req.Policy = []*limit.Policy{backendtesting.Hourly, bucket, other}[i%3]
			if r, err := g.Take(context.Background(), req); err != nil || r.Binding().Remaining != req.Policy.Limits[0].Max-1 {
				t.Errorf("%v: %d left, %v", req.Policy.Limits, r.Binding().Remaining, err)
			}
		})
	}
	do(t, g.server.Client(), "SCRIPT", "FLUSH")
	// The call that holds the connection is made twice, and so are the ten under a bucket, and those of the two plain policies.
	if calls := g.release(); calls != 1+2*2+2*10 {
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
				if _, err := g.Take(context.Background(), backendtesting.Request(backendtesting.Secret)); err != nil {
					t.Errorf("a server that forgot the script: %v", err)
				}
			}
		})
	}
	for left.Load() > 0 {
		do(t, g.server.Client(), "SCRIPT", "FLUSH")
	}
	wg.Wait()
	if n := backendtesting.Used(t, g.server, backendtesting.Secret); n != callers*takes {
		t.Errorf("%d takes were counted %d times", callers*takes, n)
	}
}

// TestPipelinerForgottenAndLeft: a call that did nothing, because the server had forgotten the script, is not made again for a
// caller who has left.
func TestPipelinerForgottenAndLeft(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	g.hold()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := make(chan error, 1)
	bucket := backendtesting.Request(backendtesting.Secret) // the call that is held brings another script along
	bucket.Policy = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.TokenBucket(1000, time.Hour, 1000)}}
	g.queue(func() { _, err := g.Take(ctx, bucket); left <- err })
	do(t, g.server.Client(), "SCRIPT", "FLUSH")
	sent, reply := make(chan struct{}), make(chan struct{})
	g.proxy.SetFault(func(args []string) testserver.Action {
		if args[0] == "EVALSHA" {
			close(sent)
			<-reply
		}
		return testserver.Pass
	})
	close(g.gate)
	<-sent
	cancel()
	backendtesting.WantError(t, <-left, backend.Interrupted, true)
	close(reply)
	g.wg.Wait()
	backendtesting.Await(t, "the connection", func() bool { queued, free, _ := g.Waiting(); return queued == 0 && free == 1 })
	if n := g.server.Client().Exists(t.Context(), backendtesting.Stored(backendtesting.Secret)).Val(); n != 0 {
		t.Error("a take was made for a caller who had left")
	}
}

// TestPipelinerForgotten: calls that need the same script, which the server has forgotten, all get it, also if one of them
// first tried another that the server knows.
func TestPipelinerForgotten(t *testing.T) {
	t.Parallel()
	g := newRig(t, redisbackend.Config{})
	other := backendtesting.Request("others") // which the script for plain takes leaves to take
	other.Policy = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Sliding(10, time.Hour, time.Minute)}}
	backendtesting.MustTake(t, g, other)
	staggered := backendtesting.Request("staggered")
	staggered.Policy = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(1000, time.Hour).Staggered()}}
	g.hold()
	for _, req := range []backend.Request{backendtesting.Request(other.Key), staggered, staggered} {
		g.queue(func() {
			if _, err := g.Take(context.Background(), req); err != nil {
				t.Errorf("%s: %v", req.Key, err)
			}
		})
	}
	do(t, g.server.Client(), "SCRIPT", "FLUSH")
	do(t, g.server.Client(), "SCRIPT", "LOAD", scripts.TakesFixed.Source)
	g.release()
	for _, key := range []string{other.Key, staggered.Key} {
		if n := g.server.Client().Exists(t.Context(), backendtesting.Stored(key)).Val(); n != 1 {
			t.Errorf("%s is not stored", key)
		}
	}
	if n := backendtesting.Used(t, g.server, other.Key); n != 1 {
		t.Errorf("a take was counted %d times", n)
	}
}

func TestPipelinerConfig(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	for field, cfg := range map[string]redisbackend.Config{"Pipelines": {Pipelines: -1}, "Queue": {Queue: -1}} {
		_, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, cfg)
		var refused *limit.Error
		if !errors.As(err, &refused) || refused.Field != "redis: "+field {
			t.Errorf("%s of -1: got %v, want a *limit.Error", field, err)
		}
	}
	for _, pipelines := range []int{0, 1, 5} {
		b := backendtesting.OpenRedisWith(t, &redis.Options{Addr: server.Addr, PoolSize: 1}, redisbackend.Config{Pipelines: pipelines, Prefix: backendtesting.NewPrefix()})
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range 10 {
					backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret))
				}
			})
		}
		wg.Wait()
		if r := backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)); r.Binding().Remaining != 1_000_000-161 {
			t.Errorf("%d pipelines on one connection: 161 takes left %d", pipelines, r.Binding().Remaining)
		}
		backendtesting.Await(t, "the connection", func() bool { queued, free, extra := b.Waiting(); return queued == 0 && free == 1 && extra == 0 })
	}
}

// TestPipelinerAllocs pins what a lone take allocates.
func TestPipelinerAllocs(t *testing.T) {
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	under := func(l limit.Limit) backend.Request {
		req := backendtesting.Request("single")
		req.Policy = &limit.Policy{Name: l.Algorithm.String(), Limits: []limit.Limit{l}}
		return req
	}
	for name, test := range map[string]struct {
		ctx  context.Context
		req  backend.Request
		most float64
	}{
		"plain": {context.Background(), backendtesting.Request("plain"), 7}, "cancellable": {t.Context(), backendtesting.Request("plain"), 9},
		"sliding": {context.Background(), under(limit.Sliding(1_000_000, time.Hour, time.Minute)), 8},
		"bucket":  {context.Background(), under(limit.TokenBucket(1_000_000, time.Second, 1_000_000)), 7},
	} {
		take := func() {
			if _, err := b.Take(test.ctx, test.req); err != nil {
				t.Fatal(err)
			}
		}
		take()
		got := testing.AllocsPerRun(300, take)
		if got > test.most && !backendtesting.Raced {
			t.Errorf("a %s take allocates %v times, want %v at most", name, got, test.most)
		}
	}
}

// TestPipelinerAllocsManyPolicies: a take allocates as much under one of 1,000 policies with equal limits.
func TestPipelinerAllocsManyPolicies(t *testing.T) {
	server := testserver.Redis(t)
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{})
	policies := make([]*limit.Policy, 1000)
	for i := range policies {
		policies[i] = &limit.Policy{Name: fmt.Sprint("tenant", i), Limits: backendtesting.Hourly.Limits}
	}
	next := 0
	take := func() {
		backendtesting.MustTake(t, b, backend.Request{Key: "k", Policy: policies[next%len(policies)], Cost: 1})
		next++
	}
	for range policies {
		take()
	}
	if got := testing.AllocsPerRun(len(policies), take); got > 7 && !backendtesting.Raced {
		t.Errorf("a take allocates %v times, want 7 at most", got)
	}
}

// TestPipelinerFloors: a take that brings along what its caller knew last is one script call, also when others have taken
// since, when windows are over, and after a refund.
func TestPipelinerFloors(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	clock := backendtesting.NewClock()
	b := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Now: clock.Now})
	do(t, server.Client(), "SCRIPT", "LOAD", scripts.TakesFixed.Source)
	mixed := []limit.Limit{limit.PerSecond(50), limit.PerMinute(100), limit.Sliding(1000, time.Hour, time.Minute)}
	for name, limits := range map[string][]limit.Limit{"one": {limit.PerSecond(50)}, "three": mixed} {
		req := backend.Request{Key: name, Policy: &limit.Policy{Name: "p", Limits: limits}, Cost: 1}
		other := backendtesting.MustTake(t, b, req)
		last := backendtesting.MustTake(t, b, req)
		server.ResetStats(t)
		const rounds = 150
		for i := range rounds {
			clock.Step(time.Duration(i%7) * 11 * time.Second)
			req.Floor = &last.State
			if i%3 == 0 {
				req.Floor = &other.State
			}
			if last = backendtesting.MustTake(t, b, req); !last.Allowed {
				t.Fatalf("%s: round %d is denied", name, i)
			}
			if i%5 == 0 {
				other = last
			}
			if i%10 == 0 {
				if err := b.Refund(t.Context(), req, last.Receipt(), 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		stats := server.Stats(t)
		if calls := stats["evalsha"] + stats["eval"] - rounds/10; calls > rounds+1 { // the first refund brings its script along
			t.Errorf("%s: %d takes were %d calls", name, rounds, calls)
		}
	}
}
