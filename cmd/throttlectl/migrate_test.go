package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const migrating = `{
	"flag": {"name": "redis", "percent": 10, "version": 32768, "reason": "split", "stale": false, "error": ""},
	"old": {"name": "memcached", "reachable": true, "error": "", "rtt_micros": 120},
	"new": {"name": "redis", "reachable": true, "error": "", "rtt_micros": 1500, "later": {"more": 1}},
	"dual": {"old": 123, "new": 45, "handovers": 12, "redirected": 3, "bounded": 2,
		"shadow": {"agreed": 100, "denied": 1, "allowed": 5, "remaining": 4, "failed": 6, "dropped": 7}},
	"later": [1, 2, 3]
}`

// application serves a document as a running application would, until the test changes it.
type application struct {
	url      string
	document atomic.Pointer[string]
}

func serve(t testing.TB, document string) *application {
	t.Helper()
	a := new(application)
	a.document.Store(&document)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/vars" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, *a.document.Load())
	}))
	t.Cleanup(server.Close)
	a.url = server.URL + "/debug/vars"
	return a
}

// vars is a document as package expvar serves it.
func vars(name, value string) string {
	return `{"cmdline": ["app"], "memstats": {"Alloc": 1}, "` + name + `": ` + value + `}`
}

func TestMigrateStatus(t *testing.T) {
	t.Parallel()
	for _, document := range []struct {
		text string
		args []string
	}{
		{vars("sluice_migration", migrating), nil},
		{vars("other", migrating), []string{"--name", "other"}},
		{migrating, nil}, // the object itself
	} {
		args := append([]string{"migrate", "status", "--url", serve(t, document.text).url}, document.args...)
		golden(t, "migrate.txt", succeed(t, args...))
		golden(t, "migrate.json", succeed(t, append(args, "--json")...))
	}
}

// What is missing is shown as missing, and a side that isn't said to be reachable isn't.
func TestMigrateStatusUnreachable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, document, stderr string }{
		{
			"migrate_down",
			vars("sluice_migration", `{
				"flag": {"name": "redis", "percent": 12.5, "version": 32769, "reason": "stale", "stale": true, "error": "no\u001b[2Janswer"},
				"old": {"name": "memcached", "reachable": true},
				"new": {"name": "redis", "reachable": false, "error": "dial tcp 10.0.0.1:6379:\tconnection refused"},
				"dual": {"old": 1}}`),
			"throttlectl: the new side, redis, isn't reachable: dial tcp 10.0.0.1:6379:?connection refused\n",
		},
		{
			"migrate_empty",
			vars("sluice_migration", `{}`),
			"throttlectl: the old side isn't reported\nthe new side isn't reported\n",
		},
	} {
		url := serve(t, test.document).url
		for suffix, args := range map[string][]string{".txt": nil, ".json": {"--json"}} {
			got := execute(t, append([]string{"migrate", "status", "--url", url}, args...)...)
			if got.code != exitFailure || got.stderr != test.stderr {
				t.Errorf("%s: exit code %d, stderr %q", test.name, got.code, got.stderr)
			}
			golden(t, test.name+suffix, got.stdout)
		}
	}
	both := serve(t, `{"old": {"name": "memcached", "error": "a"}, "new": {"error": "b"}}`).url
	if got := execute(t, "migrate", "status", "--url", both); got.code != exitFailure ||
		got.stderr != "throttlectl: the old side, memcached, isn't reachable: a\nthe new side, -, isn't reachable: b\n" {
		t.Errorf("%+v", got)
	}
}

func TestMigrateStatusFailures(t *testing.T) {
	t.Parallel()
	for text, document := range map[string]string{
		`no variable "sluice_migration"`:     vars("other", migrating),
		"not an object of variables: invali": "<html>",
		"not an object of variables: json: ": "[1]",
		"unexpected end":                     "",
		"cannot unmarshal string":            vars("sluice_migration", `"soon"`),
		"cannot unmarshal number -1":         vars("sluice_migration", `{"dual": {"old": -1}}`),
		"is null":                            vars("sluice_migration", "null"),
		"more than 1048576 bytes":            `{"old": {"reachable": true}, "x": "` + strings.Repeat("x", maxBody) + `"}`,
	} {
		fail(t, exitFailure, text, "migrate", "status", "--url", serve(t, document).url)
	}
	fail(t, exitFailure, "404 Not Found", "migrate", "status", "--url", serve(t, migrating).url+"/no")
	fail(t, exitFailure, "connection refused", "migrate", "status", "--url", "http://127.0.0.1:1/debug/vars")

	ctx, cancel := context.WithCancel(t.Context())
	hanging := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "{")
		_ = http.NewResponseController(w).Flush() // the headers come in time, the rest doesn't
		<-ctx.Done()
	}))
	defer hanging.Close()
	defer cancel()
	begin := time.Now()
	fail(t, exitFailure, "deadline exceeded", "migrate", "status", "--url", hanging.URL, "--timeout", "100ms")
	if took := time.Since(begin); took > defaultTimeout {
		t.Errorf("took %v with a timeout of 100ms", took)
	}
}

func TestMigrateStatusWatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ golden, json, next string }{
		{"migrate_watch.txt", "--json=false", "\nTIME"},
		{"migrate_watch.json", "--json", "\n{"},
	} {
		app := serve(t, vars("sluice_migration", migrating))
		s := start(t, "migrate", "status", "--url", app.url, "--watch", "100ms", test.json)
		s.await(&s.stdout, "memcached")
		first, _, _ := strings.Cut(steady(s.stdout.String()), test.next) // there may be more
		wrong := "<html>"
		app.document.Store(&wrong)
		s.await(&s.stderr, "throttlectl: "+app.url+": not an object") // and it goes on
		changed := vars("sluice_migration", strings.ReplaceAll(migrating, "memcached", "valkey"))
		app.document.Store(&changed)
		s.await(&s.stdout, "valkey")
		if code := s.end(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		golden(t, test.golden, strings.TrimRight(first, "\n")+"\n")
	}
}
