package throttler_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// operations are all that a caller can ask for a key.
var operations = []struct {
	name  string
	costs bool // whether it takes a cost
	call  func(ctx context.Context, th *throttler.Throttler, key string, cost int64) (throttler.Decision, error)
}{
	{"Allow", false, func(ctx context.Context, th *throttler.Throttler, key string, _ int64) (throttler.Decision, error) {
		return th.Allow(ctx, key)
	}},
	{"AllowN", true, func(ctx context.Context, th *throttler.Throttler, key string, cost int64) (throttler.Decision, error) {
		return th.AllowN(ctx, key, cost)
	}},
	{"AllowAll", true, func(ctx context.Context, th *throttler.Throttler, key string, cost int64) (throttler.Decision, error) {
		return th.AllowAll(ctx, []string{key}, cost)
	}},
	{"AllowAll, second", true, func(ctx context.Context, th *throttler.Throttler, key string, cost int64) (throttler.Decision, error) {
		return th.AllowAll(ctx, []string{"good", key}, cost)
	}},
	{"AllowUpTo", true, func(ctx context.Context, th *throttler.Throttler, key string, cost int64) (throttler.Decision, error) {
		_, d, err := th.AllowUpTo(ctx, key, cost)
		return d, err
	}},
	{"PeekN", true, func(ctx context.Context, th *throttler.Throttler, key string, cost int64) (throttler.Decision, error) {
		return th.PeekN(ctx, key, cost)
	}},
	{"Peek", false, func(ctx context.Context, th *throttler.Throttler, key string, _ int64) (throttler.Decision, error) {
		return th.Peek(ctx, key)
	}},
	{"Reserve", true, func(ctx context.Context, th *throttler.Throttler, key string, cost int64) (throttler.Decision, error) {
		_, err := th.Reserve(ctx, key, cost)
		return throttler.Decision{RetryAfter: limit.Never}, err
	}},
	{"Wait", true, func(ctx context.Context, th *throttler.Throttler, key string, cost int64) (throttler.Decision, error) {
		return th.Wait(ctx, key, cost)
	}},
	{"Usage", false, func(ctx context.Context, th *throttler.Throttler, key string, _ int64) (throttler.Decision, error) {
		_, err := th.Usage(ctx, key, time.Minute)
		return throttler.Decision{}, err
	}},
	{"Reset", false, func(ctx context.Context, th *throttler.Throttler, key string, _ int64) (throttler.Decision, error) {
		return throttler.Decision{}, th.Reset(ctx, key)
	}},
	{"Grant", false, func(ctx context.Context, th *throttler.Throttler, key string, _ int64) (throttler.Decision, error) {
		return throttler.Decision{}, th.Grant(ctx, key, 1)
	}},
}

// refuse makes every kind of bad call, checks the error, and leaves it to the caller to see that nothing was sent.
func refuse(t *testing.T, b backend.Backend) {
	policy := limit.Policy{Name: "test", Limits: []limit.Limit{
		limit.Sliding(100, time.Minute, time.Second), limit.TokenBucket(1000, time.Second, 50),
	}}
	invalid := throttlertesting.One(limit.PerMinute(0))
	open := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy})
	closed := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy})
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	misled := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy,
		PolicyFor: func(_ context.Context, key string) *limit.Policy {
			if key == "good" {
				return nil
			}
			return &invalid
		}})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()

	for _, op := range operations {
		for _, test := range []struct {
			name  string
			th    *throttler.Throttler
			ctx   context.Context
			key   string
			cost  int64
			field string // of a *limit.Error
			is    error
		}{
			{name: "nil context", ctx: nil, key: "k", cost: 1, field: "context"},
			{name: "empty key", ctx: t.Context(), key: "", cost: 1, field: "key"},
			{name: "closed", th: closed, ctx: t.Context(), key: "k", cost: 1, is: throttler.ErrClosed},
			{name: "cancelled", ctx: ended, key: "k", cost: 1, is: context.Canceled},
			{name: "late", ctx: late, key: "k", cost: 1, is: context.DeadlineExceeded},
			{name: "invalid policy", th: misled, ctx: t.Context(), key: "k", cost: 1, field: `policy "test": limit 1: max`},
			{name: "cost 0", ctx: t.Context(), key: "k", cost: 0, field: "cost"},
			{name: "cost -1", ctx: t.Context(), key: "k", cost: -1, field: "cost"},
			{name: "smallest cost", ctx: t.Context(), key: "k", cost: math.MinInt64, field: "cost"},
			{name: "cost 2^53", ctx: t.Context(), key: "k", cost: 1 << 53, field: "cost"},
			{name: "largest cost", ctx: t.Context(), key: "k", cost: math.MaxInt64, field: "cost"},
			{name: "cost above a quota", ctx: t.Context(), key: "k", cost: 51, field: "cost", is: limit.ErrCostExceedsLimit},
			{name: "cost 2^53-1", ctx: t.Context(), key: "k", cost: limit.MaxCount, field: "cost",
				is: limit.ErrCostExceedsLimit},
		} {
			if test.cost != 1 && !op.costs || op.name == "AllowUpTo" && test.is == limit.ErrCostExceedsLimit {
				continue
			}
			if test.th == nil {
				test.th = open
			}
			d, err := op.call(test.ctx, test.th, test.key, test.cost)
			if err == nil || d.Allowed {
				t.Errorf("%s, %s: %+v, %v, want an error", op.name, test.name, d, err)
				continue
			}
			if got := strings.Join(fields(err), ", "); got != test.field {
				t.Errorf("%s, %s: fields %q of %v, want %q", op.name, test.name, got, err, test.field)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%s, %s: %v, want %v", op.name, test.name, err, test.is)
			}
			if never := d.RetryAfter == limit.Never; never != errors.Is(err, limit.ErrCostExceedsLimit) &&
				op.name != "Reserve" {
				t.Errorf("%s, %s: RetryAfter = %v", op.name, test.name, d.RetryAfter)
			}
			if d.Limit != (limit.Limit{}) && d.Limit != policy.Limits[1] {
				t.Errorf("%s, %s: Limit = %v, want the one with the smallest quota", op.name, test.name, d.Limit)
			}
		}
	}

	if _, err := open.AllowAll(t.Context(), nil, 1); strings.Join(fields(err), "") != "keys" {
		t.Errorf("AllowAll without a key = %v", err)
	}
	for _, interval := range []time.Duration{0, -time.Second, time.Minute + 1, math.MaxInt64} {
		if _, err := open.Usage(t.Context(), "k", interval); strings.Join(fields(err), "") != "interval" {
			t.Errorf("Usage over %v = %v", interval, err)
		}
	}
	for _, extra := range []int64{0, -1, limit.MaxCount + 1} {
		if err := open.Grant(t.Context(), "k", extra); strings.Join(fields(err), "") != "extra" {
			t.Errorf("Grant of %d = %v", extra, err)
		}
	}
	var none context.Context
	if err := open.Ping(none); strings.Join(fields(err), "") != "context" {
		t.Errorf("Ping without a context = %v", err)
	}
	if err := closed.Ping(t.Context()); !errors.Is(err, throttler.ErrClosed) {
		t.Errorf("Ping after Close = %v", err)
	}
}

func TestBadInputCostsNoCall(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	refuse(t, b)
	if n := b.calls.Load(); n != 0 {
		t.Errorf("%d calls reached the backend", n)
	}
}

// The edges of what is accepted.
func TestGoodInput(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: throttlertesting.One(limit.PerHour(limit.MaxCount))})
	for key, cost := range map[string]int64{
		"small": 1, "large": limit.MaxCount, "\x00": 1, "a b\r\n{}\xff": 1, strings.Repeat("x", 1<<20): 1,
	} {
		d, err := th.AllowN(t.Context(), key, cost)
		if err != nil || !d.Allowed || d.Remaining != limit.MaxCount-cost {
			t.Errorf("cost %d: %+v, %v", cost, d, err)
		}
	}
}

func TestUnsupported(t *testing.T) {
	t.Parallel()
	b := newSpy(t, nil)
	th := throttlertesting.New(t, throttler.Config{Backend: bare{b}, Policy: throttlertesting.One(limit.Sliding(5, time.Minute, time.Second))})
	for _, op := range operations {
		d, err := op.call(t.Context(), th, "k", 1)
		switch op.name {
		case "Allow", "AllowN", "AllowAll", "AllowUpTo", "Wait":
			if err != nil || !d.Allowed {
				t.Errorf("%s = %+v, %v, want it to pass", op.name, d, err)
			}
		default:
			if !errors.Is(err, throttler.ErrUnsupported) {
				t.Errorf("%s = %v, want ErrUnsupported", op.name, err)
			}
		}
	}
	if n := b.calls.Load(); n != 5 {
		t.Errorf("%d calls reached the backend, want the 5 that it can", n)
	}
	if err := th.Ping(t.Context()); err != nil {
		t.Errorf("Ping = %v, want nil for a backend that has none", err)
	}
}
