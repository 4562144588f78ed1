package insight_test

import (
	"context"
	"encoding/json"
	"expvar"
	"fmt"
	"log"
	"slices"
	"sync"
	"testing"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// The expvar package shows them at /debug/vars; Handler serves them by themselves.
func ExampleRecorder() {
	policy := limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(2)}}
	recorder, err := insight.New(insight.Config{Policies: []limit.Policy{policy}})
	if err != nil {
		log.Fatal(err)
	}
	t, err := throttler.New(throttler.Config{Policy: policy, Observer: recorder})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	expvar.Publish("sluice", expvar.Func(func() any { return recorder.Stats() }))
	for range 3 {
		if _, err := t.Allow(context.Background(), "user:42"); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(expvar.Get("sluice"))
	// Output:
	// {"policies":[{"policy":"api","limits":["2/1m"],"allowed":2,"denied":1,"errors":0,"exposure":0,"denial_share":0.016,"decisions":[{"allowed":false,"source":"local","guarantee":"exact","count":1},{"allowed":true,"source":"local","guarantee":"exact","count":2}]}],"shadow":{"allowed":0,"denied":0,"failed":0,"dropped":0}}
}

// TestEditedPolicies: a Recorder shows the limits that New was given.
func TestEditedPolicies(t *testing.T) {
	t.Parallel()
	policies := []limit.Policy{{Name: "a", Limits: []limit.Limit{limit.PerMinute(2)}}}
	recorder := newRecorder(t, insight.Config{Policies: policies})
	policies[0].Limits[0], policies[0] = limit.PerMinute(9), limit.Policy{Name: "b"}
	got := recorder.Stats().Policies
	if len(got) != 1 || got[0].Policy != "a" || len(got[0].Limits) != 1 || got[0].Limits[0] != limit.PerMinute(2) {
		t.Errorf("%+v", got)
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	r := newRegistry(t, tiers(`, "version": "v", "keys": {"p": "pro"}, "deny": ["bad"]`))
	recorder := newRecorder(t, insight.Config{Registry: r, WatchedKeys: 20})
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policies: r, Observer: recorder})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				throttlertesting.Allow(t, th, "p") // 50 of 80
				throttlertesting.Allow(t, th, "bad")
			}
		})
	}
	wg.Wait()
	b.failWith(errDown)
	if d, err := th.AllowN(t.Context(), "p", 3); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if _, err := th.AllowN(t.Context(), "p", -1); err == nil {
		t.Fatal("no error")
	}

	s := recorder.Stats()
	if s.Registry == nil || *s.Registry != r.Info() || len(s.TopDenied) != 1 || s.TopDenied[0].Denied != 30 {
		t.Errorf("%+v", s)
	}
	var got []string
	for _, p := range s.Policies {
		got = append(got, fmt.Sprint(p.Policy, p.Limits, p.Allowed, p.Denied, p.Errors, p.Exposure, p.Decisions))
	}
	want := []string{
		"free[5/1h] 0 80 0 0 [{false listed exact 80}]",
		"max[500/1h daily=1000/24h] 0 0 0 0 []",
		"pro[50/1h] 51 30 1 3 [{false local exact 30} {true local exact 50} {true fallback bounded 1}]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if share := s.Policies[0].DenialShare; share < 0.6 || share > 1 {
		t.Errorf("denial share %v where all is denied", share)
	}
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
}

// Names of policies beyond the first hundred are counted together.
func TestStatsAreBounded(t *testing.T) {
	t.Parallel()
	recorder := newRecorder(t, insight.Config{Policies: []limit.Policy{throttlertesting.One(limit.PerHour(1))}})
	th := throttlertesting.New(t, throttler.Config{
		Policy: throttlertesting.One(limit.PerHour(1)), Observer: recorder,
		PolicyFor: func(_ context.Context, key string) *limit.Policy {
			return &limit.Policy{Name: key, Limits: []limit.Limit{limit.PerHour(1)}}
		},
	})
	for i := range 150 {
		throttlertesting.Allow(t, th, fmt.Sprint("p", i))
	}
	s, total := recorder.Stats(), int64(0)
	for _, p := range s.Policies {
		total += p.Allowed
		if p.Policy == "_OTHER" && p.Allowed != 50 {
			t.Errorf("%+v, want 50", p)
		}
	}
	if len(s.Policies) != 101 || total != 150 { // _OTHER; test, which nobody has, may be among them
		t.Errorf("%d policies with %d decisions", len(s.Policies), total)
	}
}

// The policies of a registry are shown if they may be enforced, but for those that are counted among the others.
func TestStatsOfARegistry(t *testing.T) {
	t.Parallel()
	small := newRegistry(t, `{"policies": {"free": ["1/1h"], "pro": ["2/1h"], "for_policyfor": ["3/1h"], "next": ["1/2h"], "both": ["1/3h"]},
		"default": "free", "keys": {"p*": "pro", "b": "both"}, "shadow": {"free": "next", "pro": "both"}}`)
	var names []string
	for _, p := range newRecorder(t, insight.Config{Registry: small}).Stats().Policies {
		names = append(names, p.Policy)
	}
	if got := fmt.Sprint(names); got != "[both for_policyfor free pro]" {
		t.Errorf("shown: %s", got)
	}

	document := `{"default": "p0", "policies": {"p0": ["9/1h"]`
	keys := `"k0": "p0"`
	for i := 1; i < 120; i++ {
		document += fmt.Sprintf(`, "p%d": ["9/1h"]`, i)
		keys += fmt.Sprintf(`, "k%d": "p%d"`, i, i)
	}
	large := newRegistry(t, document+`}, "keys": {`+keys+`}}`)
	recorder := newRecorder(t, insight.Config{Registry: large})
	th := throttlertesting.New(t, throttler.Config{Policies: large, Observer: recorder})
	for i := range 120 {
		throttlertesting.Allow(t, th, fmt.Sprint("k", i))
	}
	total := int64(0)
	for _, p := range recorder.Stats().Policies {
		if total += p.Allowed; p.Allowed == 0 {
			t.Errorf("%s is shown with no decisions", p.Policy)
		}
	}
	if total != 120 {
		t.Errorf("%d decisions, want 120", total)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := insight.New(insight.Config{WatchedKeys: 1<<16 + 1, HalfLife: -1, HashKey: make([]byte, 15)})
	if got := fields(err); !slices.Equal(got, []string{"WatchedKeys", "HalfLife", "HashKey"}) {
		t.Errorf("%v", err)
	}
}

func BenchmarkRecorder(b *testing.B) {
	for name, observer := range map[string]throttler.Observer{
		"off": nil, "decisions": newRecorder(b, insight.Config{}), "most denied, too": newRecorder(b, insight.Config{WatchedKeys: 1024}),
	} {
		for _, max := range []int64{1, 1 << 40} {
			th := throttlertesting.New(b, throttler.Config{Policy: throttlertesting.One(limit.PerDay(max)), Observer: observer})
			b.Run(fmt.Sprintf("%s, allowed %t", name, max > 1), func(b *testing.B) {
				b.ReportAllocs()
				ctx := context.Background()
				for b.Loop() {
					if _, err := th.Allow(ctx, "user:42"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	th, _ := denying(b, insight.Config{WatchedKeys: 1024})
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = fmt.Sprint("user:", i)
	}
	b.Run("most denied, each time another key", func(b *testing.B) {
		b.ReportAllocs()
		ctx, i := context.Background(), 0
		for b.Loop() {
			i++
			if _, err := th.Allow(ctx, keys[i%len(keys)]); err != nil {
				b.Fatal(err)
			}
		}
	})
}
