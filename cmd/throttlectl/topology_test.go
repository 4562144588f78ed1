//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
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
	next.Previous = &first
	changed := make(chan router.Event, 16)
	app, err := router.Open(first, router.Config{Backend: backend.RedisConfig{Timeout: soon}, OnEvent: func(e router.Event) { changed <- e }})
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

// What is in force goes along as the previous topology, so that processes that start find it.
func TestTopologyPushAddsThePrevious(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	push := func(topology router.Topology) { t.Helper(); succeed(t, "topology", "push", topologyFile(t, topology)) }
	push(groupsOf(4, one))
	push(groupsOf(7, two)) // g1 is elsewhere now, so nobody can tell of epoch 4
	three := testserver.Redis(t)
	moved := router.Topology{Epoch: 9, Groups: []router.Group{{Name: "new", Primary: three.Addr}, {Name: "g1", Primary: two.Addr}}}
	push(moved)
	_, text, _ := strings.Cut(three.Client().Get(t.Context(), "sl:topology").Val(), "\n")
	there, err := router.ParseTopology([]byte(text))
	if err != nil || there.Epoch != 9 || there.Previous == nil || there.Previous.Epoch != 7 {
		t.Errorf("%q, %v", text, err)
	}
	last := router.Topology{Epoch: 11, Groups: []router.Group{{Name: "new", Primary: three.Addr}}}
	push(last) // g1 goes, and is told
	awaitEpoch(t, two, 11)
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
	fail(t, exitFailure, `doesn't name it as "previous"`, push(groupsOf(2, one, two))...)
	other := groupsOf(1, two)
	wrong := groupsOf(2, one, two)
	wrong.Previous = &other
	fail(t, exitFailure, `"previous" is not the topology of epoch 1`, push(wrong)...)
	fail(t, exitFailure, "another topology of epoch 1 is in force", push(groupsOf(1, one, two))...)

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
	topology := router.Topology{Epoch: 3, Groups: []router.Group{
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

// A "previous" that was written and never pushed doesn't take the place of what is in force: processes that start find both.
func TestTopologyPushKeepsWhatIsInForce(t *testing.T) {
	t.Parallel()
	one, two, three, four := testserver.Redis(t), testserver.Redis(t), testserver.Redis(t), testserver.Redis(t)
	succeed(t, "topology", "push", topologyFile(t, groupsOf(4, one, two, three)))
	unpushed := groupsOf(5, one)
	file := router.Topology{Epoch: 6, Groups: []router.Group{{Name: "new", Primary: four.Addr}}, Previous: &unpushed}
	for range 2 { // the second one tells nobody anything new
		succeed(t, "topology", "push", topologyFile(t, file))
	}
	for _, server := range []*testserver.Server{one, two, three, four} {
		_, text, _ := strings.Cut(server.Client().Get(t.Context(), "sl:topology").Val(), "\n")
		there, err := router.ParseTopology([]byte(text))
		if err != nil || epochs(&there) != "6 5 4" {
			t.Errorf("%q, %v", text, err)
		}
	}
}

// Of epoch 1 servers tell the digest only: a file that skips it is refused, one that names it further back is not.
func TestTopologyPushAfterEpochOne(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	first, unpushed := groupsOf(1, one, two), groupsOf(2, one)
	succeed(t, "topology", "push", topologyFile(t, first))
	file := groupsOf(3, one)
	file.Previous = &unpushed
	fail(t, exitFailure, `epoch 1 is in force, and the file doesn't name it as "previous"`, "topology", "push", topologyFile(t, file))
	wrong := groupsOf(1, two)
	unpushed.Previous = &wrong
	fail(t, exitFailure, `"previous" is not the topology of epoch 1`, "topology", "push", topologyFile(t, file))
	unpushed.Previous = &first
	succeed(t, "topology", "push", topologyFile(t, file))
	awaitEpoch(t, two, 3) // it goes, and is told
}

// epochs are those of a topology and of all before it.
func epochs(t *router.Topology) string {
	var all []string
	for ; t != nil; t = t.Previous {
		all = append(all, fmt.Sprint(t.Epoch))
	}
	return strings.Join(all, " ")
}

// chain is topologies of one group, each the previous one of the one before.
func chain(epochs ...uint64) *router.Topology {
	var first *router.Topology
	for _, epoch := range slices.Backward(epochs) {
		first = &router.Topology{Epoch: epoch, Groups: []router.Group{{Name: "g", Primary: "10.0.0.1:6379"}}, Previous: first}
	}
	return first
}

// What goes along with a topology: what the file names, and what is in force with what came before it.
func TestNoticeHasAllThatCameBefore(t *testing.T) {
	t.Parallel()
	long := []uint64{40}
	for epoch := uint64(39); len(long) <= maxPrevious; epoch-- {
		long = append(long, epoch)
	}
	for name, test := range map[string]struct {
		file, force *router.Topology
		want        string
	}{
		"nothing is in force":             {chain(6, 5), nil, "6 5"},
		"not named":                       {chain(6), chain(4, 2), "6 4 2"},
		"named":                           {chain(6, 4), chain(4, 2), "6 4"}, // its windows may be over
		"named further back":              {chain(6, 5, 4), chain(4, 2), "6 5 4"},
		"an older one is named":           {chain(6, 3), chain(4, 2), "6 4 3 2"},
		"a newer one is named":            {chain(6, 5), chain(4, 2), "6 5 4 2"},
		"the rest of a push":              {chain(6, 5), chain(6, 5, 4), "6 5 4"},
		"it is in force with more":        {chain(6), chain(6, 4), "6 4"},
		"more than are looked back at":    {chain(41), chain(long...), strings.TrimSuffix("41 "+epochs(chain(long...)), " 24")},
		"no room for what is in force":    {chain(append([]uint64{50}, long[:maxPrevious]...)...), chain(4), "no room"},
		"another one of the same epoch":   {chain(6, 5, 4), other(chain(4, 2)), "digest"},
		"named are those around it":       {chain(6, 5, 2), chain(4), "6 5 4 2"},
		"another one that came before it": {chain(6, 5, 2), &router.Topology{Epoch: 4, Groups: chain(4).Groups, Previous: other(chain(2))}, "digest"},
	} {
		got := ""
		notice, err := noticeOf(*test.file, test.force)
		if err != nil {
			got = err.Error()
		} else if there, err := router.ParseTopology([]byte(notice.Text)); err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			got = epochs(&there)
		}
		if got != test.want && (err == nil || !strings.Contains(got, test.want)) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// other is another topology of the same epoch.
func other(t *router.Topology) *router.Topology {
	t.Seed++
	return t
}

// A second push, to those that the first didn't reach, posts what that did: with the previous topology.
func TestNoticeOfSecondPush(t *testing.T) {
	t.Parallel()
	before, file := threeGroups, threeGroups
	before.Epoch, before.Previous = 8, nil
	file.Epoch, file.Previous = 9, nil
	first, err := noticeOf(file, &before)
	if err != nil {
		t.Fatal(err)
	}
	posted, err := router.ParseTopology([]byte(first.Text))
	if err != nil {
		t.Fatal(err)
	}
	if second, err := noticeOf(file, &posted); err != nil || second != first {
		t.Errorf("%v: %+v, want %+v", err, second, first)
	}
}
