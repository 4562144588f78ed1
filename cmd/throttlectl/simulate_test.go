package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		golden(t, name+".txt", succeed(t, append(args, "--svg", svg)...))
		golden(t, name+".json", succeed(t, append(args, "--json")...))
		picture, err := os.ReadFile(svg)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name+".svg", string(picture))
		wellFormed(t, string(picture))
	}
	golden(t, "help_simulate.txt", succeed(t, "simulate", "--help"))
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
	if got := succeed(t, "simulate", "--limit", "10/1s", "--csv", file, "--for", "1s"); !strings.Contains(got, "12 requests, cost 12,") {
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
	if got := succeed(t, simulate("0\n3153600000\n")...); !strings.Contains(got, "2 requests, cost 2, in 876000h from 1970") {
		t.Error(got)
	}
	fail(t, exitFailure, "log.csv: line 2: time: must be within", simulate("0\n10000000000\n")...)
	if got := succeed(t, simulate("0\n10000000000\n", "--for", "1h")...); !strings.Contains(got, "1 requests") {
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
		if got := succeed(t, simulate...); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Repeat("0,k,9007199254740991\n", 1100)), 0o600); err != nil {
		t.Fatal(err)
	}
	fail(t, exitFailure, "log.csv: line 2: cost: must leave the sum of all at most", simulate...)
}

// A picture of a name that isn't XML is one all the same.
func TestSimulatePictureEscapes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, svg := filepath.Join(dir, "<&>.csv"), filepath.Join(dir, "picture.svg")
	if err := os.WriteFile(file, []byte("1700000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	succeed(t, "simulate", "--limit", "10/1s", "--csv", file, "--svg", svg)
	picture, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, string(picture))
}

// A policy of the file that applications use is played as its limits are, alone and beside others.
func TestSimulatePolicyOfFile(t *testing.T) {
	t.Parallel()
	file := policiesFile(t, tiers)
	simulate := func(args ...string) []string {
		return append([]string{"simulate", "--shape", "poisson:8/s", "--for", "1m"}, args...)
	}
	for _, more := range [][]string{nil, {"--compare", "20/1s,30/1s"}} {
		got := succeed(t, simulate(append(more, "--policies", file, "--policy", "free")...)...)
		if want := succeed(t, simulate(append(more, "--limit", "10/1s", "--limit", "240/1h")...)...); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	fail(t, exitUsage, "--policies needs --policy", simulate("--policies", file)...)
	fail(t, exitUsage, "--limit doesn't go with --policies", simulate("--policies", file, "--policy", "free", "--limit", "1/1s")...)
	fail(t, exitUsage, "--policy goes with --policies", simulate("--policy", "free", "--limit", "1/1s")...)
	fail(t, exitFailure, `no policy "gold": there are free, pro, trial`, simulate("--policies", file, "--policy", "gold")...)
	fail(t, exitFailure, "no such file", simulate("--policies", file+".not", "--policy", "free")...)
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
		{exitUsage, "--limit or --policies is needed", []string{"simulate", "--shape", "steady:1/s"}},
		{exitUsage, "a policy has 1 to 16 limits", with("--shape", "steady:1/s", "--compare", "1/1s,")},
		{exitUsage, "--compare: limit: text", with("--shape", "steady:1/s", "--compare", "1/1s;2/2s")},
		{exitUsage, "counts the same window", with("--shape", "steady:1/s", "--compare", "1/1s 2/1s")},
		{exitUsage, "9 policies: at most 8", with("--shape", "steady:1/s", "--compare", strings.Repeat("1/1s,", 7)+"1/1s")},
		{exitUsage, "exactly one of --shape and --csv", with()},
		{exitUsage, "exactly one of --shape and --csv", with("--shape", "steady:1/s", "--csv", empty)},
		{exitUsage, "--csv is empty", with("--csv", "")},
		{exitUsage, "--seed goes with --shape", with("--csv", empty, "--seed", "2")},
		{exitUsage, "--keys = 0: must be from 1", with("--shape", "steady:1/s", "--keys", "0")},
		{exitUsage, "--zipf = NaN: must be from 0", with("--shape", "steady:1/s", "--zipf", "NaN")},
		{exitUsage, "--for = 0s: must be from 1ms", with("--shape", "steady:1/s", "--for", "0")},
		{exitUsage, "--for = -1s: must be from 1ms", with("--csv", empty, "--for", "-1s")},
		{exitUsage, `--shape = "x:1": must be steady:`, with("--shape", "x:1")},
		{exitUsage, `--shape = "steady:0/s": must make requests`, with("--shape", "steady:0/s")},
		{exitUsage, `rate "5": must look like`, with("--shape", "steady:5")},
		{exitUsage, `rate "NaN/s": must be 0, or`, with("--shape", "poisson:NaN/s")},
		{exitUsage, `rate "-1/s": must be 0, or`, with("--shape", "poisson:-1/s")},
		{exitUsage, `rate "1e9/s": must be 0, or`, with("--shape", "poisson:1e9/s")},
		{exitUsage, `"0s" must be a duration`, with("--shape", "steady:1/0s")},
		{exitUsage, "must look like bursts:", with("--shape", "bursts:50")},
		{exitUsage, "the burst must be", with("--shape", "bursts:0@1s")},
		{exitUsage, "must look like spike:", with("--shape", "spike:1/s,2/s")},
		{exitUsage, "must look like spike:", with("--shape", "ramp:1/s,2/s@1s")},
		{exitUsage, "must look like spike:", with("--shape", "wave:1/s@1s")},
		{exitUsage, "when the spike begins", with("--shape", "spike:1/s,2/s@1m")},
		{exitUsage, "must make requests", with("--shape", "ramp:0/s,0/s")},
		{exitFailure, "no such file", with("--csv", empty+".not")},
		{exitFailure, "no requests", with("--csv", empty)},
	} {
		fail(t, test.code, test.text, test.args...)
	}
}
