package throttler_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/registry"
)

func TestAllowAllocatesNothing(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	tier := limit.Policy{Name: "test", Limits: []limit.Limit{
		limit.PerHour(1 << 40), limit.Sliding(1<<40, time.Hour, time.Minute), limit.TokenBucket(1<<40, time.Hour, 1<<40),
	}}
	spent := throttlertesting.One(limit.PerHour(1))
	for _, test := range []struct {
		name      string
		policy    limit.Policy
		policyFor func(context.Context, string) *limit.Policy
		allowed   bool
	}{
		{"admitted", tier, nil, true},
		{"denied", spent, nil, false},
		{"admitted, a tier", spent, func(context.Context, string) *limit.Policy { return &tier }, true},
		{"denied, a tier", tier, func(context.Context, string) *limit.Policy { return &spent }, false},
		{"denied, no tier", spent, func(context.Context, string) *limit.Policy { return nil }, false},
	} {
		th := throttlertesting.New(t, throttler.Config{Policy: test.policy, PolicyFor: test.policyFor})
		ctx := t.Context()
		throttlertesting.Allow(t, th, "k") // the first one makes the key known
		var d throttler.Decision
		allocs := testing.AllocsPerRun(1000, func() {
			var err error
			if d, err = th.Allow(ctx, "k"); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations, want none", test.name, allocs)
		}
		if d.Allowed != test.allowed {
			t.Errorf("%s: allowed = %v", test.name, d.Allowed)
		}
	}
}

// Lists, policies and observers allocate nothing either, for known keys.
func TestInstrumentedAllocatesNothing(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	r, err := registry.New([]byte(`{"policies": {"spent": ["1/24h"], "wide": ["1000000000/24h"]}, "default": "spent",
		"keys": {"whole": "wide", "a:*": "wide", "a:b:*": "wide"}, "allow": ["good"], "deny": ["bad*"]}`), registry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	th := throttlertesting.New(t, throttler.Config{
		Policies: r, Allow: []string{"friend:*"}, Observer: throttler.Observers(
			newNearLimit(t, insight.NearLimitConfig{Notify: func(insight.NearLimitEvent) {}}), newRecorder(t, insight.Config{WatchedKeys: 100}),
		),
	})
	for key, allowed := range map[string]bool{
		"whole": true, "a:1": true, "a:b:1": true, "good": true, "friend:1": true, "bad:1": false, "k": false,
	} {
		ctx := t.Context()
		throttlertesting.Allow(t, th, key)
		var d throttler.Decision
		allocs := testing.AllocsPerRun(1000, func() {
			var err error
			if d, err = th.Allow(ctx, key); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 || d.Allowed != allowed {
			t.Errorf("%s: %v allocations, allowed %v, want none and %v", key, allocs, d.Allowed, allowed)
		}
	}
}

// AllowAll of few keys allocates its list of charges only.
func TestAllowAllAllocatesOnce(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	for _, max := range []int64{1, 1 << 40} {
		th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(max))})
		keys := []string{"a", "b"}
		throttlertesting.Allow(t, th, "a")
		allocs := testing.AllocsPerRun(1000, func() {
			if d, err := th.AllowAll(t.Context(), keys, 1); err != nil || d.Allowed != (max > 1) {
				t.Fatalf("%+v, %v", d, err)
			}
		})
		if allocs > 1 {
			t.Errorf("a limit of %d: %v allocations, want one", max, allocs)
		}
	}
}
