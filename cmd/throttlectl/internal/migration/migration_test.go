package migration_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cli"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/clitest"
	"github.com/sluice-go/sluice/cmd/throttlectl/internal/fixture"
)

func TestMigrateStatus(t *testing.T) {
	t.Parallel()
	for _, document := range []struct {
		text string
		args []string
	}{
		{fixture.Vars("sluice_migration", fixture.Migrating), nil},
		{fixture.Vars("other", fixture.Migrating), []string{"--name", "other"}},
		{fixture.Migrating, nil}, // the object itself
	} {
		args := append([]string{"migrate", "status", "--url", fixture.Serve(t, document.text).URL}, document.args...)
		fixture.Golden(t, "migrate.txt", clitest.Succeed(t, args...))
		fixture.Golden(t, "migrate.json", clitest.Succeed(t, append(args, "--json")...))
	}
}

// What is missing is shown as missing, and a side that isn't said to be reachable isn't.
func TestMigrateStatusUnreachable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, document, stderr string }{
		{
			"migrate_down",
			fixture.Vars("sluice_migration", `{
				"flag": {"name": "redis", "percent": 12.5, "version": 32769, "reason": "stale", "stale": true, "error": "no\u001b[2Janswer"},
				"old": {"name": "memcached", "reachable": true},
				"new": {"name": "redis", "reachable": false, "error": "dial tcp 10.0.0.1:6379:\tconnection refused"},
				"dual": {"old": 1}}`),
			"throttlectl: the new side, redis, isn't reachable: dial tcp 10.0.0.1:6379:?connection refused\n",
		},
		{
			"migrate_empty",
			fixture.Vars("sluice_migration", `{}`),
			"throttlectl: the old side isn't reported\nthe new side isn't reported\n",
		},
	} {
		url := fixture.Serve(t, test.document).URL
		for suffix, args := range map[string][]string{".txt": nil, ".json": {"--json"}} {
			got := clitest.Execute(t, append([]string{"migrate", "status", "--url", url}, args...)...)
			if got.Code != cli.ExitFailure || got.Stderr != test.stderr {
				t.Errorf("%s: exit code %d, stderr %q", test.name, got.Code, got.Stderr)
			}
			fixture.Golden(t, test.name+suffix, got.Stdout)
		}
	}
	both := fixture.Serve(t, `{"old": {"name": "memcached", "error": "a"}, "new": {"error": "b"}}`).URL
	if got := clitest.Execute(t, "migrate", "status", "--url", both); got.Code != cli.ExitFailure ||
		got.Stderr != "throttlectl: the old side, memcached, isn't reachable: a\nthe new side, -, isn't reachable: b\n" {
		t.Errorf("%+v", got)
	}
}

func TestMigrateStatusFailures(t *testing.T) {
	t.Parallel()
	for text, document := range map[string]string{
		`no variable "sluice_migration"`:     fixture.Vars("other", fixture.Migrating),
		"not an object of variables: invali": "<html>",
		"not an object of variables: json: ": "[1]",
		"unexpected end":                     "",
		"cannot unmarshal string":            fixture.Vars("sluice_migration", `"soon"`),
		"cannot unmarshal number -1":         fixture.Vars("sluice_migration", `{"dual": {"old": -1}}`),
		"is null":                            fixture.Vars("sluice_migration", "null"),
		"more than 1048576 bytes":            `{"old": {"reachable": true}, "x": "` + strings.Repeat("x", 1<<20) + `"}`,
	} {
		clitest.Fail(t, cli.ExitFailure, text, "migrate", "status", "--url", fixture.Serve(t, document).URL)
	}
	clitest.Fail(t, cli.ExitFailure, "404 Not Found", "migrate", "status", "--url", fixture.Serve(t, fixture.Migrating).URL+"/no")
	clitest.Fail(t, cli.ExitFailure, "connection refused", "migrate", "status", "--url", "http://127.0.0.1:1/debug/vars")

	ctx, cancel := context.WithCancel(t.Context())
	hanging := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "{")
		_ = http.NewResponseController(w).Flush() // the headers come in time, the rest doesn't
		<-ctx.Done()
	}))
	defer hanging.Close()
	defer cancel()
	begin := time.Now()
	clitest.Fail(t, cli.ExitFailure, "deadline exceeded", "migrate", "status", "--url", hanging.URL, "--timeout", "100ms")
	if took := time.Since(begin); took > cli.DefaultTimeout {
		t.Errorf("took %v with a timeout of 100ms", took)
	}
}

func TestMigrateStatusWatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ golden, json, next string }{
		{"migrate_watch.txt", "--json=false", "\nTIME"},
		{"migrate_watch.json", "--json", "\n{"},
	} {
		app := fixture.Serve(t, fixture.Vars("sluice_migration", fixture.Migrating))
		s := clitest.Start(t, "migrate", "status", "--url", app.URL, "--watch", "100ms", test.json)
		s.Await(&s.Stdout, "memcached")
		first, _, _ := strings.Cut(fixture.Steady(s.Stdout.String()), test.next) // there may be more
		wrong := "<html>"
		app.Document.Store(&wrong)
		s.Await(&s.Stderr, "throttlectl: "+app.URL+": not an object") // and it goes on
		changed := fixture.Vars("sluice_migration", strings.ReplaceAll(fixture.Migrating, "memcached", "valkey"))
		app.Document.Store(&changed)
		s.Await(&s.Stdout, "valkey")
		if code := s.End(); code != cli.ExitOK {
			t.Errorf("exit code %d", code)
		}
		fixture.Golden(t, test.golden, strings.TrimRight(first, "\n")+"\n")
	}
}
