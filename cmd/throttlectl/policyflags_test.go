package main

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
)

func TestPolicyFlags(t *testing.T) {
	t.Parallel()
	p := policyFlags{name: "api", limits: []string{"100/1m", "daily=1000/24h", "10/1s+20"}}
	got, err := p.policy()
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
		{policyFlags{}, []string{"--limit is needed"}},
		{policyFlags{name: "api"}, []string{"--limit is needed"}},
		{policyFlags{limits: []string{"1", "2/x"}}, []string{`"1"`, `"2/x"`}},
		{policyFlags{name: "No", limits: []string{"1/1s", "2/1s"}}, []string{`"No"`, "counts the same window"}},
	} {
		_, err := test.flags.policy()
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
