package top_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// What is shown is what real Throttlers have decided between two looks, as the handler serves it.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"top_once.txt": nil, "top_once.json": {"--json"}} {
		app := fixture.Decide(t, throttler.Config{Policy: fixture.APIOf5}, insight.HandlerConfig{}, func(its *throttler.Throttler) {
			fixture.Ask(t, its, "alice", 9)
		})
		got := fixture.Masked(clitest.Succeed(t, append([]string{"top", "--once", "--interval", "100ms", "--url", app.URL}, args...)...), app)
		if strings.Contains(got, "alice") {
			t.Errorf("a key in clear: %s", got)
		}
		fixture.Golden(t, name, got)
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
	one := fixture.Decide(t, throttler.Config{Policy: fixture.APIOf5}, insight.HandlerConfig{}, func(its *throttler.Throttler) {
		fixture.Ask(t, its, "alice", 9)
	})
	two := fixture.Decide(t, throttler.Config{Policy: fixture.APIOf5, Backend: away, Processes: 1}, insight.HandlerConfig{}, func(its *throttler.Throttler) {
		fixture.Ask(t, its, "alice", 6)
		fixture.Ask(t, its, "bob", 1)
	})
	var got struct {
		Policies []struct {
			Policy              string
			Allowed, Denied     int64
			PerSecond           *struct{ Denied float64 } `json:"per_second"`
			Sources, Guarantees map[string]float64
		}
		TopDenied []insight.DeniedKey `json:"top_denied"`
	}
	text := clitest.Succeed(t, "top", "--once", "--interval", "100ms", "--json", "--url", one.URL, "--url", two.URL)
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	api := got.Policies[0]
	if api.Policy != "api" || api.Allowed != 11 || api.Denied != 5 || api.PerSecond == nil || api.PerSecond.Denied <= 0 ||
		api.Sources["local"] <= 0 || api.Sources["fallback"] <= 0 || api.Guarantees["bounded"] <= 0 {
		t.Errorf("%s", text)
	}
	want := []insight.DeniedKey{{Key: one.KeyHash("alice"), Denied: 4}} // what is denied in an outage tells of no key
	if !slices.Equal(got.TopDenied, want) {
		t.Errorf("denied most: %v, want %v", got.TopDenied, want)
	}
}

// Keys are in clear if the application shows them so, and harmless to a terminal.
func TestTopKeysInClear(t *testing.T) {
	t.Parallel()
	app := fixture.Decide(t, throttler.Config{Policy: fixture.APIOf5}, insight.HandlerConfig{ClearKeys: true}, func(its *throttler.Throttler) {
		fixture.Ask(t, its, "al\x1b[2Jice", 7)
		fixture.Ask(t, its, "bob", 6)
	})
	got := clitest.Succeed(t, "top", "--once", "--interval", "100ms", "--keys", "1", "--url", app.URL)
	if !strings.Contains(got, "al?[2Jice") || strings.Contains(got, "bob") {
		t.Error(got)
	}
}

func TestTopFailures(t *testing.T) {
	t.Parallel()
	app := fixture.Decide(t, throttler.Config{Policy: fixture.APIOf5}, insight.HandlerConfig{}, func(*throttler.Throttler) {})
	away := "http://127.0.0.1:1/debug/sluice"
	got := clitest.Execute(t, "top", "--once", "--interval", "100ms", "--url", app.URL, "--url", away)
	if got.Code != cli.ExitFailure || !strings.Contains(got.Stderr, "connection refused") ||
		!strings.Contains(got.Stdout, ", 1 of 2 processes\n") {
		t.Errorf("one of two is away: %+v", got)
	}
	clitest.Fail(t, cli.ExitFailure, "connection refused", "top", "--once", "--url", away)
	for text, document := range map[string]string{
		"no policies in it":    fixture.Vars("sluice_migration", fixture.Migrating),
		"not the statistics":   "<html>",
		"more than 16777216 b": `{"policies": "` + strings.Repeat("x", 16<<20) + `"}`,
	} {
		clitest.Fail(t, cli.ExitFailure, text, "top", "--once", "--url", fixture.Serve(t, document).URL)
	}
}

// Away from a terminal there is a block each interval until it is interrupted, whatever happens to the processes.
func TestTopBlocks(t *testing.T) {
	t.Parallel()
	stats := fixture.Serve(t, `{"policies": [{"policy": "api"}], "shadow": {}}`)
	for _, test := range []struct{ flag, block string }{{"--json=false", "POLICY "}, {"--json", `"policies":[{"policy":"api"`}} {
		s := clitest.Start(t, "top", "--interval", "100ms", "--url", stats.URL, test.flag)
		s.Await(&s.Stdout, test.block)
		wrong := "<html>"
		good := stats.Document.Swap(&wrong)
		s.Await(&s.Stderr, "throttlectl: "+stats.URL+": not the statistics")
		stats.Document.Store(good)
		blocks := strings.Count(s.Stdout.String(), test.block)
		for deadline := time.Now().Add(fixture.Soon); strings.Count(s.Stdout.String(), test.block) <= blocks+1; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no more blocks: %s", s.Stdout.String())
			}
		}
		if code := s.End(); code != cli.ExitOK {
			t.Errorf("exit code %d", code)
		}
		if strings.Contains(s.Stdout.String(), "\x1b") {
			t.Error("escape sequences on what is no terminal")
		}
	}
}
