//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

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
	first, next := groupsOf(1, one), groupsOf(2, one, two)
	next = after(next, first)
	changed := make(chan router.Event, 16)
	app, err := router.Open(first, router.Config{
		Backend: redisbackend.Config{Timeout: soon}, AllowedAddresses: []string{"127.0.0.1"}, OnEvent: func(e router.Event) { changed <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	key := moving(t, first, next)
	take(t, app, key, 7)
	awaitEpoch(t, one, 1)

	old, file := topologyFile(t, first), topologyFile(t, next)
	steadily := func(text string) string { return digests(places(text, one, two), first, next) }
	var text, encoded strings.Builder
	do := func(want int, args ...string) {
		t.Helper()
		words := args
		for _, b := range []*strings.Builder{&text, &encoded} {
			got := execute(t, args...)
			if got.code != want {
				t.Errorf("%v: %+v", args, got)
			}
			shown := strings.NewReplacer(old, "old.json", file, "new.json").Replace(strings.Join(words, " "))
			fmt.Fprintf(b, "$ %s\n%s%s", shown, steadily(got.stdout), steadily(got.stderr))
			args = append(args, "--json") // what was pushed may be pushed once more
		}
	}
	do(exitOK, "topology", "check", old)
	do(exitFound, "topology", "check", file)
	do(exitOK, "topology", "push", file, "--dry-run")
	if e := one.Client().Get(t.Context(), "sl:topology").Val(); !strings.HasPrefix(e, "1 ") {
		t.Errorf("a dry run has left %q", e)
	}
	do(exitOK, "topology", "push", file)
	do(exitOK, "topology", "check", file)
	do(exitFound, "topology", "check", old)
	do(exitFailure, "topology", "push", old)
	golden(t, "topology.txt", text.String())
	golden(t, "topology.json", encoded.String())

	for deadline := time.After(4 * soon); ; {
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
	take(t, app, key, 1)
	got := succeed(t, with(apiFlags, "peek", key, "--json", "--topology", file)...)
	if !strings.Contains(got, `"used":8`) {
		t.Errorf("counts were lost: %s", got)
	}
}

// after is a topology with the one before it.
func after(t, previous router.Topology) router.Topology {
	t.Previous, t.Baseline = &previous, false
	return t
}

// What is published is what the file says: everywhere in its groups and in those of the topology in force.
func TestTopologyPushTellsAll(t *testing.T) {
	t.Parallel()
	one, three := testserver.Redis(t), testserver.Redis(t)
	four := groupsOf(4, one)
	succeed(t, "topology", "push", topologyFile(t, four))
	seven := after(router.Topology{Epoch: 7, Groups: []router.Group{{Name: "new", Primary: three.Addr}}}, four)
	file := topologyFile(t, seven)
	for range 2 { // the second one tells nobody anything new
		succeed(t, "topology", "push", file)
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
		return append([]string{"topology", "push", topologyFile(t, topology)}, more...)
	}
	fail(t, exitFailure, "epoch 0", push(groupsOf(0, one))...)
	fail(t, exitFailure, "no primary can be reached", push(groupsOf(1, away), "--partial")...)
	fail(t, exitFailure, "nothing was published", push(groupsOf(1, one, away))...)
	if n := one.Client().Exists(t.Context(), "sl:topology").Val(); n != 0 {
		t.Error("left a notice beside a server that is away")
	}
	if got := execute(t, push(groupsOf(1, one, away), "--partial")...); got.code != exitFailure || !strings.Contains(got.stderr, "connection refused") || !strings.Contains(got.stdout, "none    1") {
		t.Errorf("%+v", got)
	}
	fail(t, exitFailure, `epoch 1 is in force, and the file doesn't name it: put it into the file as "previous"`, push(groupsOf(2, one, two))...)
	unlinked := groupsOf(2, one, two)
	unlinked.Baseline = false
	fail(t, exitFailure, `previous = none: must be the topology before epoch 2; or epoch 2 must have "baseline": true`, push(unlinked)...)
	wrong := after(groupsOf(2, one, two), groupsOf(1, one))
	fail(t, exitFailure, `"previous" of epoch 1 is not what `+one.Addr+` has as that: in the file group "g2" is gone`, push(wrong)...)
	three := testserver.Redis(t)
	if got := execute(t, push(groupsOf(1, one, two, three))...); got.code != exitFailure ||
		!strings.Contains(got.stderr, `another topology of epoch 1 is in force: write epoch 2, with that as "previous": in the file group "g3" is new`) {
		t.Errorf("%+v", got)
	}
	moved := groupsOf(1, one, away)
	moved.Groups[0].Replicas = []string{two.Addr}
	fail(t, exitFailure, `epoch 1 is published with other addresses`, push(moved, "--partial")...)

	broken := topologyFile(t, router.Topology{Epoch: 1})
	fail(t, exitFailure, "groups = none", "topology", "push", broken)
	fail(t, exitFailure, "groups = none", "topology", "check", broken)
	fail(t, exitFailure, "no such file", "topology", "check", broken+".not")
	fail(t, exitUsage, "want FILE", "topology", "push")
}

// A server that is away is a finding, not a failure.
func TestTopologyCheckFindsWhatIsAway(t *testing.T) {
	t.Parallel()
	primary := testserver.Redis(t)
	replica := testserver.Replica(t, primary)
	topology := groupsOf(1, primary)
	topology.Groups[0].Replicas = []string{replica.Addr}
	file := topologyFile(t, topology)
	succeed(t, "topology", "check", file)
	replica.Kill()
	got := checked(t, file)
	if len(got.Findings) != 2 || got.Findings[0].Server != replica.Addr || got.Findings[0].Severity != "warning" {
		t.Errorf("%+v", got)
	}
	primary.Pause()
	begin := time.Now()
	got = checked(t, file, "--timeout", "200ms")
	if took := time.Since(begin); took > soon {
		t.Errorf("took %v", took)
	}
	if got.Findings[0].Server != primary.Addr || got.Findings[0].Severity != "critical" {
		t.Errorf("%+v", got)
	}
	primary.Resume()
}

// reported is what a command says that has findings.
type reported struct {
	Findings []struct{ Severity, Check, Group, Server, What, Do string }
}

func (r reported) has(severity, check, server, what string) bool {
	for _, f := range r.Findings {
		if f.Severity == severity && f.Check == check && f.Server == server && strings.Contains(f.What, what) {
			return true
		}
	}
	return false
}

func checked(t testing.TB, file string, more ...string) reported {
	t.Helper()
	return findingsOf(t, append([]string{"topology", "check", file}, more...)...)
}

// findingsOf runs a command that has found something.
func findingsOf(t testing.TB, args ...string) (r reported) {
	t.Helper()
	got := execute(t, append(args, "--json")...)
	if got.code != exitFound {
		t.Fatalf("%v: %+v", args, got)
	}
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatal(err)
	}
	return r
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
	file := topologyFile(t, topology)
	succeed(t, "topology", "push", file)
	got := succeed(t, "topology", "check", file)
	for _, address := range []string{plain.Addr, watched.Addr, replica.Addr, topology.Groups[2].Sentinels[2], shards[1].Primary.Addr, shards[1].Replicas[0].Addr} {
		if !strings.Contains(got, address) {
			t.Errorf("no %s in\n%s", address, got)
		}
	}
	if n := strings.Count(got, topology.Digest()); n != 1+1+2+1 { // the file, and each primary
		t.Errorf("digest %d times in\n%s", n, got)
	}
	app, owners := applicationOf(t, topology), make(map[string]bool)
	for i := range 16 {
		key := fmt.Sprintf("account-%d", i)
		owners[app.Owner(key)] = true
		take(t, app, key, 2)
		args := with(apiFlags, "reset", key, "--json", "--topology", file)
		if got := succeed(t, args...); strings.Count(got, `"given_back":2`) < 2 { // of the bucket it may be a fraction more
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
	first, unpushed := groupsOf(1, one, two), groupsOf(2, one)
	succeed(t, "topology", "push", topologyFile(t, first))
	file := after(groupsOf(3, one), unpushed)
	fail(t, exitFailure, "epoch 1 is in force, and the file doesn't name it", "topology", "push", topologyFile(t, file))
	succeed(t, "topology", "push", topologyFile(t, after(groupsOf(3, one), after(unpushed, first))))
	awaitEpoch(t, two, 3) // it goes, and is told
}

// What reshard plan finds critical in a file, topology push refuses, and the other way round.
func TestPlanAndPushAgree(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	old := groupsOf(4, one)
	succeed(t, "topology", "push", topologyFile(t, old))
	next := groupsOf(5, one, two)
	unlinked, gap := next, after(next, groupsOf(4, one))
	unlinked.Baseline = false
	gap.Previous.Baseline = false
	for name, file := range map[string]router.Topology{
		"no previous":       unlinked,
		"a baseline":        next,
		"another previous":  after(next, groupsOf(4, two, one)),
		"one not published": after(next, groupsOf(3, one)),
		"a gap":             gap,
		"the same epoch":    groupsOf(4, one, two),
		"an older one":      after(groupsOf(3, one, two), groupsOf(1, one)),
	} {
		agree(t, name, old, file, true)
	}
	agree(t, "the old one", old, after(next, old), false)
}

func agree(t *testing.T, name string, old, next router.Topology, refused bool) {
	t.Helper()
	plan := execute(t, "reshard", "plan", topologyFile(t, old), topologyFile(t, next), "--limit", "1/1m")
	push := execute(t, "topology", "push", topologyFile(t, next))
	if planned := strings.Contains(plan.stdout, "CRITICAL"); planned != refused || (push.code != exitOK) != refused {
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
