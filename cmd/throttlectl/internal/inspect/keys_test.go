//go:build unix

package inspect_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/internal/testserver"
)

// What is peeked, shown and reset is what applications count, wherever the counts are.
func TestKeyCommands(t *testing.T) {
	t.Parallel()
	server, second := testserver.Redis(t), testserver.Redis(t)
	topology := fixture.GroupsOf(3, server, second)
	app := fixture.Application(t, topology)
	alone := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr, DB: 1}, "")
	for _, place := range []struct {
		name  string
		count backend.Backend
		args  []string
	}{
		{"group", app, fixture.With(fixture.APIFlags, "--topology", fixture.TopologyFile(t, topology))},
		{"single", alone, fixture.With(fixture.APIFlags, "--redis", "redis://"+server.Addr+"/1")},
	} {
		for _, form := range []string{"txt", "json"} {
			args := fixture.With(place.args, fmt.Sprintf("--json=%t", form == "json"))
			key := "alice-" + form
			var b strings.Builder
			do := func(words ...string) {
				b.WriteString("$ " + strings.Join(words, " ") + "\n")
				b.WriteString(fixture.Steady(clitest.Succeed(t, append(words, args...)...)))
			}
			clitest.Fail(t, cli.ExitFailure, "nothing is stored of this key", append([]string{"peek", key}, args...)...)
			clitest.Fail(t, cli.ExitFailure, "nothing is stored of this key", append([]string{"reset", key}, args...)...)
			fixture.Take(t, place.count, key, 7)
			awaitBucket(t, key, 7, place.args)
			do("peek", key)
			do("usage", key, "--interval", "2h") // whatever full hour comes in between
			do("grant", key, "3", "--dry-run")
			do("grant", key, "3")
			awaitBucket(t, key, 4, place.args)
			do("reset", key, "--dry-run")
			do("reset", key)
			awaitBucket(t, key, 0, place.args)
			clitest.Fail(t, cli.ExitFailure, "nothing to give back", append([]string{"reset", key}, args...)...)
			do("peek", key)
			fixture.Take(t, place.count, key, 19) // the bucket is full again
			fixture.Golden(t, "keys_"+place.name+"."+form, b.String())
		}
	}
}

// What is looked for in the wrong place is not reported as unused: a policy of another name, another window or precision.
func TestKeyCommandsSayThatNothingIsStored(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, "")
	fixture.Take(t, b, "alice", 7)
	for text, args := range map[string][]string{
		`under prefix "sl:", policy "apj" and these limits: it is stored under the policies "api"` + "\n":                                     {"--policy", "apj", "--limit", "100/24h"},
		`under prefix "sm:", policy "api" and these limits: names that end in this key are stored with the prefix and policy "sl:api"` + "\n": {"--policy", "api", "--limit", "100/24h", "--prefix", "sm:"},
		"the policy has counted it under ?/24h, ?/48h~1h, ?/1h+?":                                                                             {"--policy", "api", "--limit", "100/1h~1m"},
		"these limits: the policy has counted it":                                                                                             {"--policy", "api", "--limit", "100/48h~2h", "--limit", "100/24h@aligned"},
	} {
		args = append(args, "--redis", "redis://"+server.Addr)
		clitest.Fail(t, cli.ExitFailure, text, fixture.With(args, "peek", "alice")...)
		clitest.Fail(t, cli.ExitFailure, text, fixture.With(args, "reset", "alice")...)
		clitest.Fail(t, cli.ExitFailure, text, fixture.With(args, "reset", "alice", "--dry-run")...)
	}
	clitest.Fail(t, cli.ExitFailure, `it is stored under the policies "api"`, "usage", "alice", "--interval", "1h", "--limit", "100/48h~1h", "--redis", "redis://"+server.Addr)
	clitest.Fail(t, cli.ExitFailure, `and these limits, nor under any other: it isn't used`, "peek", "lice", "--limit", "100/24h", "--redis", "redis://"+server.Addr)
	clitest.Succeed(t, "peek", "alice", "--policy", "api", "--limit", "100/24h", "--redis", "redis://"+server.Addr)
}

// awaitBucket waits until the bucket has lost so many tokens and no fraction more. Each process has its own idea of the server's
// clock, off by less than a round trip, and that much earlier a bucket lacks a fraction more.
func awaitBucket(t testing.TB, key string, used int, args []string) {
	t.Helper()
	want := fmt.Sprintf(`"limit":"1/1h+20","used":%d,`, used)
	for deadline := time.Now().Add(fixture.Soon); ; {
		got := clitest.Succeed(t, fixture.With(args, "peek", key, "--json")...)
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
	b := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, "")
	fixture.Take(t, b, "alice", 20)
	got := clitest.Succeed(t, "peek", "alice", "--policy", "api", "--limit", "5/24h", "--limit", "6/48h~1h", "--json", "--redis", "redis://"+server.Addr)
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
	first, next := fixture.GroupsOf(1, one), fixture.GroupsOf(2, one, two)
	next = fixture.After(next, first)
	app := fixture.Application(t, first)
	if err := app.Update(next); err != nil {
		t.Fatal(err)
	}
	key := fixture.MovingKey(t, first, next)
	fixture.Take(t, app, key, 7)
	fixture.AwaitEpoch(t, one, 2)
	args := fixture.With(fixture.APIFlags, "--topology", fixture.TopologyFile(t, first), "--allow-address", "127.0.0.1")
	awaitBucket(t, key, 7, args)

	args = append(args, "--json")
	clitest.Fail(t, cli.ExitFailure, "AllowedAddresses", append([]string{"peek", key}, fixture.With(fixture.APIFlags, "--topology", fixture.TopologyFile(t, first))...)...)
	if got := clitest.Succeed(t, append([]string{"peek", key}, args...)...); !strings.Contains(got, `"group":"g2","epoch":2`) || !strings.Contains(got, `"used":7`) {
		t.Errorf("peek: %s", got)
	}
	if got := clitest.Succeed(t, append([]string{"reset", key}, args...)...); !strings.Contains(got, `"given_back":7`) {
		t.Errorf("reset: %s", got)
	}
	third := fixture.GroupsOf(3, one)
	third = fixture.After(third, next)
	clitest.Fail(t, cli.ExitFailure, "epoch 3 is not in force", append([]string{"peek", key}, fixture.With(fixture.APIFlags, "--topology", fixture.TopologyFile(t, third))...)...)
	other := fixture.GroupsOf(2, two)
	clitest.Fail(t, cli.ExitFailure, "is not the topology of epoch 2", append([]string{"reset", key}, fixture.With(fixture.APIFlags, "--topology", fixture.TopologyFile(t, other))...)...)
}

// A key that has moved on is not what its old server still holds of it.
func TestKeyCommandsRefuseASealedKey(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	first, next := fixture.GroupsOf(1, one), fixture.GroupsOf(2, one, two)
	next = fixture.After(next, first)
	app := fixture.Application(t, first)
	key := fixture.MovingKey(t, first, next)
	fixture.Take(t, app, key, 3)
	if err := app.Update(next); err != nil {
		t.Fatal(err)
	}
	fixture.Take(t, app, key, 4)
	for _, command := range []string{"peek", "reset", "usage"} {
		args := fixture.With(fixture.APIFlags, command, key, "--redis", "redis://"+one.Addr)
		if command == "usage" {
			args = append(args, "--interval", "1h")
		}
		clitest.Fail(t, cli.ExitFailure, "handed the key over under epoch 2", args...)
	}
}

// A key on the other side of a migration is not what this side still holds of it.
func TestKeyCommandsRefuseAMigratedKey(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	flag := uint64(2)
	d, err := dual.New(dual.Config{
		Old:    fixture.OpenRedis(t, &redis.Options{Addr: one.Addr}, ""),
		New:    fixture.OpenRedis(t, &redis.Options{Addr: two.Addr}, ""),
		Decide: func(string) (bool, uint64) { return flag%2 == 1, flag }, CarryOver: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	sides := []*testserver.Server{one, two}
	for ; flag < 5; flag++ { // forward and back
		fixture.Take(t, d, "alice", 3)
		here, there := sides[flag%2], sides[1-flag%2]
		clitest.Succeed(t, fixture.With(fixture.APIFlags, "peek", "alice", "--redis", "redis://"+here.Addr)...)
		for _, args := range [][]string{{"peek"}, {"reset"}, {"usage", "--interval", "1h"}, {"grant", "1"}} {
			args = append([]string{args[0], "alice"}, args[1:]...)
			args = append(fixture.With(fixture.APIFlags, args...), "--redis", "redis://"+there.Addr)
			clitest.Fail(t, cli.ExitFailure, "the other side of a migration", args...)
		}
		clitest.Fail(t, cli.ExitFailure, "the other side of a migration", "peek", "alice", "--redis", "redis://"+there.Addr)
	}
	frozen := sides[flag%2]
	takeAs(t, fixture.OpenRedis(t, &redis.Options{Addr: frozen.Addr}, ""), "login", "alice", 2) // not asked for since the change
	got := clitest.Succeed(t, "peek", "alice", "--redis", "redis://"+frozen.Addr)
	for _, want := range []string{"\nlogin   ?/24h", `There may be more: policy "api": the key is counted on the other side of a migration`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
}

// Looking leaves nothing behind, also where nothing is published.
func TestPeekWritesNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	clitest.Fail(t, cli.ExitFailure, "nothing is stored", fixture.With(fixture.APIFlags, "peek", "alice", "--topology", fixture.TopologyFile(t, fixture.GroupsOf(5, server)))...)
	clitest.Fail(t, cli.ExitFailure, "nothing is stored", fixture.With(fixture.APIFlags, "reset", "alice", "--dry-run", "--topology", fixture.TopologyFile(t, fixture.GroupsOf(5, server)))...)
	if keys := server.Client().Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("left %v", keys)
	}
}

func TestKeyCommandsFailures(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	url := "redis://" + server.Addr
	file := fixture.TopologyFile(t, fixture.GroupsOf(1, server))
	on := func(args ...string) []string { return append(args, "--limit", "100/1m") }
	for text, args := range map[string][]string{
		"exactly one of --topology and --redis": on("peek", "k"),
		"exactly one of --topology and ":        on("peek", "k", "--redis", url, "--topology", file),
		"KEY is empty":                          on("peek", "", "--redis", url),
		"want KEY":                              on("reset", "--redis", url),
		"want KEY EXTRA":                        on("grant", "k", "--redis", url),
		`EXTRA = "0": must be`:                  on("grant", "k", "0", "--redis", url),
		`EXTRA = "x": must be`:                  on("grant", "k", "x", "--redis", url),
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
		clitest.Fail(t, cli.ExitUsage, text, args...)
	}
	clitest.Fail(t, cli.ExitFailure, "no such file", on("peek", "k", "--topology", file+".not")...)
	clitest.Fail(t, cli.ExitFailure, "no such file", on("peek", "k", "--topology", file, "--password-file", file+".not")...)
	clitest.Fail(t, cli.ExitFailure, "no such file", on("peek", "k", "--redis", url, "--ca", file+".not")...)
	clitest.Fail(t, cli.ExitFailure, "has no certificate", on("peek", "k", "--redis", url, "--ca", file)...)
	clitest.Fail(t, cli.ExitFailure, "Prefix", on("peek", "k", "--redis", url, "--prefix", "no spaces")...)
	clitest.Fail(t, cli.ExitFailure, "WRONGPASS", on("peek", "k", "--topology", file, "--user", "nobody", "--password-file", file)...)
	server.Kill()
	clitest.Fail(t, cli.ExitFailure, "connection refused", on("peek", "k", "--redis", url)...)
	clitest.Fail(t, cli.ExitFailure, "connection refused", on("reset", "k", "--topology", file)...)
}

// A password is read from a file or from the environment, as redis-cli reads it, wherever there is one to give.
func TestCommandsLogIn(t *testing.T) {
	server := testserver.Redis(t, "--requirepass", "s3cret")
	clitest.Succeed(t, "flag", "set", "x", "5", "--redis-key", "flags", "--redis", "redis://:s3cret@"+server.Addr)
	b := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr, Password: "s3cret"}, "")
	fixture.Take(t, b, "k", 1)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := "redis://" + server.Addr
	commands := map[string][]string{
		"topology": fixture.With(fixture.APIFlags, "peek", "k", "--topology", fixture.TopologyFile(t, fixture.GroupsOf(1, server))),
		"url":      fixture.With(fixture.APIFlags, "peek", "k", "--redis", url),
		"flag":     {"flag", "get", "x", "--redis", url, "--redis-key", "flags"},
	}
	for _, args := range commands {
		clitest.Fail(t, cli.ExitFailure, "NOAUTH", args...)
		clitest.Succeed(t, append(args, "--password-file", file)...)
		clitest.Fail(t, cli.ExitFailure, "no such file", append(args, "--password-file", file+".not")...)
		clitest.Fail(t, cli.ExitUsage, "needs a terminal", append(args, "--ask-password")...)
		clitest.Fail(t, cli.ExitUsage, "don't go together", append(args, "--ask-password", "--password-file", file)...)
	}
	clitest.Fail(t, cli.ExitUsage, "another is given", fixture.With(fixture.APIFlags, "peek", "k", "--redis", "redis://:s3cret@"+server.Addr, "--password-file", file)...)
	clitest.Fail(t, cli.ExitUsage, "go with --redis", "flag", "get", "x", "--file", file, "--password-file", file)
	clitest.Succeed(t, fixture.With(fixture.APIFlags, "peek", "k", "--redis", "redis://:s3cret@"+server.Addr)...)
	environment := map[string]string{cluster.PasswordEnv: "s3cret"}
	for _, args := range commands {
		if got := clitest.ExecuteIn(t, environment, args...); got.Code != cli.ExitOK || got.Stderr != "" {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := clitest.ExecuteIn(t, environment, append(commands["topology"], "--user", "s0me")...); got.Code != cli.ExitFailure || strings.Contains(got.Stderr, "s3cret") {
		t.Errorf("%+v", got)
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	file := fixture.TopologyFile(t, fixture.ThreeGroups)
	keys := []string{"alice", "bob", "user:1", "user:2", "a\x1b[2Jb"}
	fixture.Golden(t, "owner.txt", clitest.Succeed(t, append([]string{"owner", "--topology", file}, keys...)...))
	fixture.Golden(t, "owner.json", clitest.Succeed(t, append([]string{"owner", "--json", "--topology", file}, keys...)...))
}

// TestPeekRestoresNoAnnouncement: a peek doesn't bring back an announcement that a server has lost.
func TestPeekRestoresNoAnnouncement(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	topology := fixture.GroupsOf(2, one, two)
	file := fixture.TopologyFile(t, topology)
	clitest.Succeed(t, "topology", "push", file)
	two.Client().FlushAll(t.Context())
	for range 50 { // a router would need a moment
		clitest.Fail(t, cli.ExitFailure, "nothing is stored", fixture.With(fixture.APIFlags, "peek", "alice", "--topology", file)...)
	}
	if keys := two.Client().Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("left %v", keys)
	}
}

// With the file of policies that applications use a key's counts are found by the key alone.
func TestKeyCommandsTakePoliciesFromAFile(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, "")
	fixture.Take(t, b, "tenant:7", 3)
	args := []string{
		"--redis", "redis://" + server.Addr, "--policies", fixture.PoliciesFile(t, `{
		"policies": {"api": ["100/24h", "smooth=240/48h~1h", "1/1h+20"], "free": ["1/1s"]}, "default": "free", "keys": {"tenant:7": "api"}}`),
	}
	if got := clitest.Succeed(t, fixture.With(args, "peek", "tenant:7")...); !strings.Contains(got, "100/24h            3     97") {
		t.Error(got)
	}
	clitest.Fail(t, cli.ExitFailure, `policy "free"`, fixture.With(args, "peek", "tenant:8")...)
	if got := clitest.Succeed(t, fixture.With(args, "usage", "tenant:7", "--interval", "2h", "--json")...); !strings.Contains(got, `"used":3,`) {
		t.Error(got)
	}
	if got := clitest.Succeed(t, fixture.With(args, "reset", "tenant:7", "--json")...); !strings.Contains(got, `"given_back":3,`) {
		t.Error(got)
	}
}
