package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/throttler/insight"
)

// TestTour does what the command's doc tells a reader to type.
func TestTour(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	counts, err := memory.New(memory.Config{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	recorder, err := insight.New(insight.Config{WatchedKeys: 1000})
	if err != nil {
		t.Fatal(err)
	}
	limits, err := newThrottler(counts, recorder)
	if err != nil {
		t.Fatal(err)
	}
	defer limits.Close()
	handler, err := newHandler(limits)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()

	get := func(path string, header ...string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(header) == 2 {
			req.Header.Set(header[0], header[1])
		}
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	for i := range 5 {
		if res, _ := get("/hello"); res.StatusCode != http.StatusOK {
			t.Fatalf("hello %d: %s", i+1, res.Status)
		}
	}
	denied, body := get("/hello")
	if denied.StatusCode != http.StatusTooManyRequests || denied.Header.Get("Retry-After") != "1" ||
		!strings.Contains(body, `"burst"`) {
		t.Errorf("sixth hello: %s, Retry-After %q, body %s", denied.Status, denied.Header.Get("Retry-After"), body)
	}

	now = now.Add(time.Second)
	if res, _ := get("/report", "If-None-Match", `"v1"`); res.StatusCode != http.StatusNotModified {
		t.Errorf("report that the client has: %s", res.Status)
	}
	if _, body := get("/usage"); body != "6 used in the last minute\n" {
		t.Errorf("a 304 costs 1 of 5, yet usage says: %s", body)
	}
	now = now.Add(time.Second)
	if res, _ := get("/report"); res.StatusCode != http.StatusOK {
		t.Errorf("report: %s", res.Status)
	}
	if _, body := get("/usage"); body != "11 used in the last minute\n" {
		t.Errorf("usage after a report: %s", body)
	}
	if res, _ := get("/healthz"); res.StatusCode != http.StatusOK {
		t.Errorf("healthz: %s", res.Status)
	}
	// What was decided is for operators to see, and not for clients.
	if res, _ := get("/debug/sluice"); res.StatusCode != http.StatusNotFound {
		t.Errorf("clients get at statistics: %s", res.Status)
	}
	w := httptest.NewRecorder()
	newStats(recorder, counts).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/sluice", nil))
	var stats insight.Stats
	if err := json.Unmarshal(w.Body.Bytes(), &stats); err != nil {
		t.Fatal(err)
	}
	if its := stats.Policies[0]; its.Policy != "api" || its.Allowed != 7 || its.Denied != 1 || len(stats.TopDenied) != 1 {
		t.Errorf("statistics: %s", w.Body)
	}
	if strings.Contains(w.Body.String(), "127.0.0.1") {
		t.Errorf("an address in clear: %s", w.Body)
	}
	// A browser gets a page; with groups of Redis it shows their nodes.
	groups, err := open("../topology.json")
	if err != nil {
		t.Fatal(err)
	}
	defer groups.Close()
	for accept, want := range map[string]string{"text/html": "<title>Sluice</title>", "application/json": `"nodes":[{"group":`} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/debug/sluice", nil)
		r.Header.Set("Accept", accept)
		newStats(recorder, groups).ServeHTTP(w, r)
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %s", accept, w.Body)
		}
	}
}

// One server that can't listen ends the other one: it must not run without what it was asked for.
func TestServe(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = serve(t.Context(), &http.Server{Addr: "127.0.0.1:0"}, &http.Server{Addr: taken.Addr().String()})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if err := serve(ctx, &http.Server{Addr: "127.0.0.1:0"}); err != nil {
		t.Error(err)
	}
}
