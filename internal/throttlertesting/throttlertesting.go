// Package throttlertesting has what the tests of a Throttler and of its observers share.
package throttlertesting

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// One is a policy of one limit.
func One(l limit.Limit) limit.Policy { return limit.Policy{Name: "test", Limits: []limit.Limit{l}} }

// New returns a Throttler that the test closes. Without a Logger it logs nothing.
func New(t testing.TB, cfg throttler.Config) *throttler.Throttler {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	th, err := throttler.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = th.Close() })
	return th
}

// NewMemory returns a backend in memory that the test closes.
func NewMemory(t testing.TB, now func() time.Time) *memory.Memory {
	t.Helper()
	m, err := memory.New(memory.Config{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// Allow is Throttler.Allow where an error is a failure of the test.
func Allow(t testing.TB, th *throttler.Throttler, key string) throttler.Decision {
	t.Helper()
	d, err := th.Allow(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Outage is what a backend that is down says.
func Outage(mayHaveCharged bool) error {
	return &backend.Error{
		Op: "take", Node: "node", Kind: backend.Unavailable, MayHaveCharged: mayHaveCharged, Err: errors.New("down"),
	}
}

// LogBook keeps what was logged.
type LogBook struct {
	mu      sync.Mutex // guards records
	records []slog.Record
}

func (b *LogBook) Logger() *slog.Logger { return slog.New(b) }

func (b *LogBook) Enabled(context.Context, slog.Level) bool { return true }

func (b *LogBook) WithAttrs([]slog.Attr) slog.Handler { return b }

func (b *LogBook) WithGroup(string) slog.Handler { return b }

func (b *LogBook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
	return nil
}

// levels counts the records by level.
func (b *LogBook) Levels() map[slog.Level]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := map[slog.Level]int{}
	for _, r := range b.records {
		n[r.Level]++
	}
	return n
}

// text is all that was logged.
func (b *LogBook) Text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var text string
	for _, r := range b.records {
		text += r.Message
		r.Attrs(func(a slog.Attr) bool {
			text += " " + a.String()
			return true
		})
		text += "\n"
	}
	return text
}
