//go:build unix

package scripts_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// The tests of package backend hold what the scripts decide to package limit. The tests here hold what they touch.

var policy = limit.Policy{Limits: []limit.Limit{
	limit.Fixed(3, time.Hour), limit.Sliding(3, time.Hour, time.Minute), limit.TokenBucket(3, time.Hour, 3),
}}

// arguments are of a take of cost under policy, and of its refund and reset.
func arguments(now state.At, cost int64, floor string) (take, refund, reset []any) {
	var s state.State
	v := s.Take(&policy, now, max(cost, 1))
	r := v.Receipt()
	return scripts.TakeArgs(policy.Limits, now, cost, floor, state.Move{}), scripts.RefundArgs(now, &r, cost, state.Move{}),
		scripts.ResetArgs(now, &policy, state.Move{})
}

// limited is a client of a user who may touch nothing but keys.
func limited(t *testing.T, server *testserver.Server, commands string, keys ...string) *redis.Client {
	t.Helper()
	rules := []any{"ACL", "SETUSER", "limited", "on", ">pass"}
	for _, key := range keys {
		rules = append(rules, "~"+key)
	}
	for command := range strings.FieldsSeq(commands) {
		rules = append(rules, "+"+command)
	}
	if err := server.Client().Do(t.Context(), rules...).Err(); err != nil {
		t.Fatal(err)
	}
	options := *server.Client().Options()
	options.Username, options.Password, options.MaxRetries = "limited", "pass", -1
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Set(t.Context(), "another", 1, 0).Err(); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Fatalf("the user may write another key: %v", err)
	}
	return client
}

// TestOneKey runs the scripts as a user who may touch a single key, along all of their ways.
func TestOneKey(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	ctx := t.Context()
	client := limited(t, server, "get set evalsha eval hello", "only")
	now := state.At{Micros: time.Now().UnixMicro()}
	run := func(script scripts.Script, want string, args []any) {
		t.Helper()
		got, err := client.EvalSha(ctx, script.SHA, []string{"only"}, args...).Result()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			got, err = client.Eval(ctx, script.Source, []string{"only"}, args...).Result()
		}
		if err != nil || !strings.HasPrefix(fmt.Sprint(got), want) {
			t.Errorf("%s: %v, %v; want %s...", script.Name, got, err, want)
		}
	}
	take, refund, reset := arguments(now, 2, "")
	run(scripts.Refund, "0", refund) // of a key that is not there
	run(scripts.Reset, "0", reset)
	run(scripts.Take, "1", take)
	run(scripts.Take, "0", take)
	run(scripts.Refund, "1", refund)
	run(scripts.Take, "1", take)
	run(scripts.Reset, "1", reset)
	run(scripts.Reset, "0", reset)
	var known state.State
	known.Take(&policy, state.At{Micros: now.Micros + 120_000_000}, 3)
	seed, _, _ := arguments(now, 0, known.String())
	run(scripts.Take, "0", seed) // stores what the floor knows
	run(scripts.Take, "0", take)
	if keys := server.Client().Keys(ctx, "*").Val(); len(keys) != 1 || keys[0] != "only" {
		t.Errorf("the server holds %q", keys)
	}
}

// TestGivenKeys runs the scripts for several keys as a user who may touch two, along all of their ways.
func TestGivenKeys(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	ctx := t.Context()
	client := limited(t, server, "mget set evalsha eval hello", "one", "two")
	const over, alive = 1_000_000, 2_000_000 // Unix ms
	for _, script := range []scripts.Script{scripts.Takes, scripts.TakesFixed} {
		run := func(nowMillis int64, keys string, want string, rest ...any) {
			t.Helper()
			args := []any{nowMillis * 1000, 1, "f1h", 3, nowMillis + 3_600_000}
			if script.Name == scripts.TakesFixed.Name {
				args = slices.Delete(args, 1, 2)
			}
			got, err := client.Eval(ctx, script.Source, strings.Fields(keys), append(args, rest...)...).Text()
			if err != nil || got != want {
				t.Errorf("%s of %s: %q, %v; want %q", script.Name, keys, got, err, want)
			}
		}
		store := func(key, value string) {
			t.Helper()
			if err := server.Client().Set(ctx, key, value, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		run(over, "one two one", " 1f1h:4600000,1; 1f1h:4600000,1; 1f1h:4600000,2;") // nothing is there
		run(alive, "one two one", " 0f1h:4600000,2; 1f1h:4600000,3; 1f1h:4600000,3;", 2, 2, 1)
		run(4_600_000, "two two", " 1f1h:8200000,1; 1f1h:8200000,2;") // their windows are over
		run(4_600_000, "two one two", "   1f1h:8200000,3;", 1, 1, 1, "f1h:8200000,3;", "f1h:9999999,1;", "f1h:8200000,1;")
		run(4_600_000, "two", " 0f1h:8200000,3;")
		store("one", "m:9999999999999,1,0;f1h:8200000,1;")
		store("two", "f1h:8200000,3-2-1;")
		run(4_600_000, "one one two", "   1f1h:8200000,4-2-1;")
		store("two", "")
		if err := server.Client().Del(ctx, "one").Err(); err != nil {
			t.Fatal(err)
		}
		if err := server.Client().HSet(ctx, "one", "f1h", "1").Err(); err != nil {
			t.Fatal(err)
		}
		run(4_600_000, "one two one", "  1f1h:8200000,1; ")
		if kind := server.Client().Type(ctx, "one").Val(); kind != "hash" {
			t.Errorf("%s made a %s of a hash", script.Name, kind)
		}
		if keys := server.Client().Keys(ctx, "*").Val(); len(keys) != 2 {
			t.Errorf("the server holds %q", keys)
		}
		server.Client().Del(ctx, "one", "two")
	}
}

// TestSource looks for what no script may do: name a key, read the server's clock or draw a random number.
func TestSource(t *testing.T) {
	comment := regexp.MustCompile(`--.*`)
	anyCall, calls := regexp.MustCompile(`\b(?:call|set)\(`), regexp.MustCompile(`\b(?:call|set)\(('[A-Z]+'), ([^,)]*)`)
	const set = "\nlocal set = #KEYS > 1 and redis.pcall or redis.call\n"
	for _, script := range scripts.All {
		code := comment.ReplaceAllString(script.Source, "")
		may := map[string]string{"'GET'": "KEYS[1]", "'SET'": "KEYS[1]"} // and on which key
		bad := []string{"'TIME'", "math.random", "cjson", "tostring", "pcall", "KEYS[2]"}
		if strings.HasPrefix(script.Name, scripts.Takes.Name) {
			if strings.Count(code, set) != 1 {
				t.Errorf("%s: what is refused for one key must not end the call for others", script.Name)
			}
			code = strings.Replace(code, set, "\n", 1)
			may = map[string]string{"'MGET'": "unpack(KEYS", "'SET'": "key"}
			bad = append(bad[:len(bad)-1], "KEYS[1]")
			for _, assigned := range regexp.MustCompile(`\bkey\b[^]=\n]*=[^=][^\n]*`).FindAllString(code, -1) {
				if !strings.HasPrefix(assigned, "key, cost, floor = KEYS[i], ") {
					t.Errorf("%s has a key that it may not have been given: %s", script.Name, assigned)
				}
			}
		}
		if script.Name == scripts.Charge.Name {
			for _, once := range []string{"\nlocal call = redis.pcall\n", " pcall(charged, "} {
				if strings.Count(code, once) != 1 {
					t.Errorf("%s: what is wrong with one key must not end the call for others", script.Name)
				}
				code = strings.Replace(code, once, "\n", 1)
			}
			code = strings.Replace(code, "redis.call('SET', KEYS[1], value, 'KEEPTTL')", "", 1) // of state.lua, which it doesn't call
			may = map[string]string{"'GET'": "KEYS[i]", "'SET'": "KEYS[i]"}
		}
		read := calls.FindAllStringSubmatch(code, -1)
		for _, call := range read {
			if key, ok := may[call[1]]; !ok {
				t.Errorf("%s calls %s, which the documented permissions lack", script.Name, call[1])
			} else if call[2] != key {
				t.Errorf("%s touches %s: %s", script.Name, call[2], call[0])
			}
		}
		if n := len(anyCall.FindAllString(code, -1)); n != len(read) || n < 2 {
			t.Errorf("%s: %d calls, of which %d could be read", script.Name, n, len(read))
		}
		// A call that goes by another name than redis.call and set can't be read here.
		if n := strings.Count(code, "redis."); n != strings.Count(code, "redis.call(")+strings.Count(code, "redis.error_reply(") {
			t.Errorf("%s uses the server by another name", script.Name)
		}
		for _, bad := range bad {
			if strings.Contains(code, bad) {
				t.Errorf("%s has %s", script.Name, bad)
			}
		}
	}
}

// TestSHA: the server gives the scripts the names that EVALSHA is called with.
func TestSHA(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	for _, script := range scripts.All {
		sha, err := server.Client().ScriptLoad(context.Background(), script.Source).Result()
		if err != nil || sha != script.SHA {
			t.Errorf("%s: the server says %s, %v; want %s", script.Name, sha, err, script.SHA)
		}
	}
}
