package flags_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/featureflag"
)

const stored = `{
  "use-redis": {"percent": 12.5, "version": 7},
  "new-limits": {"percent": 100, "version": 3, "killed": true}
}
`

// flags writes a file of flags and returns its path.
func flags(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "flags.json")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// transcript runs one command after the other, both as text and as JSON, and returns what was printed.
func transcript(t *testing.T, source []string, json bool, commands ...[]string) string {
	t.Helper()
	var b strings.Builder
	for _, args := range commands {
		b.WriteString("$ " + strings.Join(args, " ") + "\n")
		args = append(append([]string{"flag"}, args...), source...)
		if json {
			args = append(args, "--json")
		}
		b.WriteString(clitest.Succeed(t, args...))
	}
	return fixture.Steady(b.String())
}

// script is what an operator does to two flags, one of them killed.
var script = [][]string{
	{"get", "use-redis"},
	{"get", "new-limits"},
	{"set", "use-redis", "25"},
	{"set", "use-redis", "33.3%"},
	{"kill", "use-redis"},
	{"get", "use-redis"},
	{"set", "use-redis", "0"},
	{"revive", "use-redis"},
	{"set", "fresh", "1e1"},
	{"kill", "another"},
	{"get", "fresh"},
}

func TestFlagFile(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, "flag.txt", transcript(t, []string{"--file", flags(t, stored)}, false, script...))
	fixture.Golden(t, "flag.json", transcript(t, []string{"--file", flags(t, stored)}, true, script...))
}

// A file that isn't there is made.
func TestFlagFileIsNew(t *testing.T) {
	t.Parallel()
	got := clitest.Succeed(t, "flag", "set", "fresh", "10", "--file", filepath.Join(t.TempDir(), "flags.json"))
	if !strings.HasPrefix(got, "fresh: none -> 10% (version ") {
		t.Errorf("got %q", got)
	}
}

// What the tool writes is what applications read.
func TestFlagFileIsTheApplications(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "flags.json") // made by the first set
	clitest.Succeed(t, "flag", "set", "use-redis", "12.5", "--file", path)
	clitest.Succeed(t, "flag", "kill", "use-redis", "--file", path)
	v, err := featureflag.File(path).Load(t.Context(), "use-redis")
	if err != nil || v.Percent != 12.5 || !v.Killed || v.Version == 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestFlagFailures(t *testing.T) {
	t.Parallel()
	path, broken := flags(t, stored), flags(t, `{"use-redis": {"percent": 101, "version": 1}}`)
	clitest.Fail(t, cli.ExitFailure, `flag "absent": `+path+": no such flag", "flag", "get", "absent", "--file", path)
	clitest.Fail(t, cli.ExitFailure, "no such flag", "flag", "revive", "absent", "--file", path)
	clitest.Fail(t, cli.ExitFailure, "no such file", "flag", "get", "use-redis", "--file", path+".not")
	clitest.Fail(t, cli.ExitFailure, "no such file", "flag", "get", "use-redis", "--file", path+".not", "--json")
	// The percentage is out of range here, too, but in the file and not on the command line.
	clitest.Fail(t, cli.ExitFailure, "must be 0 to 100", "flag", "get", "use-redis", "--file", broken)
	clitest.Fail(t, cli.ExitFailure, "must be 0 to 100", "flag", "set", "use-redis", "5", "--file", broken)
	if text, err := os.ReadFile(path); err != nil || string(text) != stored {
		t.Errorf("the file is now %q, %v", text, err)
	}
}
