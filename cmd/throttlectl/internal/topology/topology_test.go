//go:build unix

package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
)

// places replaces addresses and digests, which differ in every run, by words of the same width.
func places(text string, servers ...*testserver.Server) string {
	for i, s := range servers {
		name := fmt.Sprintf("server-%d:", i+1)
		text = strings.ReplaceAll(text, s.Addr, name+strings.Repeat("0", len(s.Addr)-len(name)))
	}
	return text
}

func digests(text string, topologies ...router.Topology) string {
	for i, t := range topologies {
		text = strings.ReplaceAll(text, t.Digest(), fmt.Sprintf("digest-%09d", i+1))
	}
	return text
}

// A topology that is pushed is taken over by a process that runs, and its keys take their counts along.
func TestTopologyPush(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	first, next := fixture.GroupsOf(1, one), fixture.GroupsOf(2, one, two)
	next = fixture.After(next, first)
	changed := make(chan router.Event, 16)
	app, err := router.Open(first, router.Config{
		Backend: redisbackend.Config{Timeout: fixture.Soon}, AllowedAddresses: []string{"127.0.0.1"}, OnEvent: func(e router.Event) { changed <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	key := fixture.MovingKey(t, first, next)
	fixture.Take(t, app, key, 7)
	fixture.AwaitEpoch(t, one, 1)

	old, file := fixture.TopologyFile(t, first), fixture.TopologyFile(t, next)
	steadily := func(text string) string { return digests(places(text, one, two), first, next) }
	var text, encoded strings.Builder
	do := func(want int, args ...string) {
		t.Helper()
		words := args
		for _, b := range []*strings.Builder{&text, &encoded} {
			got := clitest.Execute(t, args...)
			if got.Code != want {
				t.Errorf("%v: %+v", args, got)
			}
			shown := strings.NewReplacer(old, "old.json", file, "new.json").Replace(strings.Join(words, " "))
			fmt.Fprintf(b, "$ %s\n%s%s", shown, steadily(got.Stdout), steadily(got.Stderr))
			args = append(args, "--json") // what was pushed may be pushed once more
		}
	}
	do(cli.ExitOK, "topology", "check", old)
	do(cli.ExitFound, "topology", "check", file)
	do(cli.ExitOK, "topology", "push", file, "--dry-run")
	if e := one.Client().Get(t.Context(), "sl:topology").Val(); !strings.HasPrefix(e, "1 ") {
		t.Errorf("a dry run has left %q", e)
	}
	do(cli.ExitOK, "topology", "push", file)
	do(cli.ExitOK, "topology", "check", file)
	do(cli.ExitFound, "topology", "check", old)
	do(cli.ExitFailure, "topology", "push", old)
	fixture.Golden(t, "topology.txt", text.String())
	fixture.Golden(t, "topology.json", encoded.String())

	for deadline := time.After(4 * fixture.Soon); ; {
		select {
		case e := <-changed:
			if e.Kind != router.TopologyChanged {
				continue
			}
		case <-deadline:
			t.Fatal("the running process didn't take it over")
		}
		break
	}
	if got := app.Owner(key); got != "g2" {
		t.Errorf("the owner is %s", got)
	}
	fixture.Take(t, app, key, 1)
	got := clitest.Succeed(t, fixture.With(fixture.APIFlags, "peek", key, "--json", "--topology", file)...)
	if !strings.Contains(got, `"used":8`) {
		t.Errorf("counts were lost: %s", got)
	}
}

// What is published is what the file says: everywhere in its groups and in those of the topology in force.
func TestTopologyPushTellsAll(t *testing.T) {
	t.Parallel()
	one, three := testserver.Redis(t), testserver.Redis(t)
	four := fixture.GroupsOf(4, one)
	clitest.Succeed(t, "topology", "push", fixture.TopologyFile(t, four))
	seven := fixture.After(router.Topology{Epoch: 7, Groups: []router.Group{{Name: "new", Primary: three.Addr}}}, four)
	file := fixture.TopologyFile(t, seven)
	for range 2 { // the second one changes nothing
		clitest.Succeed(t, "topology", "push", file)
	}
	for _, server := range []*testserver.Server{one, three} {
		_, text, _ := strings.Cut(server.Client().Get(t.Context(), "sl:topology").Val(), "\n")
		there, err := router.ParseTopology([]byte(text))
		if err != nil || epochs(&there) != "7 4" {
			t.Errorf("%q, %v", text, err)
		}
	}
}

func TestTopologyPushRefuses(t *testing.T) {
	t.Parallel()
	one, two, away := testserver.Redis(t), testserver.Redis(t), testserver.Redis(t)
	away.Kill()
	push := func(topology router.Topology, more ...string) []string {
		return append([]string{"topology", "push", fixture.TopologyFile(t, topology)}, more...)
	}
	clitest.Fail(t, cli.ExitFailure, "epoch 0", push(fixture.GroupsOf(0, one))...)
	clitest.Fail(t, cli.ExitFailure, "no primary can be reached", push(fixture.GroupsOf(1, away), "--partial")...)
	clitest.Fail(t, cli.ExitFailure, "nothing was published", push(fixture.GroupsOf(1, one, away))...)
	if n := one.Client().Exists(t.Context(), "sl:topology").Val(); n != 0 {
		t.Error("published although a server is unreachable")
	}
	if got := clitest.Execute(t, push(fixture.GroupsOf(1, one, away), "--partial")...); got.Code != cli.ExitFailure || !strings.Contains(got.Stderr, "connection refused") || !strings.Contains(got.Stdout, "none    1") {
		t.Errorf("%+v", got)
	}
	clitest.Fail(t, cli.ExitFailure, `epoch 1 is in force, and the file doesn't name it: put it into the file as "previous"`, push(fixture.GroupsOf(2, one, two))...)
	unlinked := fixture.GroupsOf(2, one, two)
	unlinked.Baseline = false
	clitest.Fail(t, cli.ExitFailure, `previous = none: must be the topology before epoch 2; or epoch 2 must have "baseline": true`, push(unlinked)...)
	wrong := fixture.After(fixture.GroupsOf(2, one, two), fixture.GroupsOf(1, one))
	clitest.Fail(t, cli.ExitFailure, `"previous" of epoch 1 is not what `+one.Addr+` has as that: in the file group "g2" is missing`, push(wrong)...)
	three := testserver.Redis(t)
	if got := clitest.Execute(t, push(fixture.GroupsOf(1, one, two, three))...); got.Code != cli.ExitFailure ||
		!strings.Contains(got.Stderr, `another topology of epoch 1 is in force: write epoch 2, with that as "previous": in the file group "g3" is new`) {
		t.Errorf("%+v", got)
	}
	moved := fixture.GroupsOf(1, one, away)
	moved.Groups[0].Replicas = []string{two.Addr}
	clitest.Fail(t, cli.ExitFailure, `epoch 1 is published with other addresses`, push(moved, "--partial")...)

	broken := fixture.TopologyFile(t, router.Topology{Epoch: 1})
	clitest.Fail(t, cli.ExitFailure, "groups = none", "topology", "push", broken)
	clitest.Fail(t, cli.ExitFailure, "groups = none", "topology", "check", broken)
	clitest.Fail(t, cli.ExitFailure, "no such file", "topology", "check", broken+".not")
	clitest.Fail(t, cli.ExitUsage, "want FILE", "topology", "push")
}

// A server that is away is a finding, not a failure.
func TestTopologyCheckFindsWhatIsAway(t *testing.T) {
	t.Parallel()
	primary := testserver.Redis(t)
	replica := testserver.Replica(t, primary)
	topology := fixture.GroupsOf(1, primary)
	topology.Groups[0].Replicas = []string{replica.Addr}
	file := fixture.TopologyFile(t, topology)
	clitest.Succeed(t, "topology", "check", file)
	replica.Kill()
	got := checked(t, file)
	if len(got.Findings) != 2 || got.Findings[0].Where[0].Server != replica.Addr || got.Findings[0].Severity != "warning" {
		t.Errorf("%+v", got)
	}
	primary.Pause()
	begin := time.Now()
	got = checked(t, file, "--timeout", "200ms")
	if took := time.Since(begin); took > fixture.Soon {
		t.Errorf("took %v", took)
	}
	if got.Findings[0].Where[0].Server != primary.Addr || got.Findings[0].Severity != "critical" {
		t.Errorf("%+v", got)
	}
	primary.Resume()
}

func checked(t testing.TB, file string, more ...string) clitest.Report {
	t.Helper()
	return clitest.Findings(t, append([]string{"topology", "check", file}, more...)...)
}

// Groups of all kinds are found, by sentinels and in a Redis Cluster.
func TestTopologyOfAllKinds(t *testing.T) {
	t.Parallel()
	plain, watched := testserver.Redis(t), testserver.Redis(t)
	replica := testserver.Replica(t, watched)
	shards := testserver.Cluster(t, 2, 1)
	topology := router.Topology{Epoch: 3, Baseline: true, Groups: []router.Group{
		{Name: "plain", Primary: plain.Addr},
		{Name: "cluster", Cluster: []string{shards[0].Primary.Addr}},
		{Name: "watched", Master: "main"},
	}}
	for _, s := range testserver.Sentinels(t, "main", watched, 1) {
		topology.Groups[2].Sentinels = append(topology.Groups[2].Sentinels, s.Addr)
	}
	file := fixture.TopologyFile(t, topology)
	clitest.Succeed(t, "topology", "push", file)
	got := clitest.Succeed(t, "topology", "check", file)
	for _, address := range []string{plain.Addr, watched.Addr, replica.Addr, topology.Groups[2].Sentinels[2], shards[1].Primary.Addr, shards[1].Replicas[0].Addr} {
		if !strings.Contains(got, address) {
			t.Errorf("no %s in\n%s", address, got)
		}
	}
	if n := strings.Count(got, topology.Digest()); n != 1+1+2+1 { // the file, and each primary
		t.Errorf("digest %d times in\n%s", n, got)
	}
	app, owners := fixture.Application(t, topology), make(map[string]bool)
	for i := range 16 {
		key := fmt.Sprintf("account-%d", i)
		owners[app.Owner(key)] = true
		fixture.Take(t, app, key, 2)
		args := fixture.With(fixture.APIFlags, "reset", key, "--json", "--topology", file)
		if got := clitest.Succeed(t, args...); strings.Count(got, `"given_back":2`) < 2 { // of the bucket it may be a fraction more
			t.Errorf("%s: %s", key, got)
		}
	}
	if len(owners) != 3 {
		t.Errorf("the keys are in %v: choose others", owners)
	}
}

// A "previous" that was written and never pushed doesn't take the place of what is in force, which has to be named, too.
func TestTopologyPushKeepsWhatIsInForce(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	first, unpushed := fixture.GroupsOf(1, one, two), fixture.GroupsOf(2, one)
	clitest.Succeed(t, "topology", "push", fixture.TopologyFile(t, first))
	file := fixture.After(fixture.GroupsOf(3, one), unpushed)
	clitest.Fail(t, cli.ExitFailure, "epoch 1 is in force, and the file doesn't name it", "topology", "push", fixture.TopologyFile(t, file))
	clitest.Succeed(t, "topology", "push", fixture.TopologyFile(t, fixture.After(fixture.GroupsOf(3, one), fixture.After(unpushed, first))))
	fixture.AwaitEpoch(t, two, 3) // it goes, and learns of it
}

// What reshard plan finds critical in a file, topology push refuses, and the other way round.
func TestPlanAndPushAgree(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	old := fixture.GroupsOf(4, one)
	clitest.Succeed(t, "topology", "push", fixture.TopologyFile(t, old))
	next := fixture.GroupsOf(5, one, two)
	unlinked, gap := next, fixture.After(next, fixture.GroupsOf(4, one))
	unlinked.Baseline = false
	gap.Previous.Baseline = false
	for name, file := range map[string]router.Topology{
		"no previous":       unlinked,
		"a baseline":        next,
		"another previous":  fixture.After(next, fixture.GroupsOf(4, two, one)),
		"one not published": fixture.After(next, fixture.GroupsOf(3, one)),
		"a gap":             gap,
		"the same epoch":    fixture.GroupsOf(4, one, two),
		"an older one":      fixture.After(fixture.GroupsOf(3, one, two), fixture.GroupsOf(1, one)),
	} {
		agree(t, name, old, file, true)
	}
	agree(t, "the old one", old, fixture.After(next, old), false)
}

func agree(t *testing.T, name string, old, next router.Topology, refused bool) {
	t.Helper()
	plan := clitest.Execute(t, "reshard", "plan", fixture.TopologyFile(t, old), fixture.TopologyFile(t, next), "--limit", "1/1m")
	push := clitest.Execute(t, "topology", "push", fixture.TopologyFile(t, next))
	if planned := strings.Contains(plan.Stdout, "CRITICAL"); planned != refused || (push.Code != cli.ExitOK) != refused {
		t.Errorf("%s: reshard plan: %+v\ntopology push: %+v", name, plan, push)
	}
}

// epochs are those of a topology and of all before it.
func epochs(t *router.Topology) string {
	var all []string
	for ; t != nil; t = t.Previous {
		all = append(all, fmt.Sprint(t.Epoch))
	}
	return strings.Join(all, " ")
}
