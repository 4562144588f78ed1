package insight_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/registry"
)

// What would a limit of 2 a minute deny? It is tried on real requests before it denies any.
func ExampleShadow() {
	counts, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer counts.Close()
	shadow, err := insight.NewShadow(insight.ShadowConfig{
		Backend: counts,
		Policy:  limit.Policy{Name: "stricter", Limits: []limit.Limit{limit.PerMinute(2)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer shadow.Close()
	t, err := throttler.New(throttler.Config{
		Backend:  counts,
		Policy:   limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(60)}},
		Observer: shadow,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	for range 5 {
		if _, err := t.Allow(context.Background(), "user:42"); err != nil {
			log.Fatal(err)
		}
	}
	for shadow.Counts().Allowed+shadow.Counts().Denied < 5 { // it counts in the background
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("%+v\n", shadow.Counts())
	// Output:
	// {Allowed:2 Denied:3 Failed:0 Dropped:0}
}

// shadowNotes is an observer of shadows.
type shadowNotes struct {
	mu      sync.Mutex // guards shadows
	shadows []throttler.Event
}

func (n *shadowNotes) Start(ctx context.Context, _ *throttler.Event) context.Context { return ctx }

func (n *shadowNotes) End(_ context.Context, e *throttler.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.Op == throttler.OpShadow {
		n.shadows = append(n.shadows, *e)
	}
}

// The shadow has the name and the windows of what is enforced, and is counted apart all the same.
func TestShadow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		book, b := &shadowNotes{}, newSpy(t, nil)
		shadow := newShadow(t, insight.ShadowConfig{Backend: b, Policy: throttlertesting.One(limit.PerHour(3)), Observer: book})
		th := throttlertesting.New(t, throttler.Config{
			Backend: b, Policy: throttlertesting.One(limit.PerHour(10)), Observer: shadow, Processes: 1, Allow: []string{"friend"},
		})
		for _, step := range []struct {
			key  string
			cost int64
			fail error
			left int64 // of the enforced limit
			want insight.ShadowCounts
		}{
			{"k", 2, nil, 8, insight.ShadowCounts{Allowed: 1}},
			{"k", 2, nil, 6, insight.ShadowCounts{Allowed: 1, Denied: 1}},
			{"k", 4, nil, 2, insight.ShadowCounts{Allowed: 1, Denied: 2}}, // could never fit
			{"k", 4, nil, 2, insight.ShadowCounts{Allowed: 1, Denied: 2}}, // denied, so not asked
			{"friend", 1, nil, limit.MaxCount, insight.ShadowCounts{Allowed: 1, Denied: 2}},
			{"k", 1, errDown, 9, insight.ShadowCounts{Allowed: 1, Denied: 2}}, // by the failure policy
			{"k", 1, nil, 1, insight.ShadowCounts{Allowed: 2, Denied: 2}},
		} {
			b.failWith(step.fail)
			d, err := th.AllowN(t.Context(), step.key, step.cost)
			if err != nil || d.Remaining != step.left {
				t.Fatalf("%+v: %+v, %v", step, d, err)
			}
			synctest.Wait()
			if got := shadow.Counts(); got != step.want {
				t.Errorf("%+v: %+v", step, got)
			}
		}
		if len(book.shadows) != 4 {
			t.Fatalf("observed %d times, want 4", len(book.shadows))
		}
		for i, want := range []struct {
			allowed    bool
			left, cost int64
			err        error
		}{{true, 1, 2, nil}, {false, 1, 2, nil}, {false, 0, 4, limit.ErrCostExceedsLimit}, {true, 0, 1, nil}} {
			got := book.shadows[i]
			if got.Decision.Allowed != want.allowed || got.Decision.Remaining != want.left || got.Cost != want.cost ||
				!errors.Is(got.Err, want.err) || got.Policy.Limits[0].Max != 10 || got.Shadow.Limits[0].Max != 3 || got.Shadow.Name != "test" {
				t.Errorf("%d: observed %+v, want %+v", i, got, want)
			}
		}
	})
}

// hung never answers under a shadow policy.
type hung struct {
	*memory.Memory
	takes atomic.Int64 // of shadows
}

func (h *hung) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if !strings.HasPrefix(req.Policy.Name, "?") {
		return h.Memory.Take(ctx, req)
	}
	h.takes.Add(1)
	<-ctx.Done()
	return backend.Result{}, ctx.Err()
}

// Shadows that hang delay nothing, are bounded in number and time, and Close doesn't wait for them.
func TestShadowHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const calls, under, waiting = 3000, 4, 1024
		b := &hung{Memory: throttlertesting.NewMemory(t, nil)}
		shadow := newShadow(t, insight.ShadowConfig{Backend: b, Policy: throttlertesting.One(limit.PerHour(1))})
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(calls)), Observer: shadow})
		start := time.Now()
		for i := range calls {
			if i == under {
				synctest.Wait() // until they are under way
			}
			if d := throttlertesting.Allow(t, th, "k"); !d.Allowed || d.Remaining != calls-int64(i)-1 {
				t.Fatalf("%+v", d)
			}
		}
		synctest.Wait()
		if took := time.Since(start); took != 0 {
			t.Errorf("the requests took %s", took)
		}
		if got := shadow.Counts(); b.takes.Load() != under || got.Dropped != calls-under-waiting {
			t.Errorf("%d under way, %+v", b.takes.Load(), got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := shadow.Counts(); got.Failed != under {
			t.Errorf("%+v after the time of a call, want %d failed", got, under)
		}
		start = time.Now()
		if err := shadow.Close(); err != nil || time.Since(start) != 0 {
			t.Errorf("Close = %v after %s", err, time.Since(start))
		}
	})
}

// A Shadow that is closed before its first request begins no goroutine.
func TestShadowClosed(t *testing.T) {
	t.Parallel()
	shadow := newShadow(t, insight.ShadowConfig{Backend: throttlertesting.NewMemory(t, nil), Policy: throttlertesting.One(limit.PerHour(1))})
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(9)), Observer: shadow})
	if err := shadow.Close(); err != nil {
		t.Error(err)
	}
	_ = th // which may go on
	if got := shadow.Counts(); got != (insight.ShadowCounts{}) {
		t.Errorf("%+v", got)
	}
}

// What goes back goes back to the shadow, too, whichever of both is first.
func TestShadowRefunds(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{false, true} { // whether the shadow is asked before the refund
		synctest.Test(t, func(t *testing.T) {
			b := throttlertesting.NewMemory(t, nil)
			shadow := newShadow(t, insight.ShadowConfig{Backend: b, Policy: throttlertesting.One(limit.PerHour(10))})
			th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(100)), Observer: shadow})
			left := func(want int64) {
				t.Helper()
				synctest.Wait()
				stored := limit.Policy{Name: "?test", Limits: []limit.Limit{limit.PerHour(10)}}
				r, err := b.Peek(t.Context(), backend.Request{Key: "k", Policy: &stored, Cost: 1})
				if err != nil || r.Binding().Remaining != want {
					t.Errorf("asked first %v: %d left of the shadow, %v, want %d", first, r.Binding().Remaining, err, want)
				}
			}
			r, err := th.Reserve(t.Context(), "k", 8)
			if err != nil {
				t.Fatal(err)
			}
			if first {
				left(2)
			}
			if err := r.Settle(t.Context(), 3); err != nil {
				t.Fatal(err)
			}
			left(7)
			if r, err = th.Reserve(t.Context(), "k", 9); err != nil { // the shadow would deny it
				t.Fatal(err)
			}
			if first {
				left(7)
			}
			if err := r.Cancel(t.Context()); err != nil {
				t.Fatal(err)
			}
			left(7)
			if r, err = th.Reserve(t.Context(), "k", 2); err != nil {
				t.Fatal(err)
			}
			if first {
				left(5)
			}
			if err := r.Settle(t.Context(), 4); err != nil { // an overrun
				t.Fatal(err)
			}
			left(3)
			if d, err := th.AllowAll(t.Context(), []string{"k", "k"}, 96); err != nil || d.Allowed {
				t.Fatal(d, err)
			}
			left(3)
			if got := shadow.Counts(); got.Failed+got.Dropped != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestShadowOfARegistry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		book := &shadowNotes{}
		r := newRegistry(t, tiers(`, "keys": {"p": "pro"}, "shadow": {"pro": "free"}`))
		other := limit.Policy{Name: "other", Limits: []limit.Limit{limit.PerHour(7)}}
		shadow := newShadow(t, insight.ShadowConfig{Backend: throttlertesting.NewMemory(t, nil), Policy: other, Observer: book})
		th := throttlertesting.New(t, throttler.Config{Policies: r, Observer: shadow})
		for range 2 {
			throttlertesting.Allow(t, th, "p")
			synctest.Wait()
			throttlertesting.Allow(t, th, "k")
			synctest.Wait()
			if err := r.Update([]byte(tiers(`, "version": "2", "keys": {"p": "pro"}, "shadow": {"free": "max"}`))); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, s := range book.shadows {
			got = append(got, s.Policy.Name+" "+s.Shadow.Name)
		}
		if want := "[pro free free other pro other free max]"; fmt.Sprint(got) != want {
			t.Errorf("observed %v, want %s", got, want)
		}
	})
	for document, want := range map[string]string{
		`"shadow": {"pro": "pro"}`:   "[line 1: shadow]",
		`"shadow": {"pro": "gold"}`:  "[line 1: shadow]",
		`"shadow": {"gold": "free"}`: "[line 1: shadow]",
		`"shadow": {"pro": 1}`:       "[line 1: shadow]",
	} {
		if _, err := registry.New([]byte(tiers(", "+document)), registry.Config{}); fmt.Sprint(fields(err)) != want {
			t.Errorf("%s: %v", document, err)
		}
	}
	_, err := insight.NewShadow(insight.ShadowConfig{Policy: limit.Policy{Name: "next"}, Timeout: -1})
	if fmt.Sprint(fields(err)) != "[Backend limits Timeout]" {
		t.Errorf("a shadow without limits: %v", err)
	}
	_, err = insight.NewShadow(insight.ShadowConfig{
		Backend: (*memory.Memory)(nil), Observer: throttler.Observers(&shadowNotes{}, (*shadowNotes)(nil)),
	})
	if fmt.Sprint(fields(err)) != "[Backend Observer]" {
		t.Errorf("a shadow with typed nils: %v", err)
	}
}

// On a server, too, what a shadow counts is its own.
func TestShadowOnAServer(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	counts, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, redisbackend.Config{Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = counts.Close() })
	shadow := newShadow(t, insight.ShadowConfig{Backend: counts, Policy: throttlertesting.One(limit.PerHour(3))})
	th := throttlertesting.New(t, throttler.Config{Backend: counts, Policy: throttlertesting.One(limit.PerHour(10)), Observer: shadow})
	for i := range 8 {
		if d := throttlertesting.Allow(t, th, "k"); !d.Allowed || d.Remaining != int64(9-i) {
			t.Errorf("%+v", d)
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if s := shadow.Counts(); s.Allowed+s.Denied+s.Failed == int64(i+1) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v after %d requests", shadow.Counts(), i+1)
			}
		}
	}
	if got, want := shadow.Counts(), (insight.ShadowCounts{Allowed: 3, Denied: 5}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A shadow with a backend of its own takes no room that the limits need.
func TestShadowBackend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const keys = 60
		enforced, err := memory.New(memory.Config{MaxKeys: 64})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = enforced.Close() }()
		apart := newSpy(t, nil)
		shadow := newShadow(t, insight.ShadowConfig{Backend: apart, Policy: throttlertesting.One(limit.PerHour(1))})
		th := throttlertesting.New(t, throttler.Config{Backend: enforced, Policy: throttlertesting.One(limit.PerHour(1)), Observer: shadow})
		admitted := 0
		for i := range 2 * keys {
			d := throttlertesting.Allow(t, th, fmt.Sprint("k", i%keys))
			synctest.Wait() // until the shadow was asked
			if d.Allowed {
				admitted++
			}
			if d.Guarantee != throttler.Exact {
				t.Errorf("request %d: %v", i, d.Guarantee)
			}
		}
		if admitted != keys {
			t.Errorf("%d admitted, want %d", admitted, keys)
		}
		if got := shadow.Counts(); got != (insight.ShadowCounts{Allowed: keys}) || apart.calls.Load() != keys {
			t.Errorf("%+v by %d calls", got, apart.calls.Load())
		}
		r, err := th.Reserve(t.Context(), "new", 1)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := r.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := apart.calls.Load(); got != keys+2 { // it was given back there, too
			t.Errorf("%d calls for the shadow, want %d", got, keys+2)
		}
	})
}

// The shadow of a name is that of all policies of that name, whoever gives them and however old they are.
func TestShadowGoesByName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		book := &shadowNotes{}
		r := newRegistry(t, tiers(`, "shadow": {"pro": "free"}`))
		its := map[string]*limit.Policy{"kept": r.Policy("pro"), "own": {Name: "pro", Limits: []limit.Limit{limit.PerHour(9)}}}
		shadow := newShadow(t, insight.ShadowConfig{Backend: throttlertesting.NewMemory(t, nil), Observer: book})
		th := throttlertesting.New(t, throttler.Config{Policies: r, Observer: shadow, PolicyFor: func(_ context.Context, key string) *limit.Policy {
			return its[key]
		}})
		changed := `{"policies": {"free": ["5/1h"], "pro": ["51/1h"]}, "default": "free", "shadow": {"pro": "free"}}`
		if err := r.Update([]byte(changed)); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"kept", "own", "neither"} {
			throttlertesting.Allow(t, th, key)
			synctest.Wait()
		}
		if len(book.shadows) != 2 || book.shadows[0].Shadow.Name != "free" || book.shadows[1].Shadow.Name != "free" {
			t.Errorf("observed %+v, want of two", book.shadows)
		}
	})
}

// A key that is given its full quota, or a part of it, has that under the shadow, too.
func TestShadowIsReset(t *testing.T) {
	t.Parallel()
	testShadowGivesBack(t, (*throttler.Throttler).Reset)
}

func TestShadowIsGranted(t *testing.T) {
	t.Parallel()
	testShadowGivesBack(t, func(th *throttler.Throttler, ctx context.Context, key string) error { return th.Grant(ctx, key, 1) })
}

func testShadowGivesBack(t *testing.T, giveBack func(th *throttler.Throttler, ctx context.Context, key string) error) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(t, `{"policies": {"free": ["10/1h"], "stricter": ["3/1h"]}, "default": "free", "shadow": {"free": "stricter"}}`)
		shared := throttlertesting.NewMemory(t, nil)
		for name, cfg := range map[string]struct {
			throttler throttler.Config
			shadow    insight.ShadowConfig
		}{
			"shared": {throttler.Config{Backend: shared, Policy: throttlertesting.One(limit.PerHour(10))},
				insight.ShadowConfig{Backend: shared, Policy: throttlertesting.One(limit.PerHour(3))}},
			"apart": {throttler.Config{Policy: throttlertesting.One(limit.PerHour(10))},
				insight.ShadowConfig{Backend: throttlertesting.NewMemory(t, nil), Policy: throttlertesting.One(limit.PerHour(3))}},
			"of a registry": {throttler.Config{Policies: r}, insight.ShadowConfig{Backend: throttlertesting.NewMemory(t, nil)}},
		} {
			shadow := newShadow(t, cfg.shadow)
			cfg.throttler.Observer = shadow
			th := throttlertesting.New(t, cfg.throttler)
			for i, want := range []insight.ShadowCounts{{Allowed: 1}, {Allowed: 1, Denied: 1}, {Allowed: 2, Denied: 1}} {
				if i == 2 {
					if err := giveBack(th, t.Context(), "k"); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if d, err := th.AllowN(t.Context(), "k", 2); err != nil || !d.Allowed {
					t.Fatalf("%s: %+v, %v", name, d, err)
				}
				synctest.Wait()
				if got := shadow.Counts(); got != want {
					t.Errorf("%s, %d: %+v, want %+v", name, i, got, want)
				}
			}
		}
	})
}
