package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/router"
)

// sampleFile has a key a line, among empty lines.
func sampleFile(t testing.TB, n int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "user:%d\n\n", i)
	}
	path := filepath.Join(t.TempDir(), "keys.txt")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRing(t *testing.T) {
	t.Parallel()
	file := topologyFile(t, threeGroups)
	golden(t, "ring.txt", succeed(t, "ring", "--topology", file))
	golden(t, "ring.json", succeed(t, "ring", "--topology", file, "--json"))
	golden(t, "ring_sample.txt", succeed(t, "ring", "--topology", file, "--sample", sampleFile(t, 1000)))
	golden(t, "ring_sample.json", succeed(t, "ring", "--topology", file, "--sample", sampleFile(t, 1000), "--json"))
	fail(t, exitUsage, "--topology is needed", "ring")
	fail(t, exitFailure, "has no keys", "ring", "--topology", file, "--sample", sampleFile(t, 0))
	fail(t, exitFailure, "no such file", "ring", "--topology", file, "--sample", file+".not")
}

func primaries(epoch uint64, names ...string) router.Topology {
	t := router.Topology{Epoch: epoch, Baseline: epoch > 1}
	for i, name := range names {
		t.Groups = append(t.Groups, router.Group{Name: name, Primary: fmt.Sprintf("10.0.%d.1:6379", i)})
	}
	return t
}

// Three groups become four, and one of four goes.
func TestReshardPlan(t *testing.T) {
	t.Parallel()
	three, four := primaries(1, "eu-1", "eu-2", "eu-3"), primaries(2, "eu-1", "eu-2", "eu-3", "eu-4")
	four = after(four, three)
	limits := []string{"--limit", "100/24h", "--limit", "1000/24h"} // of two policies
	grow := append([]string{"reshard", "plan", topologyFile(t, three), topologyFile(t, four)}, limits...)
	golden(t, "reshard_grow.txt", succeed(t, append(grow, "--keys", "1000000", "--sample", sampleFile(t, 1000))...))
	golden(t, "reshard_grow.json", succeed(t, append(grow, "--keys", "1000000", "--sample", sampleFile(t, 1000), "--json")...))

	shrunk := primaries(3, "eu-1", "eu-2", "eu-3")
	shrunk = after(shrunk, four)
	golden(t, "reshard_shrink.txt", succeed(t, "reshard", "plan", topologyFile(t, four), topologyFile(t, shrunk)))
}

func TestReshardPlanFinds(t *testing.T) {
	t.Parallel()
	three := primaries(5, "eu-1", "eu-2", "eu-3")
	change := func(edit func(*router.Topology)) router.Topology {
		next := primaries(6, "eu-1", "eu-2", "eu-3", "eu-4")
		next = after(next, three)
		edit(&next)
		return next
	}
	for _, test := range []struct {
		text string
		next router.Topology
		args []string
	}{
		{"CRITICAL epoch: refused: both have epoch 5", change(func(n *router.Topology) { n.Epoch, n.Previous = 5, nil }), nil},
		{"CRITICAL epoch: refused: epoch 4 is below 5", change(func(n *router.Topology) { n.Epoch, n.Previous = 4, nil }), nil},
		{"CRITICAL previous: refused: the new topology doesn't name the old one as", change(func(n *router.Topology) { n.Previous = nil }), nil},
		{"CRITICAL previous: refused: the new topology doesn't name the old one among", change(func(n *router.Topology) { other := primaries(5, "us-1"); n.Previous = &other }), nil},
		{"WARNING seed: the seed changes from 0 to 7", change(func(n *router.Topology) { n.Seed = 7 }), nil},
		{"WARNING address: eu-2: changes from primary 10.0.1.1:6379", change(func(n *router.Topology) { n.Groups[1].Primary = "10.9.9.9:6379" }), nil},
		{"CRITICAL drain: the hand-over takes 168h10m0s", change(func(*router.Topology) {}), []string{"--limit", "1/168h"}},
	} {
		args := append([]string{"reshard", "plan", topologyFile(t, three), topologyFile(t, test.next)}, test.args...)
		got := execute(t, args...)
		if got.code != exitFound || !strings.Contains(got.stdout, test.text) || !strings.Contains(got.stderr, "throttlectl: found: 1 ") {
			t.Errorf("want %q: %+v", test.text, got)
		}
		if got := execute(t, append(args, "--json")...); got.code != exitFound || !strings.Contains(got.stdout, `"severity":"`+strings.ToLower(strings.Fields(test.text)[0])) {
			t.Errorf("%+v", got)
		}
	}
	same := topologyFile(t, three)
	if got := succeed(t, "reshard", "plan", same, same); !strings.Contains(got, "both are the same") || !strings.Contains(got, "no key changes its owner") {
		t.Errorf("got %s", got)
	}
	for text, args := range map[string][]string{
		"--settle = 0s": {"--settle", "0"},
		"--drain = 1m":  {"--drain", "1m"},
		"--drain = 200": {"--drain", "200000h", "--settle", "200000h"},
		"--keys = -1":   {"--keys", "-1"},
		"--limit":       {"--limit", "1"},
	} {
		fail(t, exitUsage, text, append([]string{"reshard", "plan", same, same}, args...)...)
	}
}
