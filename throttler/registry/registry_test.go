package registry_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/registry"
)

// Which key has which limits stands in a document; Open follows one in a file.
func ExampleNew() {
	policies, err := registry.New([]byte(`{
		"policies": {"free": ["2/1m", "240/24h"], "pro": ["1000/1m"]},
		"default":  "free",
		"keys":     {"tenant:7": "pro", "internal:*": "pro"},
		"allow":    ["healthcheck"],
		"deny":     ["tenant:13"]
	}`), registry.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer policies.Close()
	t, err := throttler.New(throttler.Config{Policies: policies})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()

	for _, key := range []string{"tenant:6", "tenant:7", "internal:cron", "healthcheck", "tenant:13"} {
		d, err := t.Allow(context.Background(), key)
		if err != nil {
			log.Fatal(err)
		}
		policy, err := policies.View().Policy(context.Background(), key)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, d.Allowed, d.Source, policy.Name)
	}
	// Output:
	// tenant:6 true local free
	// tenant:7 true local pro
	// internal:cron true local pro
	// healthcheck true listed free
	// tenant:13 false listed free
}

func TestFindsTheLongestPrefix(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, tiers(`, "keys": {"a:1": "max", "b": "free", "a*": "pro", "a:*": "max", "a:1*": "free", "b*": "max"}`))
	for key, want := range map[string]string{
		"": "free", "A": "free", "a": "pro", "ab": "pro", "a:": "max", "a:0": "max", "a:1": "max", "a:10": "free", "a:2": "max",
		"a;": "pro", "b": "free", "ba": "max", "c": "free", "zzz": "free",
	} {
		if got := policyOf(r, key); got.Name != want {
			t.Errorf("%q has policy %s, want %s", key, got.Name, want)
		}
	}
}

// Against the plain way to find the longest prefix, on keys and prefixes of few letters, which share a lot.
func TestFindsWhatASearchFinds(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 21))
	word := func(least int) string {
		b := make([]byte, least+random.IntN(5))
		for i := range b {
			b[i] = "abc"[random.IntN(3)]
		}
		return string(b)
	}
	for range 300 {
		policies, prefixes := map[string]string{`"none"`: `["1/1s"]`}, map[string]string{}
		for i := range random.IntN(12) {
			name := fmt.Sprintf("p%d", i)
			policies[`"`+name+`"`], prefixes[word(1)] = `["1/1s"]`, name
		}
		document := `{"default": "none", "policies": {` + members(policies) + `}, "keys": {`
		quoted := map[string]string{}
		for p, name := range prefixes {
			quoted[`"`+p+`*"`] = `"` + name + `"`
		}
		r := newRegistry(t, document+members(quoted)+`}}`)
		for range 50 {
			key, want, longest := word(0), "none", ""
			for p, name := range prefixes {
				if strings.HasPrefix(key, p) && len(p) > len(longest) {
					want, longest = name, p
				}
			}
			if got := policyOf(r, key).Name; got != want {
				t.Fatalf("%q has policy %s, want %s, of %v", key, got, want, prefixes)
			}
		}
	}
}

func members(all map[string]string) string {
	var text []string
	for name, v := range all {
		text = append(text, name+": "+v)
	}
	return strings.Join(text, ", ")
}

// A new document leaves what it doesn't change: the address of a policy, and what keys have used.
func TestUpdate(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, tiers(`, "version": "one", "keys": {"k": "pro"}`))
	th := throttlertesting.New(t, throttler.Config{Policies: r})
	free, pro, first := r.Policy("free"), r.Policy("pro"), r.Info()
	if d, err := th.AllowN(t.Context(), "k", 20); err != nil || d.Remaining != 30 {
		t.Fatal(d, err)
	}
	bad := tiers(`, "keys": {"k": "gold"}`)
	if err := r.Update([]byte(bad)); err == nil || r.Info() != first || r.Policy("pro") != pro {
		t.Errorf("a bad document: %v, %+v in force", err, r.Info())
	}
	next := strings.Replace(tiers(`, "version": "two", "keys": {"k": "pro"}`), "50/1h", "60/1h", 1)
	if err := r.Update([]byte(next)); err != nil {
		t.Fatal(err)
	}
	if r.Policy("free") != free || r.Policy("pro") == pro || r.Policy("gold") != nil {
		t.Errorf("free %p, was %p; pro %p, was %p", r.Policy("free"), free, r.Policy("pro"), pro)
	}
	if d := throttlertesting.Allow(t, th, "k"); d.Remaining != 60-20-1 {
		t.Errorf("%d left after the change, want 39", d.Remaining)
	}
	if now := r.Info(); now.Version != "two" || now.Digest == first.Digest || len(now.Digest) != 64 || now.Loaded.Before(first.Loaded) {
		t.Errorf("%+v after %+v", now, first)
	}
	if err := r.Update([]byte(tiers(`, "deny": ["k"]`))); err != nil {
		t.Fatal(err)
	}
	if d := throttlertesting.Allow(t, th, "k"); d.Allowed || d.Source != throttler.Listed {
		t.Errorf("%+v of a key that is denied since", d)
	}
	var names []string
	for _, p := range r.Policies() {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"free", "max", "pro"}) {
		t.Errorf("policies %q", names)
	}
}

// Lists of the document and of the Config add up; to deny wins.
func TestLists(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, tiers(`, "allow": ["a", "x", "p:*"], "deny": ["b", "y"]`))
	th := throttlertesting.New(t, throttler.Config{Policies: r, Allow: []string{"b", "c"}, Deny: []string{"a", "z"}})
	for key, allowed := range map[string]bool{
		"a": false, "b": false, "c": true, "x": true, "y": false, "z": false, "p:1": true,
	} {
		if d := throttlertesting.Allow(t, th, key); d.Allowed != allowed || d.Source != throttler.Listed {
			t.Errorf("%s: %+v, want allowed %v", key, d, allowed)
		}
	}
}

func TestBesidePolicyFor(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, tiers(`, "keys": {"k": "pro"}`))
	th := throttlertesting.New(t, throttler.Config{Policies: r,
		PolicyFor: func(_ context.Context, key string) *limit.Policy {
			if key == "asked" {
				return r.Policy("max")
			}
			return nil
		}})
	for key, want := range map[string]int64{"asked": 499, "k": 49, "other": 4} {
		if d := throttlertesting.Allow(t, th, key); d.Remaining != want {
			t.Errorf("%s has %d left, want %d", key, d.Remaining, want)
		}
	}
	_, err := throttler.New(throttler.Config{Policies: r, Policy: limit.Policy{Name: "test", Limits: []limit.Limit{limit.PerHour(1)}}})
	if got := fields(err); !slices.Equal(got, []string{"Policy"}) {
		t.Errorf("a policy beside a registry: %v", err)
	}
}

func TestDuringUpdates(t *testing.T) {
	t.Parallel()
	a, b := []byte(tiers(`, "keys": {"k": "pro"}`)), []byte(tiers(`, "keys": {"k": "max"}`))
	r := newRegistry(t, string(a))
	th := throttlertesting.New(t, throttler.Config{Policies: r})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				if d, err := th.Allow(t.Context(), "k"); err != nil || d.Limit == (limit.Limit{}) {
					t.Error(d, err)
				}
			}
		})
	}
	for i := range 100 {
		if err := r.Update([][]byte{a, b}[i%2]); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func BenchmarkView(b *testing.B) {
	keys := map[string]string{}
	for i := range 10_000 {
		keys[fmt.Sprintf(`"tenant:%d"`, i)] = `"pro"`
	}
	for i := range 1000 {
		keys[fmt.Sprintf(`"network:%d:*"`, i)] = `"pro"`
	}
	r := newRegistry(b, tiers(`, "keys": {`+members(keys)+`}, "deny": ["bad"]`))
	for _, key := range []string{"tenant:500", "network:500:9", "user:42"} {
		b.Run("find "+key, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				policyOf(r, key)
			}
		})
	}
	th := throttlertesting.New(b, throttler.Config{Policies: newRegistry(b, `{"default": "p", "policies": {"p": ["100000000000/24h"]}}`)})
	ctx := context.Background()
	b.Run("allow", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := th.Allow(ctx, "user:42"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A document that comes into force while a request is on its way is not for that request: neither its lists nor its limits.
func TestAnswersFromOneDocument(t *testing.T) {
	t.Parallel()
	const (
		denying = `{"policies": {"free": ["100/1h"]}, "default": "free", "deny": ["k", "other"]}`
		binding = `{"policies": {"free": ["100/1h"], "tiny": ["1/1h"]}, "default": "free", "keys": {"k": "tiny"}}`
	)
	r := newRegistry(t, denying)
	var next string // what comes into force under way
	th := throttlertesting.New(t, throttler.Config{Policies: r, PolicyFor: func(context.Context, string) *limit.Policy {
		if err := r.Update([]byte(next)); err != nil {
			t.Error(err)
		}
		return nil
	}})
	for name, ask := range map[string]func() (throttler.Decision, error){
		"allow": func() (throttler.Decision, error) { return th.AllowN(t.Context(), "k", 50) },
		"all":   func() (throttler.Decision, error) { return th.AllowAll(t.Context(), []string{"other", "k"}, 50) },
		"peek":  func() (throttler.Decision, error) { return th.Peek(t.Context(), "k") },
		"reserve": func() (throttler.Decision, error) {
			r, err := th.Reserve(t.Context(), "k", 50)
			return r.Decision(), err
		},
	} {
		next = denying
		if _, err := th.Allow(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		next = binding
		if d, err := ask(); err != nil || d.Allowed || d.Source != throttler.Listed {
			t.Errorf("%s: %+v, %v, want a denial by the list", name, d, err)
		}
	}
}
