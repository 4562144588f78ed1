package backendtesting

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Say is a verdict in short: "ok" or "no", and for each limit what is left @ when it is full again, counted from
// start, and + how long the request has to wait.
func Say(v *state.Verdict) string {
	text := "no"
	if v.Allowed {
		text = "ok"
	}
	for s := range v.All() {
		text += fmt.Sprintf(" %d@%s", s.Remaining, s.ResetAt.Sub(Start))
		if s.RetryAfter > 0 {
			text += "+" + s.RetryAfter.String()
		}
	}
	return text
}

// OnlyTakes is a backend without optional operations.
type OnlyTakes struct{ backend.Backend }

// Constant is a flag that never changes.
func Constant(useNew bool) func(string) (bool, uint64) {
	return func(string) (bool, uint64) { return useNew, 0 }
}

func NewDual(t testing.TB, cfg dual.Config) *dual.Dual {
	t.Helper()
	d, err := dual.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func Hour(max int64) *limit.Policy {
	return &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(max, time.Hour)}}
}

// Warm makes the key one that is in use.
func Warm(t *testing.T, b backend.Backend, p *limit.Policy) {
	t.Helper()
	if r, err := b.Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: 1}); err != nil || !r.Allowed {
		t.Fatalf("allowed %t, %v", r.Allowed, err)
	}
}

func NewLease(t testing.TB, inner backend.Backend, cfg lease.Config) *lease.Lease {
	t.Helper()
	l, err := lease.New(inner, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Start is on a whole hour, so that aligned windows and sub-buckets start with a test.
var Start = time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC)

// Clock is a test's own: it stands still unless it is set.
type Clock struct{ micros atomic.Int64 }

func NewClock() *Clock {
	c := &Clock{}
	c.Set(0)
	return c
}

func (c *Clock) Now() time.Time { return time.UnixMicro(c.micros.Load()) }

func (c *Clock) Set(after time.Duration) { c.micros.Store(Start.Add(after).UnixMicro()) }

// SetMicros sets the clock to a Unix time in microseconds.
func (c *Clock) SetMicros(micros int64) { c.micros.Store(micros) }

func (c *Clock) Step(d time.Duration) { c.micros.Add(d.Microseconds()) }

func NewMemory(t testing.TB, cfg memory.Config) *memory.Memory {
	t.Helper()
	m, err := memory.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func MustTake(t testing.TB, b backend.Backend, req backend.Request) backend.Result {
	t.Helper()
	result, err := b.Take(context.Background(), req)
	if err != nil {
		t.Fatalf("Take: %v", err)
	}
	return result
}

func Heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// Patient is the timeout where nothing is to time out: a loaded machine under the race detector.
const Patient = 30 * time.Second

// Secret is a key that no error may name.
const Secret = "secret-7f3a"

// NewPrefix lets tests share a server.
func NewPrefix() string { return fmt.Sprintf("t%d:", prefixes.Add(1)) }

func OpenRedis(t testing.TB, addr string, cfg redisbackend.Config) *redisbackend.Redis {
	t.Helper()
	return OpenRedisWith(t, &redis.Options{Addr: addr}, cfg)
}

func OpenRedisWith(t testing.TB, opts *redis.Options, cfg redisbackend.Config) *redisbackend.Redis {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = Patient
	}
	b, err := redisbackend.Open(opts, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

var Hourly = &limit.Policy{Name: "p", Limits: []limit.Limit{limit.Fixed(1_000_000, time.Hour)}}

func Request(key string) backend.Request {
	return backend.Request{Key: key, Policy: Hourly, Cost: 1}
}

// Stored is where hourly's counts of a key are.
func Stored(key string) string { return "sl:p:" + key }

// Used is what is stored of a key, past the backend.
func Used(t testing.TB, server *testserver.Server, key string) int64 {
	t.Helper()
	text, err := server.Client().Get(t.Context(), Stored(key)).Result()
	if errors.Is(err, redis.Nil) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	st, err := state.ParseState(text)
	if err != nil {
		t.Fatal(err)
	}
	now := server.Client().Time(t.Context()).Val()
	v := st.Peek(Hourly, state.At{Micros: now.UnixMicro()}, 1)
	return Hourly.Limits[0].Max - v.Binding().Remaining
}

// WantError checks an error's type, and that it doesn't name the key.
func WantError(t testing.TB, err error, kind backend.Kind, mayHaveCharged bool) {
	t.Helper()
	var failed *backend.Error
	if !errors.As(err, &failed) {
		t.Fatalf("got %v, want a *backend.Error", err)
	}
	if failed.Kind != kind || failed.MayHaveCharged != mayHaveCharged {
		t.Errorf("got %v, want %s, may have charged: %t", err, kind, mayHaveCharged)
	}
	if failed.Op == "" || failed.Node == "" {
		t.Errorf("%v names no call or no node", err)
	}
	if strings.Contains(err.Error(), Secret) {
		t.Errorf("the error names the key: %v", err)
	}
}

// Receipt is one for hourly that no server has seen.
func Receipt(t testing.TB) state.Receipt {
	t.Helper()
	var s state.State
	v := s.Take(Hourly, state.At{Micros: time.Now().UnixMicro()}, 1)
	return v.Receipt()
}

// Await polls until it is so.
func Await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for begin := time.Now(); !so(); {
		if time.Since(begin) > Patient {
			t.Fatalf("waited %s for %s", Patient, what)
		}
		time.Sleep(time.Millisecond) // a poll leaves the processor to what it waits for
	}
}

var prefixes atomic.Int64

// Each makes every call that can fail on a server, and says which of them may charge.
func Each(b backend.Backend, req backend.Request, receipt state.Receipt, do func(op string, charges bool, err error)) {
	ctx := context.Background()
	_, err := b.Take(ctx, req)
	do("take", true, err)
	_, err = backend.Peek(ctx, b, req)
	do("peek", false, err)
	_, err = backend.Load(ctx, b, req)
	do("load", false, err)
	do("seed", true, backend.Seed(ctx, b, req, state.State{}))
	do("refund", true, backend.Refund(ctx, b, req, receipt, 1))
	_, err = backend.Charge(ctx, b, req, receipt.Mark())
	do("charge", true, err)
	do("reset", true, backend.Reset(ctx, b, req))
	do("grant", true, backend.Grant(ctx, b, req, 1))
	do("ping", false, backend.Ping(ctx, b))
	if _, ok := b.(control.Heartbeater); ok {
		_, err = control.HeartbeatOf(ctx, b)
		do("heartbeat", false, err)
	}
}
