package throttler_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// A key that moves to another tier keeps what it has used, limit by limit.
func TestTiersShareTheirCounts(t *testing.T) {
	t.Parallel()
	free := limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(5), limit.PerDay(100)}}
	paid := limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerDay(1000), limit.PerMinute(50)}}
	other := limit.Policy{Name: "batch", Limits: []limit.Limit{limit.PerMinute(5)}}
	tier := &free
	th := throttlertesting.New(t, throttler.Config{Policy: free,
		PolicyFor: func(context.Context, string) *limit.Policy { return tier }})

	for _, step := range []struct {
		name    string
		tier    *limit.Policy
		cost    int64
		allowed bool
		left    map[time.Duration]int64 // by window, after it
	}{
		{"free", &free, 5, true, map[time.Duration]int64{time.Minute: 0, 24 * time.Hour: 95}},
		{"the minute is used up", &free, 1, false, map[time.Duration]int64{time.Minute: 0, 24 * time.Hour: 95}},
		{"paid has 50 a minute, 5 of them used", &paid, 30, true, map[time.Duration]int64{time.Minute: 15, 24 * time.Hour: 965}},
		{"free again: more used than it has", &free, 1, false, map[time.Duration]int64{time.Minute: 0, 24 * time.Hour: 65}},
		{"nil is Policy, which is free", nil, 1, false, map[time.Duration]int64{time.Minute: 0, 24 * time.Hour: 65}},
		{"another name has its own counts", &other, 5, true, map[time.Duration]int64{time.Minute: 0}},
	} {
		tier = step.tier
		d, err := th.AllowN(t.Context(), "k", step.cost)
		if err != nil || d.Allowed != step.allowed {
			t.Errorf("%s: %+v, %v, want allowed %v", step.name, d, err, step.allowed)
		}
		n := 0
		for s := range d.All() {
			n++
			if want := step.left[s.Limit.Window]; s.Remaining != want {
				t.Errorf("%s: %d left of %v, want %d", step.name, s.Remaining, s.Limit, want)
			}
		}
		if n != len(step.left) {
			t.Errorf("%s: %d limits, want %d", step.name, n, len(step.left))
		}
	}
}

func TestPolicyForIsAskedEachTime(t *testing.T) {
	t.Parallel()
	type tenant struct{}
	var seen []string
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(10)),
		PolicyFor: func(ctx context.Context, key string) *limit.Policy {
			seen = append(seen, key+" of "+ctx.Value(tenant{}).(string))
			return nil
		}})
	for _, who := range []string{"a", "b"} {
		if _, err := th.Allow(context.WithValue(t.Context(), tenant{}, who), "k"); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 2 || seen[0] != "k of a" || seen[1] != "k of b" {
		t.Errorf("asked for %q", seen)
	}
}

// A PolicyFor that makes a policy for each request costs time, not memory: what is remembered of them is bounded.
func TestPolicyCacheIsBounded(t *testing.T) {
	t.Parallel()
	const requests, bound = 12_000, 4096
	var mu sync.Mutex
	var made []weak.Pointer[limit.Policy]
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(10)),
		PolicyFor: func(context.Context, string) *limit.Policy {
			p := throttlertesting.One(limit.PerHour(2 * requests))
			mu.Lock()
			defer mu.Unlock()
			made = append(made, weak.Make(&p))
			return &p
		}})
	for range requests {
		if d := throttlertesting.Allow(t, th, "k"); !d.Allowed {
			t.Fatalf("%+v, want it admitted", d)
		}
	}
	runtime.GC()
	runtime.GC()
	alive := 0
	for _, p := range made {
		if p.Value() != nil {
			alive++
		}
	}
	if alive > bound+1 {
		t.Errorf("%d of %d policies are still held, want at most %d", alive, requests, bound)
	}
	if alive < bound/2 {
		t.Errorf("%d policies are held: they are not remembered at all", alive)
	}
	if got := throttlertesting.Allow(t, th, "k").Remaining; got != 2*requests-requests-1 {
		t.Errorf("Remaining = %d: a fresh copy of the policy lost counts", got)
	}
}
