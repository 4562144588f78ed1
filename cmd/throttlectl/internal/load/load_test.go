//go:build unix

package load_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/load"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

var (
	numbers       = regexp.MustCompile(`\d+(\.\d+)?(e[+-]\d+)?(ns|µs|ms|s)?`)
	gaps          = regexp.MustCompile(` {2,}`)
	progressLines = regexp.MustCompile(`(?m)^ *\d+%  \d+ decisions a second, \d+\.\d% denied, \d+ errors\n`)
)

// shapeOf is an output without what is different in every run.
func shapeOf(s string) string { return gaps.ReplaceAllString(numbers.ReplaceAllString(s, "N"), "  ") }

// attackOf runs a load to its end, and wants nothing on stderr but progress.
func attackOf(t *testing.T, args ...string) load.Loaded {
	t.Helper()
	got := clitest.Execute(t, append([]string{"load", "--json"}, args...)...)
	var r load.Loaded
	if err := json.Unmarshal([]byte(got.Stdout), &r); err != nil || got.Code != cli.ExitOK {
		t.Fatalf("%q: %v: %+v", args, err, got)
	}
	if rest := progressLines.ReplaceAllString(got.Stderr, ""); rest != "" {
		t.Errorf("%q: stderr %q", args, rest)
	}
	sum := func(counts map[string]int64) (n int64) {
		for _, c := range counts {
			n += c
		}
		return n
	}
	if r.Decisions == 0 || r.Decisions != r.Admitted+r.Denied || r.Requests != r.Decisions+sum(r.Errors) ||
		sum(r.Sources) != r.Decisions || sum(r.Guarantees) != r.Decisions {
		t.Errorf("%q: doesn't add up: %+v", args, r)
	}
	if p := r.Latency; !(0 < p.P50 && p.P50 <= p.P90 && p.P90 <= p.P99 && p.P99 <= p.P999 && p.P999 <= p.Max) {
		t.Errorf("%q: latencies %+v", args, p)
	}
	for _, l := range r.Limits {
		if l.Over != 0 {
			t.Errorf("%q: %d admitted above %v", args, l.Over, l.Limit)
		}
	}
	return r
}

func TestLoad(t *testing.T) {
	t.Parallel()
	server, second := testserver.Redis(t), testserver.Redis(t)
	file := fixture.TopologyFile(t, fixture.GroupsOf(1, server, second))
	limits := []string{"--limit", "20/24h", "--limit", "smooth=15/48h~1h", "--keys", "40", "--zipf", "0.5", "--for", "300ms"}

	if r := attackOf(t, fixture.With(limits, "--memory")...); r.Admitted > 40*15 || r.Sources["local"] != r.Decisions {
		t.Errorf("memory: %+v", r)
	}
	for _, where := range [][]string{{"--redis", "redis://" + server.Addr}, {"--topology", file, "--prefix", "t:"}} {
		admitted := int64(0)
		eventually(t, func() bool { // the windows are as long as all runs together
			r := attackOf(t, fixture.With(limits, where...)...)
			if r.Sources["primary"] != r.Decisions || r.Guarantees["exact"] != r.Decisions {
				t.Errorf("%v: %+v", where, r)
			}
			admitted += r.Admitted
			return admitted >= 40*15
		})
		if r := attackOf(t, fixture.With(limits, where...)...); admitted != 40*15 || r.Admitted != 0 {
			t.Errorf("%v: %d admitted, want 15 of each of 40 keys, and %d after that", where, admitted, r.Admitted)
		}
	}
	for name, s := range map[string]*testserver.Server{"first": server, "second": second} {
		if n, err := s.Client().Eval(t.Context(), "return #redis.call('keys', 't:*throttlectl-load-*')", nil).Int(); err != nil || n == 0 {
			t.Errorf("the %s server has %d keys, %v", name, n, err)
		}
	}
	late := attackOf(t, "--redis", "redis://"+server.Addr+"/3", "--limit", "1/24h", "--callers", "1", "--rate", "1000000/s", "--for", "300ms")
	if late.Unsent == 0 || late.Seconds > 5 {
		t.Errorf("%d unsent after %v s: what can't be asked in time must not be asked later", late.Unsent, late.Seconds)
	}
	eventually(t, func() bool {
		r := attackOf(t, "--redis", "redis://"+server.Addr+"/1", "--lease", "--limit", "1000000/24h", "--keys", "2", "--for", "300ms")
		if r.Leases == nil || r.Guarantees["exact"] != r.Decisions {
			t.Errorf("%+v", r)
		}
		return r.Sources["leased"] > 0 && r.Leases.Fetches > 0
	})
	eventually(t, func() bool {
		r := attackOf(t, "--redis", "redis://"+server.Addr+"/2", "--lease", "--limit", "1000000/1s+1000000", "--keys", "2", "--for", "300ms")
		if r.Causes["bucket_leased"] != r.Guarantees["bounded"] {
			t.Errorf("%+v", r)
		}
		return r.Guarantees["bounded"] > 0
	})
}

// TestLoadOnCredit: decisions on credit are bounded, and what they owe is charged and reported.
func TestLoadOnCredit(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	args := []string{"--redis", "redis://" + server.Addr, "--lease", "--slack", "0.2", "--limit", "5000/24h", "--keys", "2"}
	eventually(t, func() bool {
		r := attackOf(t, fixture.With(args, "--rate", "2000/s", "--for", "300ms")...)
		if r.Credit == nil || r.Credit.Bound != 1000 || r.Credit.Lost != 0 || r.Causes["on_credit"] != r.Guarantees["bounded"] {
			t.Fatalf("%+v, credit %+v", r, r.Credit)
		}
		if r.Credit.Overshoot > 1000 || r.Limits[0].OverAll > 2000 || r.Sources["on_credit"] != r.Credit.Admitted {
			t.Errorf("%+v, credit %+v", r, r.Credit)
		}
		return r.Credit.Admitted > 0 && r.Credit.Charges > 0
	})
	text := shapeOf(clitest.Succeed(t, append([]string{"load", "--for", "100ms"}, args...)...))
	if want := "CREDIT  N admitted, N charges; cost owed N, lost N, seen above a limit N of at most N\n"; !strings.Contains(text, want) {
		t.Errorf("%s: no %q", text, want)
	}
}

// eventually wants something that takes some tries on a busy machine.
func eventually(t *testing.T, try func() bool) {
	t.Helper()
	for deadline := time.Now().Add(fixture.Soon); !try(); {
		if time.Now().After(deadline) || t.Failed() {
			t.Fatal("not in so many tries")
		}
	}
}

// The load ends when it should, and no more is asked than --rate says.
func TestLoadRate(t *testing.T) {
	t.Parallel()
	r := attackOf(t, "--memory", "--limit", "10/1s", "--rate", "200/s", "--for", "500ms", "--callers", "4")
	if r.Requests > 100 || r.Requests+r.Unsent < 99 || r.Seconds < 0.4 {
		t.Errorf("%d requests and %d unsent in %v s, want 100", r.Requests, r.Unsent, r.Seconds)
	}
}

func TestLoadText(t *testing.T) {
	t.Parallel()
	args := []string{"load", "--memory", "--limit", "5/1s", "--limit", "20/1m+40", "--for", "100ms", "--lease", "--keys", "1"}
	fixture.Golden(t, "load.txt", shapeOf(clitest.Succeed(t, args...)))
	fixture.Golden(t, "load.json", shapeOf(clitest.Succeed(t, append(args, "--json")...)))
	fixture.Golden(t, "help_load.txt", clitest.Succeed(t, "load", "--help"))
}

// A server that loses counts, and its marker says that it has not, is found out: the exit code says so, and the report is
// printed all the same.
func TestLoadFindsWhatIsAboveTheLimit(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	counts := fixture.OpenRedis(t, &redis.Options{Addr: server.Addr}, "")
	policy := limit.Policy{Limits: []limit.Limit{limit.PerDay(10)}}
	usedUp := func() {
		t.Helper()
		eventually(t, func() bool {
			time.Sleep(10 * time.Millisecond)
			n := 0
			for i := range 3 {
				req := backend.Request{Key: fmt.Sprint(load.LoadPrefix, i+1), Policy: &policy, Cost: 1}
				if r, err := counts.Peek(t.Context(), req); err == nil && !r.Allowed {
					n++
				}
			}
			return n == 3
		})
	}
	s := clitest.Start(t, "load", "--redis", "redis://"+server.Addr, "--limit", "10/24h", "--keys", "3", "--rate", "500/s", "--for", "1m")
	usedUp()
	counted, err := server.Client().Keys(t.Context(), "*"+load.LoadPrefix+"*").Result()
	if err != nil || len(counted) != 3 {
		t.Fatalf("keys %q, %v", counted, err)
	}
	if err := server.Client().Del(t.Context(), counted...).Err(); err != nil {
		t.Fatal(err)
	}
	usedUp()
	if code := s.End(); code != cli.ExitFound {
		t.Errorf("exit code %d, want %d", code, cli.ExitFound)
	}
	if !strings.Contains(s.Stderr.String(), "limit 10/24h: 30 admitted above it") || !strings.Contains(s.Stdout.String(), "ABOVE LIMIT") {
		t.Errorf("stderr %q, stdout %q", s.Stderr.String(), s.Stdout.String())
	}
}

// A load that was cut short has measured less than it was asked to: that is no success.
func TestLoadInterrupted(t *testing.T) {
	t.Parallel()
	s := clitest.Start(t, "load", "--memory", "--limit", "10/1s", "--for", "10s", "--rate", "1000/s", "--json")
	s.Await(&s.Stderr, "decisions a second")
	if code := s.End(); code != cli.ExitFailure || !strings.Contains(s.Stderr.String(), "throttlectl: interrupted: it was to last 10s") {
		t.Errorf("exit code %d, stderr %q", code, s.Stderr.String())
	}
	if !strings.Contains(s.Stdout.String(), `"decisions":`) {
		t.Errorf("no report: %q", s.Stdout.String())
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	const away = "redis://127.0.0.1:1"
	remote := fixture.TopologyFile(t, router.Topology{
		Epoch: 2, Groups: []router.Group{
			{Name: "a", Primary: "127.0.0.1:1", Replicas: []string{"10.1.2.3:6379"}}, {Name: "b", Primary: "db.example:6379"},
			{Name: "c", Sentinels: []string{"127.0.0.1:2"}, Master: "main"},
		},
		Previous: &router.Topology{Epoch: 1, Groups: []router.Group{{Name: "old", Primary: "10.9.9.9:6379"}}}, // isn't asked
	})
	load := func(args ...string) []string { return append([]string{"load", "--limit", "10/1s"}, args...) }
	for _, test := range []struct {
		code int
		text string
		args []string
	}{
		{cli.ExitUsage, "--limit or --policies is needed", []string{"load", "--memory"}},
		{cli.ExitUsage, "exactly one of --topology and --redis", load()},
		{cli.ExitUsage, "exactly one of --memory, --topology and --redis", load("--memory", "--redis", away)},
		{cli.ExitUsage, "--callers = 0: must be from 1", load("--memory", "--callers", "0")},
		{cli.ExitUsage, "--keys = 0: must be from 1", load("--memory", "--keys", "0")},
		{cli.ExitUsage, "--for = 1ms: must be from 100ms", load("--memory", "--for", "1ms")},
		{cli.ExitUsage, "--for = 100h0m0s: must be from 100ms", load("--memory", "--for", "100h")},
		{cli.ExitUsage, `--rate: rate "5": must look like`, load("--memory", "--rate", "5")},
		{cli.ExitUsage, "--rate: must be more than 0", load("--memory", "--rate", "0/s")},
		{cli.ExitUsage, "--slack = 1: must be from 0 to below 1", load("--memory", "--slack", "1")},
		{cli.ExitUsage, "--slack = NaN: must be", load("--redis", away, "--lease", "--slack", "NaN")},
		{cli.ExitUsage, "--slack needs --lease and a server", load("--redis", away, "--slack", "0.1")},
		{cli.ExitUsage, "--slack needs --lease and a server", load("--memory", "--lease", "--slack", "0.1")},
		{cli.ExitUsage, "--redis is given twice", load("--redis", away, "--redis", away)},
		{cli.ExitUsage, "be: 10.1.2.3:6379; --allow-remote", load("--redis", "redis://:s3cret@10.1.2.3:6379")},
		{cli.ExitUsage, "be: localhost.example:6379;", load("--redis", "redis://localhost.example")},
		{cli.ExitUsage, "be: 10.1.2.3:6379, db.example:6379, group c (master main of sentinels 127.0.0.1:2);", load("--topology", remote)},
		{cli.ExitFailure, "connection refused", load("--redis", away)},
		{cli.ExitFailure, "connection refused", load("--redis", "redis://localhost:1")},
	} {
		clitest.Fail(t, test.code, test.text, test.args...)
	}
}

// What is in force decides who is asked, so that is judged as the file is, and before any load.
func TestLoadJudgesWhatIsInForce(t *testing.T) {
	t.Parallel()
	one, two := testserver.Redis(t), testserver.Redis(t)
	file := fixture.TopologyFile(t, fixture.GroupsOf(1, one))
	load := []string{"--topology", file, "--limit", "20/24h", "--keys", "40", "--for", "100ms", "--allow-address", "127.0.0.1", "--allow-address", "10.1.2.3"}
	fixture.Publish(t, one, fixture.GroupsOf(2, one, two))
	if r := attackOf(t, load...); r.Where != "topology "+file+" (epoch 2 is in force)" {
		t.Errorf("%+v", r)
	}
	if n := two.Client().DBSize(t.Context()).Val(); n == 0 {
		t.Error("no request to the server that is in force")
	}
	away := fixture.GroupsOf(3, one, two) // epoch 2 leads to where epoch 3 is published
	away.Groups = append(away.Groups, router.Group{Name: "away", Primary: "10.1.2.3:6379"})
	fixture.Publish(t, two, away)
	clitest.Fail(t, cli.ExitUsage, "be: 10.1.2.3:6379 of epoch 3, which is in force; --allow-remote", append([]string{"load"}, load...)...)

	fixture.Publish(t, one, fixture.GroupsOf(4, two))
	other := fixture.TopologyFile(t, fixture.GroupsOf(4, one, two))
	clitest.Fail(t, cli.ExitFailure, `another topology of epoch 4 is in force on `+one.Addr, "load", "--topology", other, "--limit", "20/24h")
}

// Load publishes no topology, whatever kind the groups are of: that is for topology push.
func TestLoadPublishesNothing(t *testing.T) {
	t.Parallel()
	plain, shards := testserver.Redis(t), testserver.Cluster(t, 1, 1)
	topology := router.Topology{Epoch: 7, Groups: []router.Group{
		{Name: "plain", Primary: plain.Addr}, {Name: "cluster", Cluster: []string{shards[0].Primary.Addr}},
	}}
	attackOf(t, "--topology", fixture.TopologyFile(t, topology), "--allow-remote", "--limit", "20/24h", "--keys", "40", "--for", "500ms")
	for _, server := range []*testserver.Server{plain, shards[0].Primary} {
		if n := server.Client().DBSize(t.Context()).Val(); n == 0 {
			t.Errorf("no request to %s", server.Addr)
		}
		if text := server.Client().Get(t.Context(), "sl:topology").Val(); text != "" {
			t.Errorf("left %q", text)
		}
	}
}
