package topology_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/router"
)

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
	four = fixture.After(four, three)
	limits := []string{"--limit", "100/24h", "--limit", "1000/24h"} // of two policies
	grow := append([]string{"reshard", "plan", fixture.TopologyFile(t, three), fixture.TopologyFile(t, four)}, limits...)
	fixture.Golden(t, "reshard_grow.txt", clitest.Succeed(t, append(grow, "--keys", "1000000", "--sample", fixture.SampleFile(t, 1000))...))
	fixture.Golden(t, "reshard_grow.json", clitest.Succeed(t, append(grow, "--keys", "1000000", "--sample", fixture.SampleFile(t, 1000), "--json")...))

	shrunk := primaries(3, "eu-1", "eu-2", "eu-3")
	shrunk = fixture.After(shrunk, four)
	fixture.Golden(t, "reshard_shrink.txt", clitest.Succeed(t, "reshard", "plan", fixture.TopologyFile(t, four), fixture.TopologyFile(t, shrunk)))
}

func TestReshardPlanFinds(t *testing.T) {
	t.Parallel()
	three := primaries(5, "eu-1", "eu-2", "eu-3")
	change := func(edit func(*router.Topology)) router.Topology {
		next := primaries(6, "eu-1", "eu-2", "eu-3", "eu-4")
		next = fixture.After(next, three)
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
		{"CRITICAL drain: the handover takes 168h10m0s", change(func(*router.Topology) {}), []string{"--limit", "1/168h"}},
	} {
		args := append([]string{"reshard", "plan", fixture.TopologyFile(t, three), fixture.TopologyFile(t, test.next)}, test.args...)
		got := clitest.Execute(t, args...)
		if got.Code != cli.ExitFound || !strings.Contains(got.Stdout, test.text) || !strings.Contains(got.Stderr, "throttlectl: found: 1 ") {
			t.Errorf("want %q: %+v", test.text, got)
		}
		if got := clitest.Execute(t, append(args, "--json")...); got.Code != cli.ExitFound || !strings.Contains(got.Stdout, `"severity":"`+strings.ToLower(strings.Fields(test.text)[0])) {
			t.Errorf("%+v", got)
		}
	}
	same := fixture.TopologyFile(t, three)
	if got := clitest.Succeed(t, "reshard", "plan", same, same); !strings.Contains(got, "both are the same") || !strings.Contains(got, "no key changes its owner") {
		t.Errorf("got %s", got)
	}
	for text, args := range map[string][]string{
		"--settle = 0s": {"--settle", "0"},
		"--drain = 1m":  {"--drain", "1m"},
		"--drain = 200": {"--drain", "200000h", "--settle", "200000h"},
		"--keys = -1":   {"--keys", "-1"},
		"--limit":       {"--limit", "1"},
	} {
		clitest.Fail(t, cli.ExitUsage, text, append([]string{"reshard", "plan", same, same}, args...)...)
	}
}
