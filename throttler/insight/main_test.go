package insight_test

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
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// one is a policy of one limit.
func one(l limit.Limit) limit.Policy { return limit.Policy{Name: "test", Limits: []limit.Limit{l}} }

func newThrottler(t testing.TB, cfg throttler.Config) *throttler.Throttler {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
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

func newNearLimit(t testing.TB, share float64, notify func(insight.Notice)) *insight.NearLimit {
	t.Helper()
	n, err := insight.NewNearLimit(insight.NearLimitConfig{Notify: notify, Share: share})
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

func newRegistry(t testing.TB, document string) *registry.Registry {
	t.Helper()
	r, err := registry.New([]byte(document), registry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// tiers is a document of some policies, and what else it says.
func tiers(rest string) string {
	return `{"policies": {"free": ["5/1h"], "pro": ["50/1h"], "max": ["500/1h", "daily=1000/24h"]}, "default": "free"` + rest + `}`
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

// clock is a time that only the test moves.
type clock struct{ micros atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.micros.Store(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() time.Time          { return time.UnixMicro(c.micros.Load()) }
func (c *clock) advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

// spy is a Memory that counts the takes and refunds that reach it, and fails them with what failWith sets.
type spy struct {
	*memory.Memory
	calls atomic.Int64

	mu   sync.Mutex // guards fail
	fail error
}

func newSpy(t testing.TB, now func() time.Time) *spy { return &spy{Memory: newMemory(t, now)} }

func (s *spy) failWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

func (s *spy) call() error {
	s.calls.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fail
}

func (s *spy) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := s.call(); err != nil {
		return backend.Result{}, err
	}
	return s.Memory.Take(ctx, req)
}

func (s *spy) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	if err := s.call(); err != nil {
		return err
	}
	return s.Memory.Refund(ctx, req, receipt, amount)
}

// errDown is what a backend that is down returns.
var errDown error = &backend.Error{Op: "take", Node: "node", Kind: backend.Unavailable, Err: errors.New("down")}

// fields are the fields of every *limit.Error in a tree of errors.
func fields(err error) (all []string) {
	for _, e := range fielderrors.All(err) {
		all = append(all, e.Field)
	}
	return all
}
