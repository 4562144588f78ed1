package redisbackend_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/limit"
)

// logBuffer is written by goroutines of go-redis.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) about(text string) (lines []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.text.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// What go-redis says of a server that refuses connections ends in the logger, without the key, and once for many calls.
func TestLogTo(t *testing.T) { // not parallel: the logger is the process's
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := listener.Addr().String()
	_ = listener.Close()
	var logged logBuffer
	redisbackend.LogTo(slog.New(slog.NewTextHandler(&logged, nil)))
	defer redisbackend.LogTo(nil)
	b, err := redisbackend.Open(&redis.Options{Addr: refusing}, redisbackend.Config{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	policy := limit.Policy{Limits: []limit.Limit{limit.PerMinute(1)}}
	for range 20 {
		if _, err := b.Take(t.Context(), backend.Request{Key: "alice@example.com", Policy: &policy, Cost: 1}); err == nil {
			t.Fatal("a server that isn't there has answered")
		}
	}
	lines := logged.about(refusing)
	if len(lines) == 0 || !strings.Contains(lines[0], `level=WARN msg="redis client" detail=`) || !strings.Contains(lines[0], "connection refused") {
		t.Errorf("%q", lines)
	}
	if len(lines) > 5 {
		t.Errorf("%d lines for 20 calls: %q", len(lines), lines)
	}
	if found := logged.about("alice"); len(found) > 0 {
		t.Errorf("keys: %q", found)
	}
	redisbackend.LogTo(nil)
	before := len(logged.about(""))
	_, _ = b.Take(context.Background(), backend.Request{Key: "alice@example.com", Policy: &policy, Cost: 1})
	if after := len(logged.about("")); after != before {
		t.Errorf("%d lines after LogTo(nil)", after-before)
	}
}
