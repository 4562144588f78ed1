//go:build unix

package scripts_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/scripts"
)

// What the scripts decide is held to package limit by the tests of package backend. Here it is what they touch.

var policy = limit.Policy{Limits: []limit.Limit{
	limit.Fixed(3, time.Hour), limit.Sliding(3, time.Hour, time.Minute), limit.TokenBucket(3, time.Hour, 3),
}}

// arguments are of a take of cost under policy, and of its refund and reset.
func arguments(now limit.At, cost int64, floor string) (take, refund, reset []any) {
	take, refund, reset = []any{now.Micros, cost, floor}, []any{now.Micros}, []any{now.Micros}
	var s limit.State
	v := s.Take(&policy, now, max(cost, 1))
	r := v.Receipt()
	for i := range policy.Limits {
		l := &policy.Limits[i]
		id := string(l.AppendID(nil))
		end, position, fraction := r.Mark(i)
		switch l.Algorithm {
		case limit.SlidingWindow:
			take = append(take, id, l.Max, l.End(now), l.Precision.Milliseconds(), int64(l.Window/l.Precision))
			refund = append(refund, id, cost, end/1000, position, l.Precision.Milliseconds())
			reset = append(reset, id)
		case limit.Bucket:
			micros, rest := l.Refill(cost)
			burst, burstRest := l.Refill(l.Burst)
			take = append(take, id, micros, rest, burst, burstRest, l.Max)
			refund = append(refund, id, micros, rest, position, fraction, l.Max)
			reset = append(reset, id, l.Max)
		default:
			take = append(take, id, l.Max, l.End(now))
			refund = append(refund, id, cost, end/1000, position)
			reset = append(reset, id)
		}
	}
	return take, refund, reset
}

// TestOneKey runs the scripts as a user who may touch a single key, along all of their ways.
func TestOneKey(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	ctx := t.Context()
	err := server.Client().Do(ctx, "ACL", "SETUSER", "one", "on", ">pass", "~only", "+get", "+set", "+evalsha", "+eval", "+hello").Err()
	if err != nil {
		t.Fatal(err)
	}
	options := *server.Client().Options()
	options.Username, options.Password, options.MaxRetries = "one", "pass", -1
	client := redis.NewClient(&options)
	defer client.Close()
	if err := client.Get(ctx, "another").Err(); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Fatalf("the user may read another key: %v", err)
	}

	now := limit.At{Micros: time.Now().UnixMicro()}
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
	var known limit.State
	known.Take(&policy, limit.At{Micros: now.Micros + 120_000_000}, 3)
	seed, _, _ := arguments(now, 0, known.String())
	run(scripts.Take, "0", seed) // stores what the floor knows
	run(scripts.Take, "0", take)
	if keys := server.Client().Keys(ctx, "*").Val(); len(keys) != 1 || keys[0] != "only" {
		t.Errorf("the server holds %q", keys)
	}
}

// TestSource looks for what no script may do: name a key, read the server's clock or draw a random number.
func TestSource(t *testing.T) {
	calls := regexp.MustCompile(`redis\.p?call\(([^,]*), ([^,)]*)`)
	for _, script := range scripts.All {
		for _, call := range calls.FindAllStringSubmatch(script.Source, -1) {
			if call[2] != "KEYS[1]" {
				t.Errorf("%s touches %s: %s", script.Name, call[2], call[0])
			}
			if call[1] != "'GET'" && call[1] != "'SET'" {
				t.Errorf("%s calls %s, which the documented permissions lack", script.Name, call[1])
			}
		}
		if got, want := strings.Count(script.Source, "redis.call"), len(calls.FindAllString(script.Source, -1)); got != want || got == 0 {
			t.Errorf("%s: %d calls, of which %d could be read", script.Name, got, want)
		}
		for _, bad := range []string{"'TIME'", "math.random", "cjson", "tostring", "KEYS[2]"} {
			code := regexp.MustCompile(`--.*`).ReplaceAllString(script.Source, "")
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
