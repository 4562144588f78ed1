package throttler_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/fielderrors"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
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

// remaining is what Peek finds left.
func remaining(t testing.TB, th *throttler.Throttler, key string) int64 {
	t.Helper()
	d, err := th.Peek(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

// spy is a Memory that counts the calls that reach it and fails those that failWith selects.
type spy struct {
	*memory.Memory
	calls atomic.Int64

	mu   sync.Mutex              // guards fail
	fail func(call string) error // by the operation, and for takes "take KEY"; nil passes
}

func newSpy(t testing.TB, now func() time.Time) *spy {
	return &spy{Memory: throttlertesting.NewMemory(t, now)}
}

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

func (s *spy) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	if err := s.call("charge"); err != nil {
		return backend.Result{}, err
	}
	return s.Memory.Charge(ctx, req, mark)
}

func (s *spy) Reset(ctx context.Context, req backend.Request) error {
	if err := s.call("reset"); err != nil {
		return err
	}
	return s.Memory.Reset(ctx, req)
}

func (s *spy) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if err := req.CheckGrant(ctx, extra); err != nil {
		return err
	}
	if err := s.call("grant"); err != nil {
		return err
	}
	return s.Memory.Grant(ctx, req, extra)
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

// refundsOnly can take, peek and refund.
type refundsOnly struct{ refunding }

type refunding interface {
	backend.Backend
	backend.Peeker
	backend.Refunder
}

// fields are the fields of every *limit.Error in a tree of errors.
func fields(err error) (all []string) {
	for _, e := range fielderrors.All(err) {
		all = append(all, e.Field)
	}
	return all
}
