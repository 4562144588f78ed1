package simulate_test

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
)

// A result depends on the command line alone.
func TestSimulate(t *testing.T) {
	t.Parallel()
	compare := []string{
		"simulate", "--limit", "10/1s", "--limit", "240/1h", "--compare", "100/1m,100/1m@staggered,100/1m~1s,100/1m+100",
		"--shape", "bursts:50@10s", "--shape", "wave:0/s,10/s@3m", "--keys", "3", "--zipf", "1", "--seed", "7",
	}
	csv := []string{"simulate", "--limit", "10/1s", "--csv", filepath.Join("testdata", "simulate.csv")}
	for name, args := range map[string][]string{"simulate": compare, "simulate_csv": csv} {
		svg := filepath.Join(t.TempDir(), "picture.svg")
		fixture.Golden(t, name+".txt", clitest.Succeed(t, append(args, "--svg", svg)...))
		fixture.Golden(t, name+".json", clitest.Succeed(t, append(args, "--json")...))
		picture, err := os.ReadFile(svg)
		if err != nil {
			t.Fatal(err)
		}
		fixture.Golden(t, name+".svg", string(picture))
		wellFormed(t, string(picture))
	}
	fixture.Golden(t, "help_simulate.txt", clitest.Succeed(t, "simulate", "--help"))
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestSimulateFor(t *testing.T) {
	t.Parallel()
	file := filepath.Join("testdata", "simulate.csv")
	if got := clitest.Succeed(t, "simulate", "--limit", "10/1s", "--csv", file, "--for", "1s"); !strings.Contains(got, "12 requests, cost 12,") {
		t.Error(got)
	}
}

// The longest traffic there can be is drawn and told; a longer one is refused, unless --for ends before it.
func TestSimulateSpan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	simulate := func(csv string, args ...string) []string {
		file := filepath.Join(dir, "log.csv")
		if err := os.WriteFile(file, []byte(csv), 0o600); err != nil {
			t.Fatal(err)
		}
		return append([]string{"simulate", "--limit", "1/1s", "--csv", file, "--svg", filepath.Join(dir, "picture.svg")}, args...)
	}
	if got := clitest.Succeed(t, simulate("0\n3153600000\n")...); !strings.Contains(got, "2 requests, cost 2, in 876000h from 1970") {
		t.Error(got)
	}
	clitest.Fail(t, cli.ExitFailure, "log.csv: line 2: time: must be within", simulate("0\n10000000000\n")...)
	if got := clitest.Succeed(t, simulate("0\n10000000000\n", "--for", "1h")...); !strings.Contains(got, "1 requests") {
		t.Error(got)
	}
}

// The most that all requests together can cost adds up in all figures; more is refused.
func TestSimulateCost(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "log.csv")
	simulate := []string{"simulate", "--limit", "9007199254740991/1s", "--csv", file, "--svg", file + ".svg"}
	for lines, want := range map[string]string{
		strings.Repeat("0,k,8000000000000\n", 1125): "1125 requests, cost 9000000000000000, in 0s",
		"0,a,9007199254740990\n0,b\n":               "2 requests, cost 9007199254740991, in 0s",
	} {
		if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := clitest.Succeed(t, simulate...); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Repeat("0,k,9007199254740991\n", 1100)), 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Fail(t, cli.ExitFailure, "log.csv: line 2: cost: must leave the sum of all at most", simulate...)
}

// A picture of a name that isn't XML is one all the same.
func TestSimulatePictureEscapes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, svg := filepath.Join(dir, "<&>.csv"), filepath.Join(dir, "picture.svg")
	if err := os.WriteFile(file, []byte("1700000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Succeed(t, "simulate", "--limit", "10/1s", "--csv", file, "--svg", svg)
	picture, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, string(picture))
}

// A policy of the file that applications use is played as its limits are, alone and beside others.
func TestSimulatePolicyOfFile(t *testing.T) {
	t.Parallel()
	file := fixture.PoliciesFile(t, fixture.Tiers)
	simulate := func(args ...string) []string {
		return append([]string{"simulate", "--shape", "poisson:8/s", "--for", "1m"}, args...)
	}
	for _, more := range [][]string{nil, {"--compare", "20/1s,30/1s"}} {
		got := clitest.Succeed(t, simulate(append(more, "--policies", file, "--policy", "free")...)...)
		if want := clitest.Succeed(t, simulate(append(more, "--limit", "10/1s", "--limit", "240/1h")...)...); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	clitest.Fail(t, cli.ExitUsage, "--policies needs --policy", simulate("--policies", file)...)
	clitest.Fail(t, cli.ExitUsage, "--limit doesn't go with --policies", simulate("--policies", file, "--policy", "free", "--limit", "1/1s")...)
	clitest.Fail(t, cli.ExitUsage, "--policy goes with --policies", simulate("--policy", "free", "--limit", "1/1s")...)
	clitest.Fail(t, cli.ExitFailure, `no policy "gold": there are free, pro, trial`, simulate("--policies", file, "--policy", "gold")...)
	clitest.Fail(t, cli.ExitFailure, "no such file", simulate("--policies", file+".not", "--policy", "free")...)
}

func TestSimulateRefuses(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.csv")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(args ...string) []string { return append([]string{"simulate", "--limit", "10/1s"}, args...) }
	for _, test := range []struct {
		code int
		text string
		args []string
	}{
		{cli.ExitUsage, "--limit or --policies is needed", []string{"simulate", "--shape", "steady:1/s"}},
		{cli.ExitUsage, "a policy has 1 to 16 limits", with("--shape", "steady:1/s", "--compare", "1/1s,")},
		{cli.ExitUsage, "--compare: limit: text", with("--shape", "steady:1/s", "--compare", "1/1s;2/2s")},
		{cli.ExitUsage, "counts the same window", with("--shape", "steady:1/s", "--compare", "1/1s 2/1s")},
		{cli.ExitUsage, "9 policies: at most 8", with("--shape", "steady:1/s", "--compare", strings.Repeat("1/1s,", 7)+"1/1s")},
		{cli.ExitUsage, "exactly one of --shape and --csv", with()},
		{cli.ExitUsage, "exactly one of --shape and --csv", with("--shape", "steady:1/s", "--csv", empty)},
		{cli.ExitUsage, "--csv is empty", with("--csv", "")},
		{cli.ExitUsage, "--seed goes with --shape", with("--csv", empty, "--seed", "2")},
		{cli.ExitUsage, "--keys = 0: must be from 1", with("--shape", "steady:1/s", "--keys", "0")},
		{cli.ExitUsage, "--zipf = NaN: must be from 0", with("--shape", "steady:1/s", "--zipf", "NaN")},
		{cli.ExitUsage, "--for = 0s: must be from 1ms", with("--shape", "steady:1/s", "--for", "0")},
		{cli.ExitUsage, "--for = -1s: must be from 1ms", with("--csv", empty, "--for", "-1s")},
		{cli.ExitUsage, `--shape = "x:1": must be steady:`, with("--shape", "x:1")},
		{cli.ExitUsage, `--shape = "steady:0/s": must make requests`, with("--shape", "steady:0/s")},
		{cli.ExitUsage, `rate "5": must look like`, with("--shape", "steady:5")},
		{cli.ExitUsage, `rate "NaN/s": must be 0, or`, with("--shape", "poisson:NaN/s")},
		{cli.ExitUsage, `rate "-1/s": must be 0, or`, with("--shape", "poisson:-1/s")},
		{cli.ExitUsage, `rate "1e9/s": must be 0, or`, with("--shape", "poisson:1e9/s")},
		{cli.ExitUsage, `"0s" must be a duration`, with("--shape", "steady:1/0s")},
		{cli.ExitUsage, "must look like bursts:", with("--shape", "bursts:50")},
		{cli.ExitUsage, "the burst must be", with("--shape", "bursts:0@1s")},
		{cli.ExitUsage, "must look like spike:", with("--shape", "spike:1/s,2/s")},
		{cli.ExitUsage, "must look like spike:", with("--shape", "ramp:1/s,2/s@1s")},
		{cli.ExitUsage, "must look like spike:", with("--shape", "wave:1/s@1s")},
		{cli.ExitUsage, "when the spike begins", with("--shape", "spike:1/s,2/s@1m")},
		{cli.ExitUsage, "must make requests", with("--shape", "ramp:0/s,0/s")},
		{cli.ExitFailure, "no such file", with("--csv", empty+".not")},
		{cli.ExitFailure, "no requests", with("--csv", empty)},
	} {
		clitest.Fail(t, test.code, test.text, test.args...)
	}
}
