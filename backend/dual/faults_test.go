//go:build unix

package dual_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// duo is the migration from Memcached to Redis, with its flag.
type duo struct {
	*dual.Dual
	lever
	redis, memcached *testserver.Server
}

func newDuo(t testing.TB, cfg dual.Config) *duo {
	t.Helper()
	d := &duo{redis: testserver.Redis(t), memcached: testserver.Memcached(t)}
	cfg.Old = backendtesting.OpenMemcached(t, memcached.Config{}, d.memcached.Addr)
	cfg.New = backendtesting.OpenRedis(t, d.redis.Addr, redisbackend.Config{})
	cfg.CarryOver = true
	if cfg.Decide == nil {
		cfg.Decide = d.lever.Decide
	}
	d.Dual = backendtesting.NewDual(t, cfg)
	return d
}

// commands is how many commands Memcached has executed.
func (d *duo) commands(t testing.TB) int64 {
	return backendtesting.MemcachedStat(t, d.memcached.Addr, "cmd_get") + backendtesting.MemcachedStat(t, d.memcached.Addr, "cmd_set")
}

func wantExact(t testing.TB, what string, r backend.Result, err error, left int64) {
	t.Helper()
	if err != nil || !r.Allowed || r.Guarantee != backend.Exact || r.Cause != nil || r.Binding().Remaining != left {
		t.Errorf("%s: allowed %t, %s because of %v, %d left, %v; want %d left", what, r.Allowed, r.Guarantee, r.Cause, r.Binding().Remaining, err, left)
	}
}

// TestDualNewSideDown: its keys have no verdict, and nobody else is asked for one. The others don't notice.
func TestDualNewSideDown(t *testing.T) {
	t.Parallel()
	const most = 1_000_000
	d := newDuo(t, dual.Config{Decide: func(key string) (bool, uint64) { return key != "stays", 0 }})
	ctx := context.Background()
	first := backendtesting.MustTake(t, d, backendtesting.Request(backendtesting.Secret))
	backendtesting.MustTake(t, d, backendtesting.Request("stays"))
	d.redis.Kill()
	for range 3 { // connections of before may still look alive
		_, _ = d.Take(ctx, backendtesting.Request(backendtesting.Secret))
	}
	before := d.commands(t)
	for range 5 {
		_, err := d.Take(ctx, backendtesting.Request(backendtesting.Secret))
		backendtesting.WantError(t, err, backend.Unavailable, false)
		_, err = d.Peek(ctx, backendtesting.Request(backendtesting.Secret))
		backendtesting.WantError(t, err, backend.Unavailable, false)
		backendtesting.WantError(t, d.Refund(ctx, backendtesting.Request(backendtesting.Secret), first.Receipt(), 1), backend.Unavailable, false)
	}
	_, err := d.Take(ctx, backendtesting.Request("new"))
	backendtesting.WantError(t, err, backend.Unavailable, false)
	if after := d.commands(t); after != before {
		t.Errorf("the old side got %d commands for keys of the new one", after-before)
	}
	if n := backendtesting.MemcachedUsed(t, d.memcached.Addr, backendtesting.Secret); n != 0 {
		t.Errorf("the old side counted %d", n)
	}
	for i := range int64(5) {
		r, err := d.Take(ctx, backendtesting.Request("stays"))
		wantExact(t, "a key of the other side", r, err, most-2-i)
	}
	if stats := d.Stats(); stats.New != 1 || stats.Old != 6 || stats.Bounded != 0 {
		t.Errorf("%+v", stats)
	}
}

// end is when the window of a charge ends.
func end(r *state.Receipt) int64 {
	end, _, _ := r.Charge(0)
	return end
}

// TestDualOldSideDown: what has not been handed over is decided without it, and says so.
func TestDualOldSideDown(t *testing.T) {
	t.Parallel()
	const most = 1_000_000
	d := newDuo(t, dual.Config{})
	ctx := context.Background()
	for range 3 {
		backendtesting.MustTake(t, d, backendtesting.Request("adopted"))
	}
	charged := backendtesting.MustTake(t, d, backendtesting.Request(backendtesting.Secret))
	d.set(1, true)
	r, err := d.Take(ctx, backendtesting.Request("adopted"))
	wantExact(t, "the handover", r, err, most-4)
	d.memcached.Kill()
	d.redis.ResetStats(t)
	for i := range int64(3) {
		r, err := d.Take(ctx, backendtesting.Request("adopted"))
		wantExact(t, "adopted before", r, err, most-5-i)
	}
	if n := d.redis.Stats(t)["evalsha"]; n != 3 {
		t.Errorf("3 takes of an adopted key made %d calls", n)
	}
	counted, old := int64(3), charged.Receipt()
	for i := range int64(3) {
		r, err := d.Take(ctx, backendtesting.Request(backendtesting.Secret))
		if here := r.Receipt(); end(&here) == end(&old) { // by chance: the refund below then finds the window that it names
			counted = 2
		}
		if err != nil || !r.Allowed || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrNotHandedOver) || r.Binding().Remaining != most-1-i {
			t.Errorf("allowed %t, %s because of %v, %d left, %v", r.Allowed, r.Guarantee, r.Cause, r.Binding().Remaining, err)
		} else if strings.Contains(r.Cause.Error(), backendtesting.Secret) {
			t.Errorf("the cause names the key: %v", r.Cause)
		}
		if n := d.Stats().Bounded; n != i+1 {
			t.Errorf("%d decisions are counted as bounded, want %d", n, i+1)
		}
	}
	if r, err := d.Peek(ctx, backendtesting.Request(backendtesting.Secret)); err != nil || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrNotHandedOver) {
		t.Errorf("peek: %s because of %v, %v", r.Guarantee, r.Cause, err)
	}
	wantLost(t, "refund", d.Refund(ctx, backendtesting.Request(backendtesting.Secret), old, 1)) // of a charge that is not known here
	wantLost(t, "seed", d.Seed(ctx, backendtesting.Request(backendtesting.Secret), state.State{}))
	if n := backendtesting.Used(t, d.redis, backendtesting.Secret); n != counted {
		t.Errorf("3 takes are counted %d times, want %d", n, counted)
	}
	wantLost(t, "reset", d.Reset(ctx, backendtesting.Request(backendtesting.Secret)))
	if n := backendtesting.Used(t, d.redis, backendtesting.Secret); n != 0 {
		t.Errorf("%d are counted after a reset", n)
	}
	if err := d.Refund(ctx, backendtesting.Request("adopted"), r.Receipt(), 1); err != nil {
		t.Errorf("refund of an adopted key: %v", err)
	}
}

// TestDualOldSideFrozen: a side that hangs costs one caller half its time and the next ones little, and the counts come
// over once it answers again.
func TestDualOldSideFrozen(t *testing.T) {
	t.Parallel()
	const deadline, most = 4 * time.Second, 5
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(most, time.Hour)}}
	d := newDuo(t, dual.Config{})
	admitted := 0
	take := func() (backend.Result, time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		begin := time.Now()
		r, err := d.Take(ctx, backend.Request{Key: backendtesting.Secret, Policy: policy, Cost: 1})
		took := time.Since(begin)
		if err != nil {
			t.Fatalf("Take: %v", err)
		}
		if r.Allowed {
			admitted++
		}
		return r, took
	}
	for range most {
		take()
	}
	backendtesting.MustTake(t, d.Dual, backendtesting.Request("warm")) // Redis has the script
	d.set(1, true)
	backendtesting.MustTake(t, d.Dual, backendtesting.Request("warm"))
	d.memcached.Pause()
	backendtesting.Await(t, "a server that stands still", func() bool { // a stop takes a moment to reach all threads
		conn := backendtesting.OpenMemcached(t, memcached.Config{Timeout: 500 * time.Millisecond}, d.memcached.Addr)
		defer conn.Close()
		return conn.Ping(context.Background()) != nil
	})
	if r, took := take(); r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrNotHandedOver) || took > deadline*3/4 {
		t.Errorf("the first decision: %s because of %v after %s, want half of %s at most", r.Guarantee, r.Cause, took, deadline)
	}
	var later []time.Duration
	for range 11 {
		r, took := take()
		if r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrNotHandedOver) || !r.Allowed && r.Binding().Remaining != 0 {
			t.Errorf("a later decision: %s because of %v", r.Guarantee, r.Cause)
		}
		later = append(later, took)
	}
	if slices.Sort(later); later[len(later)/2] > deadline/4 {
		t.Errorf("later decisions take %s", later)
	}
	d.memcached.Resume()
	<-time.After(1100 * time.Millisecond) // the side is given its full time again
	handovers := d.Stats().Handovers
	if r, _ := take(); r.Allowed || r.Guarantee != backend.Exact || r.Cause != nil || d.Stats().Handovers != handovers+1 {
		t.Errorf("after the thaw: allowed %t, %s because of %v", r.Allowed, r.Guarantee, r.Cause)
	}
	d.redis.ResetStats(t)
	if r, _ := take(); r.Guarantee != backend.Exact || d.redis.Stats(t)["evalsha"] != 1 {
		t.Errorf("the key was not adopted: %s", r.Guarantee)
	}
	if admitted <= most || admitted > 2*most {
		t.Errorf("%d admitted, want more than %d, for the test's own sake, and no more than %d", admitted, most, 2*most)
	}
}

// TestDualOldSideDownLater: after the period nobody needs it.
func TestDualOldSideDownLater(t *testing.T) {
	t.Parallel()
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Sliding(1_000_000, 20*time.Millisecond, 20*time.Millisecond)}}
	d := newDuo(t, dual.Config{Settle: time.Millisecond, Decide: backendtesting.Constant(true)})
	begin := time.Now()
	d.memcached.Kill()
	<-time.After(time.Until(begin.Add(25 * time.Millisecond)))
	ctx, req := context.Background(), backend.Request{Key: "k", Policy: policy, Cost: 1}
	d.redis.ResetStats(t)
	r := backendtesting.MustTake(t, d, req)
	if !r.Allowed || r.Guarantee != backend.Exact || r.Cause != nil || d.redis.Stats(t)["evalsha"] > 1 {
		t.Errorf("allowed %t, %s because of %v", r.Allowed, r.Guarantee, r.Cause)
	}
	if p, err := d.Peek(ctx, req); err != nil || p.Guarantee != backend.Exact || p.Cause != nil {
		t.Errorf("peek: %s because of %v, %v", p.Guarantee, p.Cause, err)
	}
	if err := errors.Join(d.Refund(ctx, req, r.Receipt(), 1), d.Reset(ctx, req), d.Seed(ctx, req, state.State{})); err != nil {
		t.Errorf("refund, reset and seed: %v", err)
	}
	if stats := d.Stats(); stats.Bounded != 0 || stats.Handovers != 0 || stats.New != 1 {
		t.Errorf("%+v", stats)
	}
}

// TestDualAfresh: without CarryOver a key that changes sides begins anew, at one call a take. Where another process has
// sealed it, it stays all the same, and decisions say that they lack something.
func TestDualAfresh(t *testing.T) {
	s, l := newStage(t), &lever{}
	d := backendtesting.NewDual(t, dual.Config{Old: backendtesting.OnlyTakes{Backend: s.old}, New: backendtesting.OnlyTakes{Backend: s.new}, Decide: l.Decide})
	for i, want := range []string{"old take", "old take", "new take", "old take"} {
		l.set(0, i == 2)
		r, err := d.Take(context.Background(), takeTen("k"))
		wantExact(t, want, r, err, []int64{9, 8, 9, 7}[i])
		if got := s.read(); got != want {
			t.Errorf("take %d: %s; want %s", i, got, want)
		}
	}
	if err := sealOld(5)(s); err != nil {
		t.Fatal(err)
	}
	for i := range int64(2) {
		r := backendtesting.MustTake(t, d, takeTen("k"))
		if !r.Allowed || r.Binding().Remaining != 6-i || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrNotHandedOver) {
			t.Errorf("sealed: allowed %t, %d left, %s because of %v", r.Allowed, r.Binding().Remaining, r.Guarantee, r.Cause)
		}
		if got := s.read(); got != "old take, old take 6 alone" {
			t.Errorf("sealed: %s", got)
		}
	}
	if stats := d.Stats(); stats.Old != 5 || stats.New != 1 || stats.Bounded != 2 || stats.Handovers != 0 {
		t.Errorf("%+v", stats)
	}
}

// TestDualAfreshChanges: what a Dual without CarryOver has charged on a sealed side it can give back there.
func TestDualAfreshChanges(t *testing.T) {
	s := newStage(t)
	d := backendtesting.NewDual(t, dual.Config{Old: s.old, New: s.new, Decide: backendtesting.Constant(false)})
	if err := sealOld(5)(s); err != nil {
		t.Fatal(err)
	}
	r := backendtesting.MustTake(t, d, takeTen("k"))
	if err := d.Refund(context.Background(), takeTen("k"), r.Receipt(), 1); err != nil {
		t.Errorf("refund: %v", err)
	}
	if err := d.Reset(context.Background(), takeTen("k")); err != nil {
		t.Errorf("reset: %v", err)
	}
	if r := backendtesting.MustTake(t, d, takeTen("k")); r.Binding().Remaining != 9 {
		t.Errorf("%d left, want 9", r.Binding().Remaining)
	}
}

// insatiable is an ErrFloorWanted that counts how often it is looked at, and gives in after a while.
type insatiable struct{ looks *atomic.Int64 }

func (insatiable) Error() string { return "never satisfied" }
func (e insatiable) Is(target error) bool {
	return target == state.ErrFloorWanted && e.looks.Add(1) < 1000
}

// TestDualGivesUp: a place that no handover satisfies, such as one that is both sides at once, ends a call after some
// turns, without a charge.
func TestDualGivesUp(t *testing.T) {
	ctx := context.Background()
	for op, call := range map[string]func(*dual.Dual) error{
		"take":  func(d *dual.Dual) error { _, err := d.Take(ctx, takeTen("k")); return err },
		"reset": func(d *dual.Dual) error { return d.Reset(ctx, takeTen("k")) },
	} {
		s, l := newStage(t), &lever{}
		var looks atomic.Int64
		s.old.set(func(_ context.Context, op string, _ *backend.Request) error {
			if op == "seed" {
				return nil
			}
			return insatiable{&looks}
		})
		d := s.process(t, l, dual.Config{})
		err := call(d)
		var failed *backend.Error
		if !errors.As(err, &failed) || failed.Op != "move" || failed.Kind != backend.Contended || failed.MayHaveCharged {
			t.Errorf("%s: %v, want it contended", op, err)
		}
		if n := looks.Load(); n >= 1000 {
			t.Errorf("%s: it went round and round, %d times, and would do so for ever", op, n)
		}
	}
}

// TestDualSlowSideComesBack: a side that hung once, and then needs longer than the patience with a side that hangs, is
// not taken for hanging as long as there are takes.
func TestDualSlowSideComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newStage(t), &lever{}
		l.set(1, true)
		d := s.process(t, l, dual.Config{})
		begin := time.Now()
		s.old.set(func(ctx context.Context, op string, _ *backend.Request) error {
			latency := 100 * time.Millisecond
			if time.Since(begin) < time.Second {
				latency = time.Minute
			}
			select {
			case <-time.After(latency):
				return nil
			case <-ctx.Done():
				return &backend.Error{Op: op, Node: "fake", Kind: backend.Interrupted, Err: ctx.Err()}
			}
		})
		for time.Since(begin) < 5*time.Second {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			if _, err := d.Take(ctx, takeTen("k")); err != nil {
				t.Error(err)
			}
			cancel()
			time.Sleep(100 * time.Millisecond)
		}
		if stats := d.Stats(); stats.Handovers != 1 {
			t.Errorf("4 s after the side came back the key was not handed over: %+v", stats)
		}
	})
}

// TestDualSealCutShort: a seal whose time is over may end with nothing but the context's own error, as a Memory's does,
// and the caller has half of its time left.
func TestDualSealCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newStage(t), &lever{}
		l.set(1, true)
		d := s.process(t, l, dual.Config{})
		s.old.set(func(ctx context.Context, _ string, _ *backend.Request) error { <-ctx.Done(); return nil })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if r, err := d.Take(ctx, takeTen("k")); err != nil || r.Guarantee != backend.Bounded || !errors.Is(r.Cause, backend.ErrNotHandedOver) {
			t.Errorf("%s because of %v, %v; want a decision without the other side", r.Guarantee, r.Cause, err)
		}
	})
}

// TestDualLongestTTL: what both Settle and a policy allow can be held.
func TestDualLongestHold(t *testing.T) {
	s := newStage(t)
	d := s.process(t, &lever{}, dual.Config{Settle: limit.MaxWindow})
	for _, l := range []limit.Limit{limit.Fixed(10, limit.MaxWindow), limit.TokenBucket(1, limit.MaxWindow, 1)} {
		policy := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
		if err := policy.Validate(); err != nil {
			t.Fatal(err)
		}
		if r, err := d.Take(context.Background(), backend.Request{Key: l.String(), Policy: policy, Cost: 1}); err != nil || !r.Allowed {
			t.Errorf("%s: allowed %t, %v", l, r.Allowed, err)
		}
	}
}

// TestDualForeignMove: a move that somebody else acts under says nothing about the sides of this Dual.
func TestDualForeignMove(t *testing.T) {
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("it panics: %v", r)
		}
	}()
	s := newStage(t)
	d := backendtesting.NewDual(t, dual.Config{Old: backendtesting.OnlyTakes{Backend: s.old}, New: backendtesting.OnlyTakes{Backend: s.new}, Decide: backendtesting.Constant(false)})
	req := takeTen("k")
	req.Move = state.Move{Version: 7, TTL: time.Hour}
	_, err := d.Take(context.Background(), req)
	if got := s.read(); got != "old take" || err != nil {
		t.Errorf("%s, %v; want old take", got, err)
	}
}

// TestDualAllocations: the way to the right side costs none.
func TestDualAllocations(t *testing.T) {
	policy := &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(1<<40, time.Millisecond), limit.TokenBucket(1<<40, time.Millisecond, 10)}}
	req := backend.Request{Key: "k", Policy: policy, Cost: 1}
	for name, c := range map[string]struct {
		cfg       dual.Config
		settled   bool
		handovers int64
	}{
		"not carried over":   {cfg: dual.Config{}},
		"within the period":  {cfg: dual.Config{CarryOver: true}, handovers: 1},
		"outside the period": {cfg: dual.Config{CarryOver: true, Settle: time.Millisecond}, settled: true},
	} {
		clock := backendtesting.NewClock()
		c.cfg.Old, c.cfg.New = backendtesting.NewMemory(t, memory.Config{Now: clock.Now}), backendtesting.NewMemory(t, memory.Config{Now: clock.Now})
		c.cfg.Decide = backendtesting.Constant(true)
		d := backendtesting.NewDual(t, c.cfg)
		if c.settled {
			<-time.After(10 * time.Millisecond)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var result backend.Result
		take := func() {
			clock.Step(time.Second)
			var err error
			if result, err = d.Take(ctx, req); err != nil || !result.Allowed {
				t.Fatalf("allowed %t, %v", result.Allowed, err)
			}
		}
		take()
		if got := testing.AllocsPerRun(200, take); got != 0 && !backendtesting.Raced {
			t.Errorf("%s: a take allocates %g times", name, got)
		}
		cancel()
		if n := d.Stats().Handovers; n != c.handovers {
			t.Errorf("%s: %d handovers, want %d", name, n, c.handovers)
		}
	}
}
