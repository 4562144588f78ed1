package rules_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
)

// entries reads "key=value key=value".
func entries(text string) (all []*ratelimit.RateLimitDescriptor_Entry) {
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		all = append(all, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return all
}

const basic = `
domain: web
descriptors:
  - key: key1
    value: value1
    descriptors:
      - key: subkey1
        rate_limit: {unit: second, requests_per_unit: 5}
      - key: subkey1
        value: subvalue1
        rate_limit: {unit: second, requests_per_unit: 10}
  - key: key2
    rate_limit: {unit: minute, requests_per_unit: 20}
  - key: key2
    value: value2
    rate_limit: {unit: minute, requests_per_unit: 30}
  - key: key2
    value: value3
  - key: key5
    value: value5
    rate_limit: {unit: day, requests_per_unit: 15}
    descriptors:
      - key: subkey5
        rate_limit: {unit: day, requests_per_unit: 25}
  - key: wild
    value: a*
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: wild
    value: ab*
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: wild
    value: abc
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: wild
    rate_limit: {unit: day, requests_per_unit: 4}
  - key: nest
    value: n*
    descriptors:
      - key: sub
        value: s*
        rate_limit: {unit: day, requests_per_unit: 6}
  - key: any*
    rate_limit: {unit: day, requests_per_unit: 7}
`

// The most specific descriptor at each level wins, and the number of entries is that of the levels.
func TestMatch(t *testing.T) {
	t.Parallel()
	d := parse(t, basic).Domain("web")
	for _, tt := range []struct {
		entries string
		want    uint32 // requests_per_unit; 0: no limit
		path    string
	}{
		{"", 0, ""},
		{"unknown=a", 0, ""},
		{"key1=value1", 0, ""},
		{"key1=other subkey1=a", 0, ""},
		{"key1=value1 subkey1=a", 5, "web.key1_value1.subkey1"},
		{"key1=value1 subkey1=", 5, "web.key1_value1.subkey1"},
		{"key1=value1 subkey1=subvalue1", 10, "web.key1_value1.subkey1_subvalue1"},
		{"key1=value1 subkey1=a more=b", 0, ""},
		{"key2=a", 20, "web.key2"},
		{"key2=value2", 30, "web.key2_value2"},
		{"key2=value2 more=b", 0, ""},
		{"key2=value3", 0, ""}, // listed without a limit: exempt
		{"key5=value5", 15, "web.key5_value5"},
		{"key5=value5 subkey5=a", 25, "web.key5_value5.subkey5"},
		{"wild=abx", 1, "web.wild_a*"}, // the first wildcard that fits
		{"wild=abc", 3, "web.wild_abc"},
		{"wild=x", 4, "web.wild"},
		{"nest=n1 sub=s1", 6, "web.nest_n*.sub_s*"},
		{"nest=n1 sub=x", 0, ""},
		{"anything=x", 7, "web.any*"},
		{"key2_value2=", 0, ""}, // keys and values are not joined
	} {
		m := d.Match(entries(tt.entries))
		switch {
		case tt.want == 0 && m.Rule == nil:
		case m.Rule == nil || m.Rule.Limit.RequestsPerUnit != tt.want || m.Path != tt.path || m.Rule.Path != tt.path:
			t.Errorf("%s: %+v; want %d, %s", tt.entries, m, tt.want, tt.path)
		}
	}
}

func TestKeysAndPaths(t *testing.T) {
	t.Parallel()
	set := parse(t, `
domain: web
descriptors:
  - key: files
    value: files/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: own
    value: files/*
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: route
    value_to_metric: true
    descriptors:
      - key: method
        value_to_metric: true
        descriptors:
          - key: subject
            rate_limit: {unit: hour, requests_per_unit: 10}
  - key: api
    value: api/*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - key: method
        detailed_metric: true
        rate_limit: {unit: hour, requests_per_unit: 10}
  - key: user
    value_to_metric: true
    descriptors:
      - key: action
        value: read*
        value_to_metric: true
        descriptors:
          - key: resource
            rate_limit: {unit: hour, requests_per_unit: 10}
`)
	for _, tt := range []struct{ entries, key, path string }{
		{"files=files/a", `web|files~files/*`, "web.files_files/*"},
		{"files=files/*", `web|files~files/*`, "web.files_files/*"},
		{"own=files/a", `web|own=files/a`, "web.own_files/*"},
		{"detailed=x", `web|detailed=x`, "web.detailed_x"},
		{"route=api method=GET subject=123", `web|route=api|method=GET|subject=123`, "web.route_api.method_GET.subject"},
		{"api=api/v1 method=GET", `web|api~api/*|method=GET`, "web.api_api/*.method_GET"},
		{"user=alice action=readfile resource=documents", `web|user=alice|action=readfile|resource=documents`, "web.user_alice.action_readfile.resource"},
	} {
		if m := set.Domain("web").Match(entries(tt.entries)); m.Rule == nil || m.Key != tt.key || m.Path != tt.path {
			t.Errorf("%s: %+v; want %s, %s", tt.entries, m, tt.key, tt.path)
		}
	}
}

// No two descriptors share a key, whatever is in their values: the encoding has an inverse.
func TestKeysAreInjective(t *testing.T) {
	t.Parallel()
	d := parse(t, "domain: w|b\ndescriptors: [{key: a, rate_limit: &l {unit: day, requests_per_unit: 1}, descriptors: [{key: b, rate_limit: *l}, {key: '|b', rate_limit: *l}]}, {key: a=, rate_limit: *l}]").Domain("w|b")
	r := rand.New(rand.NewPCG(1, 2))
	const alphabet = `ab|=~\`
	word := func() string {
		b := make([]byte, r.IntN(4))
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		return string(b)
	}
	seen := make(map[string]string)
	for range 20_000 {
		es := []*ratelimit.RateLimitDescriptor_Entry{{Key: "a", Value: word()}}
		switch r.IntN(4) {
		case 2:
			es = append(es, &ratelimit.RateLimitDescriptor_Entry{Key: "|b", Value: word()})
		case 0:
			es[0].Key = "a="
		case 1:
			es = append(es, &ratelimit.RateLimitDescriptor_Entry{Key: "b", Value: word()})
		}
		what := ""
		for _, e := range es {
			what += e.Key + "\x00" + e.Value + "\x01"
		}
		m := d.Match(es)
		if m.Rule == nil {
			t.Fatal(what)
		}
		if other, has := seen[m.Key]; has && other != what {
			t.Fatalf("%q and %q have one key", what, other)
		}
		seen[m.Key] = what
	}
	if len(seen) < 1000 {
		t.Errorf("only %d keys", len(seen))
	}
}

// A limit that a request brings along is counted where the rule would be.
func TestOverride(t *testing.T) {
	t.Parallel()
	d := parse(t, basic).Domain("web")
	o := &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3, Unit: typev3.RateLimitUnit_MINUTE}
	m, err := d.Override(entries("key2=value2"), o)
	if err != nil || m.Rule.Policy.Limits[0].String() != "3/1m@aligned" || m.Path != "web.key2_value2" {
		t.Errorf("%+v, %v", m, err)
	}
	if own := d.Match(entries("key2=value2")); own.Key != m.Key || own.Rule.Policy.Name != m.Rule.Policy.Name {
		t.Errorf("%+v and %+v", own, m)
	}
	for i := range uint32(5000) { // policies are bounded, and kept meanwhile
		o.RequestsPerUnit = i + 1
		a, _ := d.Override(entries("key2=x"), o)
		b, _ := d.Override(entries("key2=y"), o)
		if a.Rule != b.Rule {
			t.Fatal("the policy of one limit has two addresses")
		}
	}
	o.Unit = typev3.RateLimitUnit_UNKNOWN
	if _, err := d.Override(entries("key2=value2"), o); err == nil {
		t.Error("an unknown unit is accepted")
	}
	o.Unit, o.RequestsPerUnit = typev3.RateLimitUnit_DAY, 0
	if m, err := d.Override(entries("key2=value2"), o); err != nil || m.Rule.Policy != nil {
		t.Errorf("%+v, %v", m, err)
	}
}

func BenchmarkMatch(b *testing.B) {
	d := parse(b, basic).Domain("web")
	es := entries("key1=value1 subkey1=alice")
	b.ReportAllocs()
	for b.Loop() {
		if m := d.Match(es); m.Rule == nil {
			b.Fatal(m)
		}
	}
}

// A name in metrics that holds values of requests is bounded, and two long ones differ.
func TestLongPaths(t *testing.T) {
	t.Parallel()
	d := parse(t, one("detailed_metric: true\nrate_limit: {unit: day, requests_per_unit: 7}")).Domain("web")
	names := make(map[string]bool)
	for _, size := range []int{10, 1000, 1001} {
		entries := []*ratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: strings.Repeat("\u00fc", size)}}
		brought, err := d.Override(entries, &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_DAY})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []rules.Match{d.Match(entries), brought} {
			domain, first, below := m.Split()
			if !m.Rule.Dynamic() || domain != "web" || !strings.HasPrefix(first, "user_") || below != "" || len(m.Path) > 300 || !utf8.ValidString(m.Path) {
				t.Errorf("%q: %q, %q, %q", m.Path, domain, first, below)
			}
			names[m.Path] = true
		}
	}
	if len(names) != 3 {
		t.Errorf("%d names", len(names))
	}
}
