package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// decider is an application that serves its statistics.
type decider struct {
	*throttler.Throttler
	url   string
	looks atomic.Int32
}

// decide starts an application, which does its work before it answers the second look: between any two of them that count.
func decide(t testing.TB, cfg throttler.Config, shown httplimit.StatsConfig, work func(*throttler.Throttler)) *decider {
	t.Helper()
	cfg.Stats = throttler.StatsConfig{Decisions: true, WatchedKeys: 100, HashKey: []byte("a secret of all processes")}
	its, err := throttler.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d := &decider{Throttler: its}
	stats := httplimit.StatsHandler(its, shown)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.looks.Add(1) == 2 {
			work(its)
		}
		stats.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.Close()
		_ = its.Close()
	})
	d.url = server.URL + "/debug/sluice"
	return d
}

// asks has a key ask n times.
func asks(t testing.TB, its *throttler.Throttler, key string, n int) {
	for range n {
		if _, err := its.Allow(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}

var (
	apiOf5   = limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerDay(5)}}
	rates    = regexp.MustCompile(`\d+\.\d(\s)|("per_second":){[^}]*}`)
	wideGaps = regexp.MustCompile(`  +`)
)

// masked replaces what depends on how long the interval was, and on ports.
func masked(text string, all ...*decider) string {
	for i, d := range all {
		text = strings.ReplaceAll(text, strings.TrimSuffix(d.url, "/debug/sluice"), fmt.Sprintf("http://app-%d", i+1))
	}
	return wideGaps.ReplaceAllString(steady(rates.ReplaceAllString(text, "${2}RATE$1")), "  ")
}

// What is shown is what real Throttlers have decided between two looks, as the handler serves it.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"top_once.txt": nil, "top_once.json": {"--json"}} {
		app := decide(t, throttler.Config{Policy: apiOf5}, httplimit.StatsConfig{}, func(its *throttler.Throttler) {
			asks(t, its, "alice", 9)
		})
		got := masked(succeed(t, append([]string{"top", "--once", "--interval", "100ms", "--url", app.url}, args...)...), app)
		if strings.Contains(got, "alice") {
			t.Errorf("a key in clear: %s", got)
		}
		golden(t, name, got)
	}
}

// Several processes are summed; in one of them the backend is away.
func TestTopSums(t *testing.T) {
	t.Parallel()
	away, err := redisbackend.Open(&redis.Options{Addr: "127.0.0.1:1"}, redisbackend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	one := decide(t, throttler.Config{Policy: apiOf5}, httplimit.StatsConfig{}, func(its *throttler.Throttler) {
		asks(t, its, "alice", 9)
	})
	two := decide(t, throttler.Config{Policy: apiOf5, Backend: away}, httplimit.StatsConfig{}, func(its *throttler.Throttler) {
		asks(t, its, "alice", 6)
		asks(t, its, "bob", 1)
	})
	var got struct {
		Policies  []*policyView
		TopDenied []throttler.DeniedKey `json:"top_denied"`
	}
	text := succeed(t, "top", "--once", "--interval", "100ms", "--json", "--url", one.url, "--url", two.url)
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	api := got.Policies[0]
	if api.Policy != "api" || api.Allowed != 11 || api.Denied != 5 || api.PerSecond == nil || api.PerSecond.Denied <= 0 ||
		api.Sources["local"] <= 0 || api.Sources["fallback"] <= 0 || api.Guarantees["bounded"] <= 0 {
		t.Errorf("%s", text)
	}
	want := []throttler.DeniedKey{{Key: one.KeyHash("alice"), Denied: 4}} // what is denied in an outage tells of no key
	if !slices.Equal(got.TopDenied, want) {
		t.Errorf("denied most: %v, want %v", got.TopDenied, want)
	}
}

// Keys are in clear if the application shows them so, and harmless to a terminal.
func TestTopKeysInClear(t *testing.T) {
	t.Parallel()
	app := decide(t, throttler.Config{Policy: apiOf5}, httplimit.StatsConfig{ClearKeys: true}, func(its *throttler.Throttler) {
		asks(t, its, "al\x1b[2Jice", 7)
		asks(t, its, "bob", 6)
	})
	got := succeed(t, "top", "--once", "--interval", "100ms", "--keys", "1", "--url", app.url)
	if !strings.Contains(got, "al?[2Jice") || strings.Contains(got, "bob") {
		t.Error(got)
	}
}

func TestTopFailures(t *testing.T) {
	t.Parallel()
	app := decide(t, throttler.Config{Policy: apiOf5}, httplimit.StatsConfig{}, func(*throttler.Throttler) {})
	away := "http://127.0.0.1:1/debug/sluice"
	got := execute(t, "top", "--once", "--interval", "100ms", "--url", app.url, "--url", away)
	if got.code != exitFailure || !strings.Contains(got.stderr, "connection refused") ||
		!strings.Contains(got.stdout, ", 1 of 2 processes\n") {
		t.Errorf("one of two is away: %+v", got)
	}
	fail(t, exitFailure, "connection refused", "top", "--once", "--url", away)
	for text, document := range map[string]string{
		"no policies in it":    vars("sluice_migration", migrating),
		"not the statistics":   "<html>",
		"more than 16777216 b": `{"policies": "` + strings.Repeat("x", maxStats) + `"}`,
	} {
		fail(t, exitFailure, text, "top", "--once", "--url", serve(t, document).url)
	}
}

// Away from a terminal there is a block each interval until it is interrupted, whatever happens to the processes.
func TestTopBlocks(t *testing.T) {
	t.Parallel()
	stats := serve(t, `{"policies": [{"policy": "api"}], "shadow": {}}`)
	for _, test := range []struct{ flag, block string }{{"--json=false", "POLICY "}, {"--json", `"policies":[{"policy":"api"`}} {
		s := start(t, "top", "--interval", "100ms", "--url", stats.url, test.flag)
		s.await(&s.stdout, test.block)
		wrong := "<html>"
		good := stats.document.Swap(&wrong)
		s.await(&s.stderr, "throttlectl: "+stats.url+": not the statistics")
		stats.document.Store(good)
		blocks := strings.Count(s.stdout.String(), test.block)
		for deadline := time.Now().Add(soon); strings.Count(s.stdout.String(), test.block) <= blocks+1; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no more blocks: %s", s.stdout.String())
			}
		}
		if code := s.end(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		if strings.Contains(s.stdout.String(), "\x1b") {
			t.Error("escape sequences on what is no terminal")
		}
	}
}

// told is a process that has said something at times of our own.
func told(t testing.TB, name string, begin time.Time, every time.Duration, bodies ...string) *process {
	t.Helper()
	p := &process{shown: "http://" + name + "/debug/sluice"}
	for i, body := range bodies {
		p.heard(begin.Add(time.Duration(i)*every), []byte(body))
		if p.err != nil {
			t.Fatal(p.err)
		}
	}
	return p
}

// said is what a process says that has allowed and denied that much, a tenth of it without the backend.
func said(allowed, denied int64, more string) string {
	return fmt.Sprintf(`{"policies": [
		{"policy": "api", "limits": ["100/1s", "5000/1h~1m"], "allowed": %d, "denied": %d, "errors": %d, "decisions": [
			{"allowed": false, "source": "primary", "guarantee": "exact", "count": %d},
			{"allowed": true, "source": "primary", "guarantee": "exact", "count": %d},
			{"allowed": true, "source": "fallback", "guarantee": "bounded", "count": %d}]},
		{"policy": "idle", "limits": ["1/1s"], "decisions": []}], "shadow": {}%s}`,
		allowed, denied, allowed/100, denied, allowed-allowed/10, allowed/10, more)
}

// The rates of each process are of its own interval; one that was started anew counts from zero, one that is new not yet.
func TestTopView(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	now := begin.Add(2 * time.Second)
	more := `, "registry": {"version": "7", "digest": "6e95da67e27a438a77ffac1cc2e1f6d34beac4e80234d73ab4bd2eb51ef0800e"},
		"shadow": {"allowed": %d, "denied": %d, "failed": 1},
		"top_denied": [{"key": "aa", "denied": 20, "over": 2}, {"key": "bb", "denied": 15, "over": 1}]`
	refused := `, "registry": {"digest": "6e95da67", "refused": "line 1: no\nline 2: no"}, "top_denied": [{"key": "bb", "denied": 10, "over": 0}]`
	all := []*process{
		told(t, "steady", begin, 2*time.Second, said(1000, 100, fmt.Sprintf(more, 10, 5)), said(3000, 600, fmt.Sprintf(more, 30, 15))),
		told(t, "restarted", begin, 4*time.Second, said(9000, 900, refused), said(400, 0, refused)),
		told(t, "new", begin, time.Second, said(50_000, 70_000, "")),
		{shown: "http://away/debug/sluice", err: fmt.Errorf("it is\naway")},
	}
	g := new(globals)
	for suffix, json := range map[string]bool{".txt": false, ".json": true} {
		for name, v := range map[string]*topView{
			"top":       newTopView(now, all, "decisions", 10),
			"top_first": newTopView(now, []*process{told(t, "app", begin, 0, said(1000, 100, ""))}, "name", 10),
		} {
			g.json = json
			var b strings.Builder
			if err := g.print(&b, v); err != nil {
				t.Fatal(err)
			}
			golden(t, name+suffix, b.String())
		}
	}
}

func TestTopSort(t *testing.T) {
	t.Parallel()
	decided := func(name string, allowed, denied, errors int, source string) string {
		return fmt.Sprintf(`{"policy": %q, "errors": %d, "decisions": [{"allowed": true, "source": %q, "guarantee": "exact", "count": %d},
			{"allowed": false, "source": %[3]q, "guarantee": "exact", "count": %[5]d}]}`, name, errors, source, allowed, denied)
	}
	app := told(t, "app", time.Now(), 0, `{"policies": [`+strings.Join([]string{
		decided("most", 1000, 10, 0, "primary"), decided("denied", 500, 100, 0, "leased"), decided("share", 10, 20, 0, "local"),
		decided("errors", 2, 0, 7, "primary"), decided("fallback", 1, 0, 0, "fallback"),
	}, ",")+`]}`)
	for order, first := range map[string]string{
		"decisions": "most", "denied": "denied", "share": "share", "errors": "errors", "fallback": "fallback", "name": "denied",
	} {
		if got := newTopView(time.Now(), []*process{app}, order, 0).Policies[0].Policy; got != first {
			t.Errorf("--sort %s: first is %s, want %s", order, got, first)
		}
	}
	if len(orders) != len(orderNames) {
		t.Errorf("orders %v", orderNames)
	}
}

// The handler is asked for as many keys as are wanted, beside what the URL asks for.
func TestTopQuery(t *testing.T) {
	t.Parallel()
	u, err := url.Parse("http://host/debug/sluice?token=x&top=5")
	if err != nil {
		t.Fatal(err)
	}
	if got := withTop(u, 33); got != "http://host/debug/sluice?token=x&top=33" {
		t.Error(got)
	}
	var v struct{ Policies []any }
	p := told(t, "app", time.Now(), 0, `{"policies": []}`)
	text, err := json.Marshal(newTopView(time.Now(), []*process{p}, "name", 0))
	if err != nil || json.Unmarshal(text, &v) != nil || v.Policies == nil {
		t.Errorf("%s, %v: want lists, also where nothing is in them", text, err)
	}
}
