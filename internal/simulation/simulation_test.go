package simulation_test

import (
	"flag"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/simulation"
	"github.com/sluice-go/sluice/internal/testtier"
)

var seedFlag = flag.Int64("seed", -1, "play this seed only, and tell its story")

func TestMain(m *testing.M) {
	flag.Parse()
	runtime.GOMAXPROCS(1) // what becomes ready at one instant then runs in one order
	os.Exit(m.Run())
}

// play runs one seed in a bubble of its own.
func play(t *testing.T, seed uint64, s simulation.Scenario) (report *simulation.Report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { report = simulation.Play(seed, s) })
	return report
}

// tell is a report as text.
func tell(r *simulation.Report) string {
	return strings.Join(r.Trace, "\n") + "\n\n" + strings.Join(r.Violations[:min(len(r.Violations), 5)], "\n")
}

// total is what many runs have seen.
type total struct {
	runs, calls, admitted, errors, inexact, moves, lost int
	sources                                             map[backend.Source]int
}

// playAll plays a scenario under many seeds in the long tier, under a sixteenth of them otherwise, and fails at the first that
// breaks a promise.
func playAll(t *testing.T, seeds int, s simulation.Scenario) total {
	t.Helper()
	first, last := uint64(0), uint64(testtier.Size(max(10, seeds/16), seeds))
	if *seedFlag >= 0 {
		first, last = uint64(*seedFlag), uint64(*seedFlag)+1
		s.Story = true
	}
	sum := total{sources: make(map[backend.Source]int)}
	for seed := first; seed < last; seed++ {
		r := play(t, seed, s)
		if len(r.Violations) > 0 {
			t.Fatalf("seed %d, policy %s: %d violations; again with: go test ./internal/simulation -run '^%s$' -v -seed %d\n\n%s",
				seed, r.Policy, len(r.Violations), t.Name(), seed, tell(r))
		}
		if *seedFlag >= 0 {
			t.Logf("seed %d, policy %s\n%s", seed, r.Policy, tell(r))
		}
		sum.runs++
		sum.calls += r.Calls
		sum.admitted += r.Admitted
		sum.errors += r.Errors
		sum.inexact += r.Inexact
		sum.moves += r.Moves
		sum.lost += r.Lost
		for source, n := range r.Sources {
			sum.sources[source] += n
		}
	}
	t.Logf("%+v", sum)
	return sum
}

// TestHealthy: leases and the local view over servers that never fail.
func TestHealthy(t *testing.T) {
	playAll(t, 300, simulation.Scenario{Groups: 2, Instances: 3, Callers: 3, Keys: 2, Refunds: 0.2})
}

// TestNetwork: messages are lost or late, links and servers hang, instances die, and nothing is ever above Max.
func TestNetwork(t *testing.T) {
	sum := playAll(t, 250, simulation.Scenario{
		Groups: 2, Instances: 3, Callers: 3, Keys: 2, Refunds: 0.2, Crashes: true,
		LoseRequests: 0.02, LoseReplies: 0.02, Partitions: 3, Freezes: 2,
	})
	if *seedFlag < 0 && sum.errors == 0 {
		t.Error("no call failed")
	}
}

// TestResets: what is reset may be admitted again, and what was leased or on its way before that, but no more.
func TestResets(t *testing.T) {
	playAll(t, 120, simulation.Scenario{
		Groups: 2, Instances: 3, Callers: 3, Keys: 2, Refunds: 0.1, Resets: 0.02, Crashes: true, LoseRequests: 0.01, LoseReplies: 0.01,
	})
}

// TestReshard is promise P9: topologies change while everybody calls.
func TestReshard(t *testing.T) {
	sum := playAll(t, 200, simulation.Scenario{
		Groups: 4, Instances: 3, Callers: 3, Keys: 3, Changes: 4, Informed: true, Patient: true, Refunds: 0.15,
	})
	if *seedFlag < 0 && sum.moves == 0 {
		t.Error("no key was handed over")
	}
}

// TestReshardUntold: some hear of a change late, or by others, or start under the old topology.
func TestReshardUntold(t *testing.T) {
	playAll(t, 200, simulation.Scenario{Groups: 4, Instances: 3, Callers: 3, Keys: 3, Changes: 1, Refunds: 0.15, Crashes: true})
}

// TestReshardNetwork: topologies change over a network that loses messages.
func TestReshardNetwork(t *testing.T) {
	playAll(t, 150, simulation.Scenario{
		Groups: 4, Instances: 3, Callers: 3, Keys: 3, Changes: 4, Informed: true, Refunds: 0.15, Resets: 0.005, Crashes: true,
		LoseRequests: 0.02, LoseReplies: 0.02, Partitions: 3, Freezes: 2,
	})
}

// TestReshardSkips: topologies follow each other so fast that processes miss some, and learn of them by the Previous of the
// next.
func TestReshardSkips(t *testing.T) {
	playAll(t, 200, simulation.Scenario{Groups: 4, Instances: 3, Callers: 3, Keys: 3, Changes: 4, Refunds: 0.15, Crashes: true})
}

// TestFailover is promise P4: servers forget, floors bring it back.
func TestFailover(t *testing.T) {
	sum := playAll(t, 250, simulation.Scenario{
		Groups: 2, Instances: 3, Callers: 3, Keys: 2, Failovers: 1, Flushes: 1, Refunds: 0.15, Crashes: true, LoseReplies: 0.01,
	})
	if *seedFlag < 0 && sum.lost == 0 {
		t.Error("nothing was forgotten")
	}
}

// TestEverything: all at once, where no more is promised than Max for each loss.
func TestEverything(t *testing.T) {
	playAll(t, 150, simulation.Scenario{
		Groups: 4, Instances: 3, Callers: 3, Keys: 3, Changes: 3, Failovers: 3, Flushes: 2, Refunds: 0.15, Resets: 0.005, Crashes: true,
		LoseRequests: 0.02, LoseReplies: 0.02, Partitions: 3, Freezes: 2,
	})
}

// TestReplay: a seed tells one story only.
func TestReplay(t *testing.T) {
	everything := simulation.Scenario{
		Groups: 4, Instances: 3, Callers: 3, Keys: 3, Changes: 3, Failovers: 3, Flushes: 2, Refunds: 0.15, Resets: 0.005, Crashes: true,
		LoseRequests: 0.02, LoseReplies: 0.02, Partitions: 3, Freezes: 2, Story: true,
	}
	for seed := range uint64(testtier.Size(3, 12)) {
		a, b := play(t, seed, everything), play(t, seed, everything)
		if a.Digest == b.Digest {
			continue
		}
		for i := range min(len(a.Trace), len(b.Trace)) {
			if a.Trace[i] != b.Trace[i] {
				t.Fatalf("seed %d: the stories part:\n%s\n%s", seed, a.Trace[i], b.Trace[i])
			}
		}
		t.Fatalf("seed %d: two stories of %d and %d events", seed, len(a.Trace), len(b.Trace))
	}
}
