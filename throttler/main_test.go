package throttler_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// one is a policy of one limit.
func one(l limit.Limit) limit.Policy { return limit.Policy{Name: "test", Limits: []limit.Limit{l}} }

func newThrottler(t testing.TB, cfg throttler.Config) *throttler.Throttler {
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

func newRecorder(t testing.TB, cfg insight.Config) *insight.Recorder {
	t.Helper()
	r, err := insight.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newNearLimit(t testing.TB, cfg insight.NearLimitConfig) *insight.NearLimit {
	t.Helper()
	n, err := insight.NewNearLimit(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func newShadow(t testing.TB, cfg insight.ShadowConfig) *insight.Shadow {
	t.Helper()
	s, err := insight.NewShadow(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newMemory(t testing.TB, now func() time.Time) *memory.Memory {
	t.Helper()
	m, err := memory.New(memory.Config{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// allow is Allow where an error is a failure of the test.
func allow(t testing.TB, th *throttler.Throttler, key string) throttler.Decision {
	t.Helper()
	d, err := th.Allow(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// remaining is what Peek finds left.
func remaining(t testing.TB, th *throttler.Throttler, key string) int64 {
	t.Helper()
	d, err := th.Peek(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

// clock is a time that only the test moves.
type clock struct{ micros atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.micros.Store(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() time.Time          { return time.UnixMicro(c.micros.Load()) }
func (c *clock) advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

// spy is a Memory that counts the calls that reach it and fails those that failWith selects.
type spy struct {
	*memory.Memory
	calls atomic.Int64

	mu   sync.Mutex              // guards fail
	fail func(call string) error // by the operation, and for takes "take KEY"; nil passes
}

func newSpy(t testing.TB, now func() time.Time) *spy { return &spy{Memory: newMemory(t, now)} }

func (s *spy) failWith(fail func(call string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *spy) call(name string) error {
	s.calls.Add(1)
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(name)
}

func (s *spy) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := s.call("take " + req.Key); err != nil {
		return backend.Result{}, err
	}
	return s.Memory.Take(ctx, req)
}

func (s *spy) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := s.call("peek"); err != nil {
		return backend.Result{}, err
	}
	return s.Memory.Peek(ctx, req)
}

func (s *spy) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	if err := s.call("refund"); err != nil {
		return err
	}
	return s.Memory.Refund(ctx, req, receipt, amount)
}

func (s *spy) Reset(ctx context.Context, req backend.Request) error {
	if err := s.call("reset"); err != nil {
		return err
	}
	return s.Memory.Reset(ctx, req)
}

func (s *spy) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := s.call("load"); err != nil {
		return backend.Snapshot{}, err
	}
	return s.Memory.Load(ctx, req)
}

func (s *spy) Ping(ctx context.Context) error {
	if err := s.call("ping"); err != nil {
		return err
	}
	return s.Memory.Ping(ctx)
}

// bare can take and nothing else.
type bare struct{ backend.Backend }

// outage is what a backend that is down says.
func outage(mayHaveCharged bool) error {
	return &backend.Error{
		Op: "take", Node: "node", Kind: backend.Unavailable, MayHaveCharged: mayHaveCharged, Err: errors.New("down"),
	}
}

// fields are the fields of every *limit.Error in a tree of errors.
func fields(err error) []string {
	switch e := err.(type) {
	case nil:
		return nil
	case *limit.Error:
		return []string{e.Field}
	case interface{ Unwrap() []error }:
		var all []string
		for _, err := range e.Unwrap() {
			all = append(all, fields(err)...)
		}
		return all
	}
	return fields(errors.Unwrap(err))
}

// logBook keeps what was logged.
type logBook struct {
	mu      sync.Mutex // guards records
	records []slog.Record
}

func (b *logBook) logger() *slog.Logger                     { return slog.New(b) }
func (b *logBook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logBook) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *logBook) WithGroup(string) slog.Handler            { return b }
func (b *logBook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
	return nil
}

// levels counts the records by level.
func (b *logBook) levels() map[slog.Level]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := map[slog.Level]int{}
	for _, r := range b.records {
		n[r.Level]++
	}
	return n
}

// text is all that was logged.
func (b *logBook) text() string {
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
