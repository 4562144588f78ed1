package policies_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/policies"
	"github.com/sluice-go/sluice/limit"
)

func TestPolicyFlags(t *testing.T) {
	t.Parallel()
	p := policies.Selector{Name: "api", Limits: []string{"100/1m", "daily=1000/24h", "10/1s+20"}}
	got, err := p.Policy("")
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
		flags policies.Selector
		texts []string
	}{
		{policies.Selector{}, []string{"--limit or --policies is needed"}},
		{policies.Selector{Name: "api"}, []string{"--limit or --policies is needed"}},
		{policies.Selector{File: "x", Limits: []string{"1/1s"}}, []string{"--limit doesn't go with --policies"}},
		{policies.Selector{File: "x"}, []string{"--policies needs --policy"}},
		{policies.Selector{Limits: []string{"1", "2/x"}}, []string{`"1"`, `"2/x"`}},
		{policies.Selector{Name: "No", Limits: []string{"1/1s", "2/1s"}}, []string{`"No"`, "counts the same window"}},
	} {
		_, err := test.flags.Policy("")
		if cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%+v: %v, exit code %d", test.flags, err, cli.ExitCode(err))
			continue
		}
		for _, text := range test.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%+v: %v: want %q in it", test.flags, err, text)
			}
		}
	}
}

// A key has the policy that applications give it by the same file, and a name has its own whatever the key.
func TestPoliciesFlag(t *testing.T) {
	t.Parallel()
	file := fixture.PoliciesFile(t, fixture.Tiers)
	for _, test := range []struct{ name, key, want string }{
		{"", "tenant:1", "free"},
		{"", "tenant:7", "pro"},
		{"", "internal:x", "pro"},
		{"trial", "tenant:7", "trial"},
		{"trial", "", "trial"},
	} {
		flags := policies.Selector{File: file, Name: test.name}
		for range 2 { // usage asks twice
			got, err := flags.Policy(test.key)
			if err != nil || got.Name != test.want || len(got.Limits) == 0 {
				t.Errorf("%+v: %+v, %v", test, got, err)
			}
		}
	}
	clitest.Fail(t, cli.ExitFailure, `no policy "gold": there are free, pro, trial`, "load", "--memory", "--policies", file, "--policy", "gold")
	clitest.Fail(t, cli.ExitFailure, "no such file", "load", "--memory", "--policies", file+".not", "--policy", "pro")
	clitest.Fail(t, cli.ExitFailure, "line 1: default = none", "peek", "k", "--redis", "redis://127.0.0.1:1",
		"--policies", fixture.PoliciesFile(t, `{"policies": {}}`))
	clitest.Succeed(t, "load", "--memory", "--policies", file, "--policy", "trial", "--for", "100ms", "--callers", "1")
}
