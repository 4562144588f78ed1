package rules_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
)

func parse(t testing.TB, texts ...string) *rules.Set {
	t.Helper()
	set, err := parseFiles(rules.Config{}, texts...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func parseFiles(cfg rules.Config, texts ...string) (*rules.Set, error) {
	var files []rules.File
	for i, text := range texts {
		files = append(files, rules.File{Name: fmt.Sprintf("%c.yaml", 'a'+i), Text: []byte(text)})
	}
	return rules.Parse(files, cfg)
}

// one is a file with one descriptor, whose members begin in line 3.
func one(members string) string {
	return "domain: web\ndescriptors:\n  - key: user\n    " + strings.ReplaceAll(members, "\n", "\n    ") + "\n"
}

// Each problem is reported with its file and line, and nothing of the file is in force.
func TestProblems(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"", []string{"a.yaml: must be one YAML document"}},
		{"a: [\n", []string{"a.yaml:"}},
		{"[]", []string{"a.yaml:1: the file must be an object", "a.yaml:1: the domain must not be empty"}},
		{"descriptors: []", []string{"a.yaml:1: the domain must not be empty"}},
		{"domain: web\ndomain: web", []string{"a.yaml:2: domain is given twice, first in line 1"}},
		{"domain: web\nratelimit: 1", []string{`a.yaml:2: the file has no member "ratelimit"`}},
		{"domain: web\n7: 1", []string{"a.yaml:2: the name of a member must be a text"}},
		{"domain: web\ndescriptors: {}", []string{"a.yaml:2: descriptors must be a list"}},
		{"domain: web\ndescriptors: [a]", []string{"a.yaml:2: the descriptor must be an object", "a.yaml:2: the key of a descriptor must not be empty"}},
		{"domain: web\ndescriptors:\n - value: a", []string{"a.yaml:3: the key of a descriptor must not be empty"}},
		{"domain: web\ndescriptors:\n - key: a\n - key: a", []string{"a.yaml:4: the key and value are those of another descriptor, a.yaml:3"}},
		{one("rate_limit: {unit: fortnight, requests_per_unit: 1}"), []string{"a.yaml:4: the unit must be"}},
		{one("rate_limit: {unit: unknown, requests_per_unit: 1}"), []string{"a.yaml:4: the unit must be"}},
		{one("rate_limit: {requests_per_unit: 1}"), []string{"a.yaml:4: the unit must be"}},
		{one("rate_limit: {unit: day, requests_per_unit: -1}"), []string{"a.yaml:4: requests_per_unit must be a whole number"}},
		{one("rate_limit: {unit: day, requests_per_unit: 4294967296}"), []string{"a.yaml:4: requests_per_unit must be a whole number"}},
		{one("rate_limit: {unit: day, requests_per_unit: '7'}"), []string{"a.yaml:4: requests_per_unit must be a whole number"}},
		{one("rate_limit: {unit: day, requests_per_unti: 7}"), []string{`a.yaml:4: rate_limit has no member "requests_per_unti"`}},
		{one("rate_limit: {unlimited: true, unit: day}"), []string{"a.yaml:4: an unlimited rule has no unit"}},
		{one("rate_limit: {unlimited: true}\nsluice: {overrun: true}"), []string{"a.yaml:5: an unlimited rule counts nothing"}},
		{one("rate_limit: {unit: day, name: a, replaces: [{name: a}]}"), []string{"a.yaml:4: a rule can't replace itself"}},
		{one("rate_limit: {unit: day, replaces: [{}]}"), []string{"a.yaml:4: an entry of replaces must have a name"}},
		{one("share_threshold: true"), []string{"a.yaml:4: share_threshold needs a value that ends with *"}},
		{one("shadow_mode: perhaps"), []string{"a.yaml:4: shadow_mode must be true or false"}},
		{one("sluice: {sliding: {precision: 1s}}"), []string{"a.yaml:4: sluice stands beside a rate_limit"}},
		{one("rate_limit: {unit: hour, requests_per_unit: 9}\nsluice: {sliding: {precision: 1s}}"), []string{"a.yaml:5: "}},
		{one("rate_limit: {unit: hour, requests_per_unit: 9}\nsluice: {sliding: {}}"), []string{"a.yaml:5: "}},
		{one("rate_limit: {unit: hour, requests_per_unit: 9}\nsluice: {bucket: {burst: 0}}"), []string{"a.yaml:5: burst = 0"}},
		{one("rate_limit: {unit: hour, requests_per_unit: 9}\nsluice: {sliding: {precision: 1m}, bucket: {burst: 1}}"), []string{"a.yaml:5: a limit is sliding or a bucket, not both"}},
		{one("rate_limit: {unit: hour, requests_per_unit: 9}\nsluice: {window: 1}"), []string{`a.yaml:5: sluice has no member "window"`}},
		{"domain: web\nsluice: {lease: {life: soon}}", []string{"a.yaml:2: life must be a positive duration"}},
		{"domain: web\nsluice: {lease: {processes: 4, slack: 1}}", []string{"a.yaml:2: slack must be a number from 0 to below 1"}},
		{"domain: web\nsluice: {lease: {slack: 0.1}}", []string{"a.yaml:2: slack needs processes"}},
		{"domain: web\nsluice:\n lease:\n  processes: 4294967295\n  flush: 1ns", []string{
			"a.yaml:4: processes = 4294967295: must be from 0", "a.yaml:5: flush = 1ns: must be from",
		}},
		{"domain: web\nsluice: {credit: {}}", []string{`a.yaml:2: sluice has no member "credit"`}},
		{"domain: web\ndescriptors: &a [{key: x, descriptors: *a}]", []string{"a.yaml:2: descriptors must be at most 64 levels deep"}},
		{"domain: web\ndescriptors:\n - &a {key: x, <<: *a}", []string{"a.yaml:3: merges must be at most 64 deep"}},
		{"domain: web\ndescriptors: [*a]", []string{"a.yaml:2: unknown anchor"}},
	} {
		set, err := parseFiles(rules.Config{}, tt.text)
		if err == nil || set != nil {
			t.Errorf("%q is accepted", tt.text)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		for i, want := range tt.want {
			if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
				t.Errorf("%q: %v; want %q", tt.text, err, want)
			}
		}
		if bad, ok := errors.AsType[*rules.Error](err); !ok || bad.File != "a.yaml" {
			t.Errorf("%q: %v", tt.text, bad)
		}
	}
}

// All problems of all files are reported, by line, without values of descriptors.
func TestAllProblems(t *testing.T) {
	t.Parallel()
	_, err := parseFiles(rules.Config{}, "domain: web\ndescriptors:\n- key: user\n  value: alice\n- key: user\n  value: alice\n- {}\n", "domain: web")
	const want = "a.yaml:5: the key and value are those of another descriptor, a.yaml:3\n" +
		"a.yaml:7: the key of a descriptor must not be empty\n" +
		"b.yaml:1: another file has the same domain"
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

// A billion laughs are refused.
func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	text := "domain: web\ndescriptors:\n - key: a\n   descriptors: &l0 [{key: a}]\n"
	for i := range 40 {
		text += fmt.Sprintf(" - key: b%d\n   descriptors: &l%d [{key: a, descriptors: *l%d}, {key: b, descriptors: *l%d}]\n", i, i+1, i, i)
	}
	if _, err := parseFiles(rules.Config{}, text); err == nil || !strings.Contains(err.Error(), "aliases expand to too much") {
		t.Errorf("%.200v", err)
	}
}

func TestMergeDomains(t *testing.T) {
	t.Parallel()
	const a, b = "domain: web\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]",
		"domain: web\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 2}}]"
	set, err := parseFiles(rules.Config{MergeDomains: true}, a, b)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.String(), "web.a: 1/24h@aligned, 1 per day\nweb.b: 2/24h@aligned, 2 per day\n"; got != want {
		t.Errorf("%q", got)
	}
	if _, err := parseFiles(rules.Config{MergeDomains: true}, a, a); err == nil || !strings.HasPrefix(err.Error(), "b.yaml:2: the key and value are those") {
		t.Errorf("%v", err)
	}
}

// What YAML 1.1 has, and the reference's parser with it, is read alike: anchors, merges, numbers as texts.
func TestYAML(t *testing.T) {
	t.Parallel()
	set := parse(t, `
domain: web
descriptors:
  - key: code
    value: 404
    rate_limit: &limit
      unit: Minute
      requests_per_unit: 1_000
    shadow_mode: yes
  - key: code
    value: 0500
    rate_limit: *limit
  - key: code
    rate_limit:
      <<: *limit
      requests_per_unit: 0x10
  - key: nothing
    value:
    descriptors:
`)
	const want = "web.code: 16/1m@aligned, 16 per minute\nweb.code_0500: 1000/1m@aligned, 1000 per minute\n" +
		"web.code_404: 1000/1m@aligned, 1000 per minute, shadow_mode\n"
	if got := set.String(); got != want {
		t.Errorf("%q", got)
	}
}

func TestUnitsAndExtensions(t *testing.T) {
	t.Parallel()
	for unit, want := range map[string]string{
		"second": "7/1s@aligned", "MINUTE": "7/1m@aligned", "hour": "7/1h@aligned", "day": "7/24h@aligned", "week": "7/168h@aligned",
		"month": "7/720h@aligned", "year": "7/8760h@aligned",
	} {
		got := parse(t, one("rate_limit: {unit: "+unit+", requests_per_unit: 7}")).String()
		if !strings.HasPrefix(got, "web.user: "+want+", 7 per ") {
			t.Errorf("%s: %q", unit, got)
		}
	}
	for text, want := range map[string]string{
		"sliding: {precision: 1s}":                 "web.user: 7/1m~1s, 7 per minute\n",
		"bucket: {burst: 20}":                      "web.user: 7/1m+20, 7 per minute\n",
		"overrun: true":                            "web.user: 7/1m@aligned, 7 per minute, overrun\n",
		"{sliding: {precision: 6s}, overrun: yes}": "web.user: 7/1m~6s, 7 per minute, overrun\n",
	} {
		if !strings.HasPrefix(text, "{") {
			text = "{" + text + "}"
		}
		if got := parse(t, one("rate_limit: {unit: minute, requests_per_unit: 7}\nsluice: "+text)).String(); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
	d := parse(t, "domain: Web.example/with a very long name indeed\nsluice: {lease: {processes: 3, batch: 5, life: 2s, recheck: 1s, slack: 0.05, flush: 20ms, least: 2}}\n"+
		"descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]")
	for r := range d.All() {
		if err := r.Policy.Validate(); err != nil {
			t.Error(err)
		}
	}
	for d := range d.Domains() {
		want := rules.Lease{
			Processes: 3, Batch: 5, Life: 2 * time.Second, Recheck: time.Second, Slack: 0.05, Flush: 20 * time.Millisecond, Least: 2,
		}
		if d.Lease == nil || *d.Lease != want {
			t.Errorf("%+v", d.Lease)
		}
	}
}
