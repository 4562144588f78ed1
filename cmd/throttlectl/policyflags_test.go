package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
)

func TestPolicyFlags(t *testing.T) {
	t.Parallel()
	p := policyFlags{name: "api", limits: []string{"100/1m", "daily=1000/24h", "10/1s+20"}}
	got, err := p.policy("")
	if err != nil {
		t.Fatal(err)
	}
	want := []limit.Limit{limit.PerMinute(100), limit.PerDay(1000).Named("daily"), limit.TokenBucket(10, time.Second, 20)}
	if got.Name != "api" || len(got.Limits) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if got.Limits[i] != want[i] {
			t.Errorf("limit %d is %v, want %v", i, got.Limits[i], want[i])
		}
	}
}

// All that is wrong is told at once, as the caller's own.
func TestPolicyFlagsRefuse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flags policyFlags
		texts []string
	}{
		{policyFlags{}, []string{"--limit or --policies is needed"}},
		{policyFlags{name: "api"}, []string{"--limit or --policies is needed"}},
		{policyFlags{file: "x", limits: []string{"1/1s"}}, []string{"--limit doesn't go with --policies"}},
		{policyFlags{file: "x"}, []string{"--policies needs --policy"}},
		{policyFlags{limits: []string{"1", "2/x"}}, []string{`"1"`, `"2/x"`}},
		{policyFlags{name: "No", limits: []string{"1/1s", "2/1s"}}, []string{`"No"`, "counts the same window"}},
	} {
		_, err := test.flags.policy("")
		if exitCode(err) != exitUsage {
			t.Errorf("%+v: %v, exit code %d", test.flags, err, exitCode(err))
			continue
		}
		for _, text := range test.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%+v: %v: want %q in it", test.flags, err, text)
			}
		}
	}
}

// policiesFile writes a document of a registry and returns its path.
func policiesFile(t testing.TB, document string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.json")
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const tiers = `{
  "version":  "2026-11-21",
  "policies": {"free": ["10/1s", "240/1h"], "pro": ["100/1s"], "trial": ["1/1s"]},
  "default":  "free",
  "keys":     {"tenant:7": "pro", "tenant:8": "pro", "internal:*": "pro"},
  "allow":    ["healthcheck", "addr:10.0.*"],
  "deny":     ["tenant:13"],
  "shadow":   {"free": "pro"}
}
`

// A key has the policy that applications give it by the same file, and a name has its own whatever the key.
func TestPoliciesFlag(t *testing.T) {
	t.Parallel()
	file := policiesFile(t, tiers)
	for _, test := range []struct{ name, key, want string }{
		{"", "tenant:1", "free"},
		{"", "tenant:7", "pro"},
		{"", "internal:x", "pro"},
		{"trial", "tenant:7", "trial"},
		{"trial", "", "trial"},
	} {
		flags := policyFlags{file: file, name: test.name}
		for range 2 { // usage asks twice
			got, err := flags.policy(test.key)
			if err != nil || got.Name != test.want || len(got.Limits) == 0 {
				t.Errorf("%+v: %+v, %v", test, got, err)
			}
		}
	}
	fail(t, exitFailure, `no policy "gold": there are free, pro, trial`, "load", "--memory", "--policies", file, "--policy", "gold")
	fail(t, exitFailure, "no such file", "load", "--memory", "--policies", file+".not", "--policy", "pro")
	fail(t, exitFailure, "line 1: default = none", "peek", "k", "--redis", "redis://127.0.0.1:1",
		"--policies", policiesFile(t, `{"policies": {}}`))
	succeed(t, "load", "--memory", "--policies", file, "--policy", "trial", "--for", "100ms", "--callers", "1")
}
