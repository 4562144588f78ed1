package clitest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
)

// Report is the findings of a command.
type Report struct {
	Findings []struct {
		Severity, Check, What, Do string
		Where                     []struct{ Group, Server, Detail string }
	}
}

// Has reports whether there is such a finding about a server, or about none, with a text in What or in its Detail.
func (r Report) Has(severity, check, server, what string) bool {
	for _, f := range r.Findings {
		if f.Severity != severity || f.Check != check {
			continue
		}
		if len(f.Where) == 0 && server == "" && strings.Contains(f.What, what) {
			return true
		}
		for _, its := range f.Where {
			if its.Server == server && strings.Contains(f.What+": "+its.Detail, what) {
				return true
			}
		}
	}
	return false
}

// Findings runs a command that must have findings.
func Findings(t testing.TB, args ...string) (r Report) {
	t.Helper()
	got := Execute(t, append(args, "--json")...)
	if got.Code != cli.ExitFound {
		t.Fatalf("%v: %+v", args, got)
	}
	if err := json.Unmarshal([]byte(got.Stdout), &r); err != nil {
		t.Fatal(err)
	}
	return r
}
