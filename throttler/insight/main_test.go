package insight_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newRecorder(t testing.TB, cfg insight.Config) *insight.Recorder {
	t.Helper()
	r, err := insight.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newNearLimit(t testing.TB, share float64, notify func(insight.NearLimitEvent)) *insight.NearLimit {
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

// spy is a Memory that counts the takes and refunds that reach it, and fails them with what failWith sets.
type spy struct {
	*memory.Memory
	calls atomic.Int64

	mu   sync.Mutex // guards fail
	fail error
}

func newSpy(t testing.TB, now func() time.Time) *spy {
	return &spy{Memory: throttlertesting.NewMemory(t, now)}
}

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
