package httplimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secret is the key of most requests here: it must appear nowhere.
const secret = "alice@example.com"

func secretKey(*http.Request) (string, error) { return secret, nil }

func policy(limits ...limit.Limit) limit.Policy { return limit.Policy{Name: "test", Limits: limits} }

// counts is a Memory whose time the test moves and which can be away.
type counts struct {
	*memory.Memory
	micros atomic.Int64
	down   atomic.Bool
	busy   atomic.Bool // with other callers at the same key
	calls  atomic.Int64

	refunds, endless atomic.Int64 // endless: without a deadline
}

func newCounts(t testing.TB) *counts {
	t.Helper()
	c := &counts{}
	// Far from what any host's clock says: what a client sees must not depend on that.
	c.micros.Store(time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	var err error
	c.Memory, err = memory.New(memory.Config{
		Now: func() time.Time { return time.UnixMicro(c.micros.Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Memory.Close() })
	return c
}

func (c *counts) advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

var (
	errAway = &backend.Error{Op: "take", Node: "node", Kind: backend.Unavailable, Err: errors.New("down")}
	errBusy = &backend.Error{Op: "take", Node: "node", Kind: backend.Contended, Err: errors.New("others were faster")}
)

func (c *counts) call() error {
	c.calls.Add(1)
	switch {
	case c.down.Load():
		return errAway
	case c.busy.Load():
		return errBusy
	}
	return nil
}

func (c *counts) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := c.call(); err != nil {
		return backend.Result{}, err
	}
	return c.Memory.Take(ctx, req)
}

func (c *counts) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	c.refunds.Add(1)
	if _, ok := ctx.Deadline(); !ok {
		c.endless.Add(1)
	}
	if err := c.call(); err != nil {
		return err
	}
	return c.Memory.Refund(ctx, req, receipt, amount)
}

// wrap is next behind a Middleware; the key is secret if cfg has none.
func wrap(t testing.TB, th *throttler.Throttler, cfg httplimit.Config, next http.HandlerFunc) http.Handler {
	t.Helper()
	return middleware(t, th, cfg).Wrap(next)
}

func ok(http.ResponseWriter, *http.Request) {}

func get(h http.Handler) *httptest.ResponseRecorder { return do(h, http.MethodGet) }

func do(h http.Handler, method string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
	return w
}

// used is what is charged to a key under the first limit.
func used(t testing.TB, th *throttler.Throttler, key string) int64 {
	t.Helper()
	d, err := th.Peek(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for s := range d.All() {
		return s.Limit.Quota() - s.Remaining
	}
	t.Fatal("no limit")
	return 0
}

// server serves h on a port of its own.
func server(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelError) // of panics that tests cause
	s.Start()
	t.Cleanup(s.Close)
	return s
}
