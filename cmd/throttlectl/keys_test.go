//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// groupsOf makes a topology of primaries: g1, g2 and so on.
func groupsOf(epoch uint64, primaries ...*testserver.Server) router.Topology {
	t := router.Topology{Epoch: epoch, Baseline: epoch > 1}
	for i, p := range primaries {
		t.Groups = append(t.Groups, router.Group{Name: fmt.Sprintf("g%d", i+1), Primary: p.Addr})
	}
	return t
}

// applicationOf opens a router as a running process has it.
func applicationOf(t testing.TB, topology router.Topology) *router.Router {
	t.Helper()
	r, err := router.Open(topology, router.Config{Backend: redisbackend.Config{Timeout: soon}, AllowedAddresses: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// api is the policy of these tests, and apiFlags how it stands on a command line. Its windows outlast any test.
var (
	api = limit.Policy{Name: "api", Limits: []limit.Limit{
		limit.PerDay(100), limit.Sliding(240, 48*time.Hour, time.Hour).Named("smooth"), limit.TokenBucket(1, time.Hour, 20),
	}}
	apiFlags = []string{"--policy", "api", "--limit", "100/24h", "--limit", "smooth=240/48h~1h", "--limit", "1/1h+20"}
)

func take(t testing.TB, b backend.Backend, key string, cost int64) {
	t.Helper()
	result, err := b.Take(t.Context(), backend.Request{Key: key, Policy: &api, Cost: cost})
	if err != nil || !result.Allowed {
		t.Fatalf("take %d of %s: %v, %v", cost, key, result.Allowed, err)
	}
}

func with(args []string, more ...string) []string {
	return append(append([]string{}, more...), args...)
}

// What is peeked, told and reset is what applications count, wherever the counts are.
func TestKeyCommands(t *testing.T) {
	t.Parallel()
	server, second := testserver.Redis(t), testserver.Redis(t)
	topology := groupsOf(3, server, second)
	app := applicationOf(t, topology)
	alone, err := redisbackend.Open(&redis.Options{Addr: server.Addr, DB: 1}, redisbackend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	for _, place := range []struct {
		name  string
		count backend.Backend
		args  []string
	}{
		{"group", app, with(apiFlags, "--topology", topologyFile(t, topology))},
		{"single", alone, with(apiFlags, "--redis", "redis://"+server.Addr+"/1")},
	} {
		for _, form := range []string{"txt", "json"} {
			args := with(place.args, fmt.Sprintf("--json=%t", form == "json"))
			key := "alice-" + form
			var b strings.Builder
			do := func(words ...string) {
				b.WriteString("$ " + strings.Join(words, " ") + "\n")
				b.WriteString(steady(succeed(t, append(words, args...)...)))
			}
			fail(t, exitFailure, "nothing is stored of this key", append([]string{"peek", key}, args...)...)
			fail(t, exitFailure, "nothing is stored of this key", append([]string{"reset", key}, args...)...)
			take(t, place.count, key, 7)
			awaitBucket(t, key, 7, place.args)
			do("peek", key)
			do("usage", key, "--interval", "2h") // whatever full hour comes in between
			do("reset", key, "--dry-run")
			do("reset", key)
			awaitBucket(t, key, 0, place.args)
			fail(t, exitFailure, "nothing to give back", append([]string{"reset", key}, args...)...)
			do("peek", key)
			take(t, place.count, key, 19) // the bucket is full again
			golden(t, "keys_"+place.name+"."+form, b.String())
		}
	}
}

// What is looked for in the wrong place is not told as unused: a policy of another name, another window or precision.
func TestKeyCommandsSayThatNothingIsStored(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, redisbackend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	take(t, b, "alice", 7)
	for text, args := range map[string][]string{
		`under prefix "sl:", policy "apj" and these limits: it is stored under the policies "api"` + "\n":                                     {"--policy", "apj", "--limit", "100/24h"},
		`under prefix "sm:", policy "api" and these limits: names that end in this key are stored with the prefix and policy "sl:api"` + "\n": {"--policy", "api", "--limit", "100/24h", "--prefix", "sm:"},
		"the policy has counted it under ?/24h, ?/48h~1h, ?/1h+?":                                                                             {"--policy", "api", "--limit", "100/1h~1m"},
		"these limits: the policy has counted it":                                                                                             {"--policy", "api", "--limit", "100/48h~2h", "--limit", "100/24h@aligned"},
	} {
		args = append(args, "--redis", "redis://"+server.Addr)
		fail(t, exitFailure, text, with(args, "peek", "alice")...)
		fail(t, exitFailure, text, with(args, "reset", "alice")...)
		fail(t, exitFailure, text, with(args, "reset", "alice", "--dry-run")...)
	}
	fail(t, exitFailure, `it is stored under the policies "api"`, "usage", "alice", "--interval", "1h", "--limit", "100/48h~1h", "--redis", "redis://"+server.Addr)
	fail(t, exitFailure, `and these limits, nor under any other: it isn't used`, "peek", "lice", "--limit", "100/24h", "--redis", "redis://"+server.Addr)
	succeed(t, "peek", "alice", "--policy", "api", "--limit", "100/24h", "--redis", "redis://"+server.Addr)
}

// awaitBucket waits until the bucket has lost so many tokens and no fraction more. Each process has its own idea of the server's
// clock, off by less than a round trip, and that much earlier a bucket lacks a fraction more.
func awaitBucket(t testing.TB, key string, used int, args []string) {
	t.Helper()
	want := fmt.Sprintf(`"limit":"1/1h+20","used":%d,`, used)
	for deadline := time.Now().Add(soon); ; {
		got := succeed(t, with(args, "peek", key, "--json")...)
		if strings.Contains(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s in %s", want, got)
		}
	}
}

// Where the Max was lowered, what is used is more than the quota, and shown.
func TestPeekShowsMoreThanTheQuota(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, redisbackend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	take(t, b, "alice", 20)
	got := succeed(t, "peek", "alice", "--policy", "api", "--limit", "5/24h", "--limit", "6/48h~1h", "--json", "--redis", "redis://"+server.Addr)
	var state struct {
		Limits []struct{ Used, Remaining, Quota int64 }
	}
	if err := json.Unmarshal([]byte(got), &state); err != nil {
		t.Fatal(err)
	}
	for i, quota := range []int64{5, 6} {
		if l := state.Limits[i]; l.Used != 20 || l.Remaining != 0 || l.Quota != quota {
			t.Errorf("limit %d: %+v", i, l)
		}
	}
}

// The file of an operator may be older than what is in force, never newer: a key would be looked for where it isn't.
func TestKeyCommandsFollowWhatIsInForce(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	first, next := groupsOf(1, one), groupsOf(2, one, two)
	next = after(next, first)
	app := applicationOf(t, first)
	if err := app.Update(next); err != nil {
		t.Fatal(err)
	}
	key := moving(t, first, next)
	take(t, app, key, 7)
	awaitEpoch(t, one, 2)
	args := with(apiFlags, "--topology", topologyFile(t, first), "--allow-address", "127.0.0.1")
	awaitBucket(t, key, 7, args)

	args = append(args, "--json")
	fail(t, exitFailure, "AllowedAddresses", append([]string{"peek", key}, with(apiFlags, "--topology", topologyFile(t, first))...)...)
	if got := succeed(t, append([]string{"peek", key}, args...)...); !strings.Contains(got, `"group":"g2","epoch":2`) || !strings.Contains(got, `"used":7`) {
		t.Errorf("peek: %s", got)
	}
	if got := succeed(t, append([]string{"reset", key}, args...)...); !strings.Contains(got, `"given_back":7`) {
		t.Errorf("reset: %s", got)
	}
	third := groupsOf(3, one)
	third = after(third, next)
	fail(t, exitFailure, "epoch 3 is not in force", append([]string{"peek", key}, with(apiFlags, "--topology", topologyFile(t, third))...)...)
	other := groupsOf(2, two)
	fail(t, exitFailure, "is not the topology of epoch 2", append([]string{"reset", key}, with(apiFlags, "--topology", topologyFile(t, other))...)...)
}

// A key that has moved on is not what its old server still holds of it.
func TestKeyCommandsRefuseASealedKey(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	first, next := groupsOf(1, one), groupsOf(2, one, two)
	next = after(next, first)
	app := applicationOf(t, first)
	key := moving(t, first, next)
	take(t, app, key, 3)
	if err := app.Update(next); err != nil {
		t.Fatal(err)
	}
	take(t, app, key, 4)
	for _, command := range []string{"peek", "reset", "usage"} {
		args := with(apiFlags, command, key, "--redis", "redis://"+one.Addr)
		if command == "usage" {
			args = append(args, "--interval", "1h")
		}
		fail(t, exitFailure, "handed the key over under epoch 2", args...)
	}
}

// moving is a key that changes its owner.
func moving(t testing.TB, from, to router.Topology) string {
	t.Helper()
	before, err := ringOf(from)
	if err != nil {
		t.Fatal(err)
	}
	after, err := ringOf(to)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if key := fmt.Sprintf("user-%d", i); before.Owner(key) != after.Owner(key) {
			return key
		}
	}
	t.Fatal("no key moves")
	return ""
}

// awaitEpoch waits until a topology is posted on a server.
func awaitEpoch(t testing.TB, server *testserver.Server, epoch uint64) {
	t.Helper()
	for deadline := time.Now().Add(2 * soon); ; time.Sleep(5 * time.Millisecond) {
		text := server.Client().Get(t.Context(), "sl:topology").Val()
		if strings.HasPrefix(text, fmt.Sprintf("%d ", epoch)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("epoch %d isn't posted: %q", epoch, text)
		}
	}
}

// Looking leaves nothing behind, also where there is no notice.
func TestPeekWritesNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	fail(t, exitFailure, "nothing is stored", with(apiFlags, "peek", "alice", "--topology", topologyFile(t, groupsOf(5, server)))...)
	fail(t, exitFailure, "nothing is stored", with(apiFlags, "reset", "alice", "--dry-run", "--topology", topologyFile(t, groupsOf(5, server)))...)
	if keys := server.Client().Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("left %v", keys)
	}
}

func TestKeyCommandsFailures(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	url := "redis://" + server.Addr
	file := topologyFile(t, groupsOf(1, server))
	on := func(args ...string) []string { return append(args, "--limit", "100/1m") }
	for text, args := range map[string][]string{
		"exactly one of --topology and --redis": on("peek", "k"),
		"exactly one of --topology and ":        on("peek", "k", "--redis", url, "--topology", file),
		"KEY is empty":                          on("peek", "", "--redis", url),
		"want KEY":                              on("reset", "--redis", url),
		"--limit or --policies is needed":       {"reset", "k", "--redis", url},
		"policy name":                           {"peek", "k", "--redis", url, "--policy", "a:b"},
		"--redis is given twice":                on("reset", "k", "--redis", url, "--redis", url),
		"not a URL":                             on("peek", "k", "--redis", "redis://host:port"),
		"go with --topology":                    on("peek", "k", "--redis", url, "--user", "me"),
		"--db = -1":                             on("peek", "k", "--topology", file, "--db", "-1"),
		"--interval = 1m0s":                     on("usage", "k", "--redis", url),
		"--interval = 2h0m0s":                   {"usage", "k", "--limit", "1/1h~1m", "--interval", "2h", "--redis", url},
		"--interval = 0s":                       {"usage", "k", "--limit", "1/1h~1m", "--interval", "0", "--redis", url},
		"--topology is needed":                  {"owner", "k"},
		"want KEY...":                           {"owner", "--topology", file},
	} {
		fail(t, exitUsage, text, args...)
	}
	fail(t, exitFailure, "no such file", on("peek", "k", "--topology", file+".not")...)
	fail(t, exitFailure, "no such file", on("peek", "k", "--topology", file, "--password-file", file+".not")...)
	fail(t, exitFailure, "no such file", on("peek", "k", "--redis", url, "--ca", file+".not")...)
	fail(t, exitFailure, "has no certificate", on("peek", "k", "--redis", url, "--ca", file)...)
	fail(t, exitFailure, "Prefix", on("peek", "k", "--redis", url, "--prefix", "no spaces")...)
	fail(t, exitFailure, "WRONGPASS", on("peek", "k", "--topology", file, "--user", "nobody", "--password-file", file)...)
	server.Kill()
	fail(t, exitFailure, "connection refused", on("peek", "k", "--redis", url)...)
	fail(t, exitFailure, "connection refused", on("reset", "k", "--topology", file)...)
}

// A password is read from a file or from the environment, as redis-cli reads it, wherever there is one to give.
func TestCommandsLogIn(t *testing.T) {
	server := testserver.Redis(t, "--requirepass", "s3cret")
	succeed(t, "flag", "set", "x", "5", "--redis-key", "flags", "--redis", "redis://:s3cret@"+server.Addr)
	b, err := redisbackend.Open(&redis.Options{Addr: server.Addr, Password: "s3cret"}, redisbackend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	take(t, b, "k", 1)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := "redis://" + server.Addr
	commands := map[string][]string{
		"topology": with(apiFlags, "peek", "k", "--topology", topologyFile(t, groupsOf(1, server))),
		"url":      with(apiFlags, "peek", "k", "--redis", url),
		"flag":     {"flag", "get", "x", "--redis", url, "--redis-key", "flags"},
	}
	for _, args := range commands {
		fail(t, exitFailure, "NOAUTH", args...)
		succeed(t, append(args, "--password-file", file)...)
		fail(t, exitFailure, "no such file", append(args, "--password-file", file+".not")...)
		fail(t, exitUsage, "needs a terminal", append(args, "--ask-password")...)
		fail(t, exitUsage, "don't go together", append(args, "--ask-password", "--password-file", file)...)
	}
	fail(t, exitUsage, "another is given", with(apiFlags, "peek", "k", "--redis", "redis://:s3cret@"+server.Addr, "--password-file", file)...)
	fail(t, exitUsage, "go with --redis", "flag", "get", "x", "--file", file, "--password-file", file)
	succeed(t, with(apiFlags, "peek", "k", "--redis", "redis://:s3cret@"+server.Addr)...)
	t.Setenv(passwordEnv, "s3cret")
	for _, args := range commands {
		succeed(t, args...)
	}
	if got := execute(t, append(commands["topology"], "--user", "s0me")...); got.code != exitFailure || strings.Contains(got.stderr, "s3cret") {
		t.Errorf("%+v", got)
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	file := topologyFile(t, threeGroups)
	keys := []string{"alice", "bob", "user:1", "user:2", "a\x1b[2Jb"}
	golden(t, "owner.txt", succeed(t, append([]string{"owner", "--topology", file}, keys...)...))
	golden(t, "owner.json", succeed(t, append([]string{"owner", "--json", "--topology", file}, keys...)...))
}

// A notice that a server has lost is not brought back by somebody who only looks.
func TestPeekRestoresNoNotice(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	topology := groupsOf(2, one, two)
	file := topologyFile(t, topology)
	succeed(t, "topology", "push", file)
	two.Client().FlushAll(t.Context())
	for range 50 { // a router would need a moment
		fail(t, exitFailure, "nothing is stored", with(apiFlags, "peek", "alice", "--topology", file)...)
	}
	if keys := two.Client().Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("left %v", keys)
	}
}

// With the file of policies that applications use a key's counts are found by the key alone.
func TestKeyCommandsTakePoliciesFromAFile(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b, err := redisbackend.Open(&redis.Options{Addr: server.Addr}, redisbackend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	take(t, b, "tenant:7", 3)
	args := []string{
		"--redis", "redis://" + server.Addr, "--policies", policiesFile(t, `{
		"policies": {"api": ["100/24h", "smooth=240/48h~1h", "1/1h+20"], "free": ["1/1s"]}, "default": "free", "keys": {"tenant:7": "api"}}`),
	}
	if got := succeed(t, with(args, "peek", "tenant:7")...); !strings.Contains(got, "100/24h            3     97") {
		t.Error(got)
	}
	fail(t, exitFailure, `policy "free"`, with(args, "peek", "tenant:8")...)
	if got := succeed(t, with(args, "usage", "tenant:7", "--interval", "2h", "--json")...); !strings.Contains(got, `"used":3,`) {
		t.Error(got)
	}
	if got := succeed(t, with(args, "reset", "tenant:7", "--json")...); !strings.Contains(got, `"given_back":3,`) {
		t.Error(got)
	}
}
