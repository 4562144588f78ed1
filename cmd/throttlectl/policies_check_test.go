package main

import (
	"strings"
	"testing"
)

func TestPoliciesCheck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, document, stderr string
		code                   int
	}{
		{"policies", tiers, "", exitOK},
		{
			"policies_vain", strings.Replace(tiers, `"tenant:13"`, `"tenant:13", "addr:10.0.*"`, 1),
			"throttlectl: found: 1 warning\n", exitFound,
		},
		{
			"policies_refused",
			`{
  "policies": {"free": ["10/1x", "0/1s"], "No": ["1/1s"]},
  "keys": {"tenant:7": "gold"},
  "defaults": "free"
}
`,
			"throttlectl: found: 6 critical\n", exitFound,
		},
	} {
		file := policiesFile(t, test.document)
		for suffix, args := range map[string][]string{".txt": nil, ".json": {"--json"}} {
			got := execute(t, append([]string{"policies", "check", file}, args...)...)
			if got.code != test.code || got.stderr != test.stderr {
				t.Errorf("%s: exit code %d, stderr %q", test.name, got.code, got.stderr)
			}
			if strings.Contains(got.stdout, "tenant") {
				t.Errorf("%s: a key in %s", test.name, got.stdout)
			}
			golden(t, test.name+suffix, got.stdout)
		}
	}
	fail(t, exitFailure, "no such file", "policies", "check", policiesFile(t, tiers)+".not")
	fail(t, exitUsage, "0 arguments: want FILE", "policies", "check")
}
