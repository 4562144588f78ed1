//go:build unix

package inspect_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

// takeAs charges a key under the limits of api, by another name.
func takeAs(t testing.TB, b backend.Backend, name, key string, cost int64) {
	t.Helper()
	policy := fixture.API
	policy.Name = name
	result, err := b.Take(t.Context(), backend.Request{Key: key, Policy: &policy, Cost: cost})
	if err != nil || !result.Allowed {
		t.Fatalf("take %d of %s: %v, %v", cost, key, result.Allowed, err)
	}
}

var spaces = regexp.MustCompile(` +`)

// spaced is a table without its alignment.
func spaced(table string) string { return spaces.ReplaceAllString(table, " ") }

// A key alone is enough to see what is stored of it, under whatever policies, and nothing is stored by looking.
func TestPeekFindsThePolicies(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b, other := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, ""), fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, "sm:")
	const key = `al*ce[1]?\{x} `
	for policy, cost := range map[string]int64{"api": 7, "": 3, "login": 2} {
		takeAs(t, b, policy, key, cost)
	}
	refunded := limit.Policy{Name: "login", Limits: []limit.Limit{limit.PerDay(9), limit.TokenBucket(1, limit.MaxWindow, 20)}}
	result, err := b.Take(t.Context(), backend.Request{Key: key, Policy: &refunded, Cost: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Refund(t.Context(), backend.Request{Key: key, Policy: &refunded}, result.Receipt(), 1); err != nil {
		t.Fatal(err)
	}
	takeAs(t, b, "?api", key, 5) // a shadow's
	takeAs(t, other, "elsewhere", key, 1)
	takeAs(t, b, "api", "bob:"+key, 1)
	takeAs(t, b, "api", `alice[1]?\{x} `, 1) // what an unescaped pattern would match
	client := server.Client()
	client.Set(t.Context(), `sl:text:al*ce[1]?\%7Bx%7D%20`, "not a state", 0)
	client.RPush(t.Context(), `sl:list:al*ce[1]?\%7Bx%7D%20`, "x")
	before := client.DBSize(t.Context()).Val()
	url := "redis://" + server.Addr
	fixture.Golden(t, "stored.txt", fixture.Steady(clitest.Succeed(t, "peek", key, "--redis", url)))
	fixture.Golden(t, "stored.json", fixture.Steady(clitest.Succeed(t, "peek", key, "--redis", url, "--json")))
	fixture.Golden(t, "stored_policy.txt", fixture.Steady(clitest.Succeed(t, "peek", key, "--redis", url, "--policy", "api")))
	if got := clitest.Succeed(t, "peek", key, "--redis", url, "--prefix", "sm:", "--json"); !strings.Contains(got, `{"policy":"elsewhere","limits":[{"limit":"?/24h","used":1,"refunded":0,`) {
		t.Error(got)
	}
	clitest.Fail(t, cli.ExitFailure, `prefix "sl:" and policy "apj": it is stored under the policies "", "?api", "api", "login": names`,
		"peek", key, "--redis", url, "--policy", "apj")
	clitest.Fail(t, cli.ExitFailure, `under prefix "sn:": names that end in this key are stored with the prefix and policy "sl:", "sl:?api", "sl:api", "sl:api:bob", "sl:login", "sm:elsewhere"`,
		"peek", key, "--redis", url, "--prefix", "sn:")
	clitest.Fail(t, cli.ExitFailure, `under prefix "sl:", nor under any other: it isn't used`, "peek", "ce", "--redis", url)
	if after := client.DBSize(t.Context()).Val(); after != before {
		t.Errorf("%d keys became %d", before, after)
	}
}

// Long keys are stored by a digest, which a search must know.
func TestPeekFindsALongKey(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b, key := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, ""), strings.Repeat("long", 100)
	fixture.Take(t, b, key, 7)
	takeAs(t, b, "api", key+"er", 1)
	if got := clitest.Succeed(t, "peek", key, "--redis", "redis://"+server.Addr); !strings.Contains(spaced(got), "\napi ?/24h 7 0 ") {
		t.Error(got)
	}
}

// What a search needs is more than applications have. Where it is refused, that is said, and policies can be named.
func TestPeekWithoutTheRightToSearch(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	fixture.Take(t, fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, ""), "alice", 7)
	allow := func(server *testserver.Server, name, rights string) string {
		args := []any{"ACL", "SETUSER", name, "on", ">secret", "resetchannels"}
		for _, one := range strings.Fields(rights) {
			args = append(args, one)
		}
		if err := server.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("redis://%s:secret@%s", name, server.Addr)
	}
	app, operator := allow(server, "app", "~sl:* +time +info +evalsha +eval +get +mget +set"), allow(server, "operator", "~sl:* +time +info +get +scan")
	for _, args := range [][]string{
		{"peek", "alice"}, {"peek", "alice", "--limit", "100/24h"}, {"reset", "alice", "--limit", "100/24h"}, {"peek", "alice", "--policy", "apj"},
	} {
		clitest.Fail(t, cli.ExitFailure, "takes the right +scan: NOPERM", fixture.With([]string{"--redis", app}, args...)...)
	}
	for _, args := range [][]string{
		{"peek", "alice", "--policy", "api", "--redis", app}, {"peek", "alice", "--redis", operator},
	} {
		if got := clitest.Succeed(t, args...); !strings.Contains(spaced(got), "\napi ?/24h 7 0 ") {
			t.Errorf("%v: %s", args, got)
		}
	}
	shards := testserver.Cluster(t, 2, 0)
	topology := router.Topology{Groups: []router.Group{{Name: "g1", Cluster: []string{shards[0].Primary.Addr}}}}
	fixture.Take(t, fixture.Application(t, topology), "alice", 7)
	for _, shard := range shards {
		allow(shard.Primary, "operator", "~sl:* +time +info +get +scan +cluster|slots +command")
	}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := clitest.Succeed(t, "peek", "alice", "--topology", fixture.TopologyFile(t, topology), "--user", "operator", "--password-file", password); !strings.Contains(spaced(got), "\napi ?/24h 7 0 ") {
		t.Error(got)
	}
	// Of another prefix the login may know the names and not what they hold.
	fixture.Take(t, fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, "sm:"), "bob", 7)
	clitest.Fail(t, cli.ExitFailure, `with the prefix and policy "sm:api"`, "peek", "bob", "--redis", operator)
}

// The key is looked for where its counts are: on any shard of a cluster, on the primary that sentinels name, on the server that
// has yet to hand it over.
func TestPeekFindsThePoliciesInATopology(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	shards := testserver.Cluster(t, 2, 0)
	sentinels := testserver.Sentinels(t, "main", one, 0)
	for name, group := range map[string]router.Group{
		"cluster":   {Name: "g1", Cluster: []string{shards[0].Primary.Addr}},
		"sentinels": {Name: "g1", Sentinels: []string{sentinels[0].Addr}, Master: "main"},
	} {
		topology := router.Topology{Groups: []router.Group{group}}
		app, file := fixture.Application(t, topology), fixture.TopologyFile(t, topology)
		for i := range 4 {
			key := fmt.Sprintf("%s-%d", name, i)
			takeAs(t, app, "api", key, 7)
			takeAs(t, app, "login", key, 2)
			got := spaced(clitest.Succeed(t, "peek", key, "--topology", file))
			for _, want := range []string{" g1\n", "\napi ?/24h 7 0 ", "\nlogin ?/48h~1h 2 0 "} {
				if !strings.Contains(got, want) {
					t.Errorf("%s: no %q in %s", key, want, got)
				}
			}
			clitest.Fail(t, cli.ExitFailure, `it is stored under the policies "api", "login"`, "peek", key, "--limit", "1/1h", "--topology", file)
		}
	}

	first, next := fixture.GroupsOf(1, one), fixture.GroupsOf(2, one, two)
	next = fixture.After(next, first)
	app, key := fixture.Application(t, first), fixture.MovingKey(t, first, next)
	fixture.Take(t, app, key, 3)
	file := fixture.TopologyFile(t, next)
	if err := app.Update(next); err != nil {
		t.Fatal(err)
	}
	fixture.AwaitEpoch(t, two, 2)
	for used := int64(3); used <= 7; used += 4 { // before it is handed over, and after
		got := clitest.Succeed(t, "peek", key, "--topology", file, "--json")
		if want := fmt.Sprintf(`"group":"g2","epoch":2,"policies":[{"policy":"api","limits":[{"limit":"?/24h","used":%d,`, used); !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
		if used == 3 {
			fixture.Take(t, app, key, 4)
		}
	}
	clitest.Fail(t, cli.ExitFailure, "handed the key over under epoch 2", "peek", key, "--redis", "redis://"+one.Addr)
}

// A server that can't be searched to its end is no reason to be silent: what was found is printed, and that there may be more.
func TestPeekSaysWhatWasNotSearched(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, "")
	fixture.Take(t, b, "alice", 7)
	const most = 100 // names that are read
	for i := range most {
		server.Client().Set(t.Context(), fmt.Sprintf("session-%d:alice", i), "not a state", 0)
	}
	got := clitest.Succeed(t, "peek", "alice", "--redis", "redis://"+server.Addr)
	want := fmt.Sprintf("There may be more: %s has more than %d names that end in the key\n", server.Addr, most)
	if !strings.HasSuffix(got, want) {
		t.Errorf("no %q in %s", want, got)
	}
}
