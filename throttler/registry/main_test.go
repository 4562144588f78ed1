package registry_test

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// allow is Allow where an error is a failure of the test.
func allow(t testing.TB, th *throttler.Throttler, key string) throttler.Decision {
	t.Helper()
	d, err := th.Allow(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d
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

// policyOf is the policy that a registry gives a key.
func policyOf(r *registry.Registry, key string) *limit.Policy {
	p, err := r.View().Policy(context.Background(), key)
	if err != nil {
		panic(err)
	}
	return p
}

// tiers is a document of some policies, and what else it says.
func tiers(rest string) string {
	return `{"policies": {"free": ["5/1h"], "pro": ["50/1h"], "max": ["500/1h", "daily=1000/24h"]}, "default": "free"` + rest + `}`
}

// fields are the fields of every *limit.Error in a tree of errors.
func fields(err error) (all []string) {
	for _, e := range fielderrors.All(err) {
		all = append(all, e.Field)
	}
	return all
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
