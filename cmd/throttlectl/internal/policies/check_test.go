package policies_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
)

func TestPoliciesCheck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, document, stderr string
		code                   int
	}{
		{"policies", fixture.Tiers, "", cli.ExitOK},
		{
			"policies_vain", strings.Replace(fixture.Tiers, `"tenant:13"`, `"tenant:13", "addr:10.0.*"`, 1),
			"throttlectl: found: 1 warning\n", cli.ExitFound,
		},
		{
			"policies_never", strings.NewReplacer(
				`"tenant:13"`, `"tenant:13", "addr:2001:db8::1", "addr:2001:db8:1::/48", "addr:2001:db8::2", "addr:2001:db8::/64"`,
				`"tenant:7"`, `"addr:10.0.0.0/8": "pro", "tenant:7"`,
			).Replace(fixture.Tiers),
			"throttlectl: found: 3 warnings\n", cli.ExitFound,
		},
		{
			"policies_refused",
			`{
  "policies": {"free": ["10/1x", "0/1s"], "No": ["1/1s"]},
  "keys": {"tenant:7": "gold"},
  "defaults": "free"
}
`,
			"throttlectl: found: 6 critical\n", cli.ExitFound,
		},
	} {
		file := fixture.PoliciesFile(t, test.document)
		for suffix, args := range map[string][]string{".txt": nil, ".json": {"--json"}} {
			got := clitest.Execute(t, append([]string{"policies", "check", file}, args...)...)
			if got.Code != test.code || got.Stderr != test.stderr {
				t.Errorf("%s: exit code %d, stderr %q", test.name, got.Code, got.Stderr)
			}
			if strings.Contains(got.Stdout, "tenant") {
				t.Errorf("%s: a key in %s", test.name, got.Stdout)
			}
			fixture.Golden(t, test.name+suffix, got.Stdout)
		}
	}
	clitest.Fail(t, cli.ExitFailure, "no such file", "policies", "check", fixture.PoliciesFile(t, fixture.Tiers)+".not")
	clitest.Fail(t, cli.ExitUsage, "0 arguments: want FILE", "policies", "check")
}

// A YAML file says the same as the JSON file, but for its digest.
func TestPoliciesCheckOfYAML(t *testing.T) {
	t.Parallel()
	file := strings.TrimSuffix(fixture.PoliciesFile(t, fixture.Tiers), ".json") + ".yaml"
	if err := os.WriteFile(file, []byte("# tiers\n"+fixture.Tiers), 0o600); err != nil { // JSON is YAML
		t.Fatal(err)
	}
	digest := regexp.MustCompile("[0-9a-f]{64}")
	want := clitest.Succeed(t, "policies", "check", fixture.PoliciesFile(t, fixture.Tiers))
	if got := clitest.Succeed(t, "policies", "check", file); digest.ReplaceAllString(got, "") != digest.ReplaceAllString(want, "") || got == want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if err := os.WriteFile(file, []byte("policies: {free: [1/1s]}\ndefault: free\nallow:\n  - *tenant\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := clitest.Execute(t, "policies", "check", file)
	if got.Code != cli.ExitFound || !strings.Contains(got.Stdout, "line 4: document") || strings.Contains(got.Stdout, "*tenant") {
		t.Errorf("%+v", got)
	}
}

// An entry of allow has no effect where deny matches all that it matches.
func TestPoliciesCheckFindsWhatIsDenied(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		allow, deny string
		vain        bool
	}{
		{"addr:10.0.0.1", "addr:10.0.0.1", true},
		{"addr:10.0.0.1", "addr:10.*", true},
		{"addr:10.1.*", "addr:10.*", true},
		{"addr:10.*", "addr:10.*", true},
		{"a", "*", true},
		{"*", "*", true},
		{"a*", "aa", false},
		{"a*", "aa*", false},
		{"a", "a*", true},
		{"a*", "a", false},
		{"a*", "b*", false},
		{"addr:10.0.0.1", "addr:10.0.0.2", false},
	} {
		file := fixture.PoliciesFile(t, strings.NewReplacer(`"healthcheck", "addr:10.0.*"`, `"`+test.allow+`"`, "tenant:13", test.deny).Replace(fixture.Tiers))
		want := cli.ExitOK
		if test.vain {
			want = cli.ExitFound
		}
		got := clitest.Execute(t, "policies", "check", file)
		if got.Code != want || test.vain != strings.Contains(got.Stdout, "entries of allow that deny has, too, and denies: 1 (number 1)") {
			t.Errorf("allow %s, deny %s: %+v", test.allow, test.deny, got)
		}
	}
}
