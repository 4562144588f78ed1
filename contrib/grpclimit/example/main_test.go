package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTour runs what the command's doc tells a reader to type.
func TestTour(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), &out, ""); err != nil {
		t.Fatal(err)
	}
	_, waits, _ := strings.Cut(out.String(), "a client that waits:\n")
	waits, reports, _ := strings.Cut(waits, "reports cost 5; what isn't there, 1:\n")
	if n := strings.Count(waits, "hello "); n != 7 || strings.Contains(waits, "Exhausted") {
		t.Errorf("the client that waits got %d of 7 through:\n%s", n, out.String())
	}
	for text, want := range map[string]int{
		"a report that took much work": 3, "NotFound: there is no such report": 2,
		"ResourceExhausted: the call exceeds a rate limit": 1, "reports: the call exceeds the limit reports=20/1m": 1, "ratelimit-remaining: [3]": 1,
	} {
		if got := strings.Count(reports, text); got != want {
			t.Errorf("%q is there %d times, want %d:\n%s", text, got, want, out.String())
		}
	}
}

// The server alone goes on until it is told to stop.
func TestServer(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, new(strings.Builder), "127.0.0.1:0") }()
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the server doesn't stop")
	}
}
