package envoylimit_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
)

// away is a Memory that can be out of reach, or hold requests up.
type away struct {
	*memory.Memory
	down atomic.Bool
	keep atomic.Bool // refunds fail
	mute atomic.Bool // peeks fail
	held atomic.Pointer[chan struct{}]
}

func (a *away) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if held := a.held.Load(); held != nil {
		select {
		case <-*held:
		case <-ctx.Done():
			return backend.Result{}, ctx.Err()
		}
	}
	if a.down.Load() {
		return backend.Result{}, &backend.Error{Op: "take", Node: "node", Kind: backend.Unavailable, Err: errors.New("away: " + req.Key)}
	}
	return a.Memory.Take(ctx, req)
}

func (a *away) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if a.down.Load() || a.mute.Load() {
		return backend.Result{}, errAway
	}
	return a.Memory.Peek(ctx, req)
}

func (a *away) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	if a.down.Load() || a.keep.Load() {
		return errAway
	}
	return a.Memory.Refund(ctx, req, receipt, amount)
}

func (a *away) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if a.down.Load() {
		return errAway
	}
	return a.Memory.Grant(ctx, req, extra)
}

func (a *away) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	if a.down.Load() {
		return backend.Result{}, errAway
	}
	return a.Memory.Charge(ctx, req, mark)
}

var errAway = &backend.Error{Op: "peek", Node: "node", Kind: backend.Unavailable, Err: errors.New("away")}

func newAway(t testing.TB) *away {
	m, err := memory.New(memory.Config{})
	closed(t, m, err)
	return &away{Memory: m}
}

// What a request without a verdict gets is what the failure policy says; under FailError the gateway decides.
func TestFailurePolicies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy throttler.FailurePolicy
		cap    limit.Limit
		want   []string // of three requests
	}{
		{policy: throttler.FailLocal, want: []string{"OK", "OK", "OVER_LIMIT"}}, // the share of one of ten processes
		{policy: throttler.FailClosed, want: []string{"OVER_LIMIT", "OVER_LIMIT", "OVER_LIMIT"}},
		{policy: throttler.FailOpen, cap: limit.PerDay(1), want: []string{"OK", "OVER_LIMIT", "OVER_LIMIT"}},
		{policy: throttler.FailError, want: []string{"Unavailable", "Unavailable", "Unavailable"}},
	} {
		b := newAway(t)
		c, s := open(t, b, config, envoylimit.Config{Throttler: throttler.Config{Failure: tt.policy, OpenCap: tt.cap, Logger: slog.New(slog.DiscardHandler)}})
		want(t, c.ask(desc("user=ann")), isOK, "OK 19")
		b.down.Store(true)
		for i, want := range tt.want {
			res, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "web", Descriptors: []*ratelimit.RateLimitDescriptor{desc("user=ann")}})
			got := res.GetOverallCode().String()
			if err != nil {
				got = status.Code(err).String()
				if strings.Contains(err.Error(), "ann") {
					t.Errorf("the key is shown: %v", err)
				}
			}
			if got != want {
				t.Errorf("%s: request %d: %s, not %s", tt.policy, i, got, want)
			}
		}
		if n := s.Stats().Failed; tt.policy == throttler.FailError && n != 3 || tt.policy != throttler.FailError && n != 0 {
			t.Errorf("%s: %d failed", tt.policy, n)
		}
		// What charges nothing is decided alike.
		for _, d := range []*ratelimit.RateLimitDescriptor{desc("user=ann", hits(0)), desc("user=ann", giveBack(1))} {
			res, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "web", Descriptors: []*ratelimit.RateLimitDescriptor{d}})
			got, want := res.GetOverallCode().String(), "OK"
			if err != nil {
				got = status.Code(err).String()
			}
			switch {
			case tt.policy == throttler.FailError:
				want = "Unavailable"
			case tt.policy == throttler.FailClosed && !d.GetIsNegativeHits():
				want = "OVER_LIMIT"
			}
			if got != want {
				t.Errorf("%s: %v: %s, not %s", tt.policy, d, got, want)
			}
		}
		// A shadow is never the reason of a failure.
		want(t, c.ask(desc("unknown=a")), isOK, "OK -")
		c.ask(desc("tried=a", hits(0)), desc("tried=a", giveBack(1)))
		if res := c.ask(desc("tried=a")); res.GetOverallCode() != isOK {
			t.Errorf("%s: %v", tt.policy, res)
		}
	}
}

// Hits that were given back are not asked for again because what is left then isn't known.
func TestGivenBackAndNotShown(t *testing.T) {
	t.Parallel()
	b := newAway(t)
	c, s := open(t, b, config, envoylimit.Config{Throttler: throttler.Config{Failure: throttler.FailError}})
	want(t, c.ask(desc("user=ann", hits(15))), isOK, "OK 5")
	b.mute.Store(true)
	want(t, c.ask(desc("user=ann", giveBack(4))), isOK, "OK -")
	b.mute.Store(false)
	want(t, c.ask(desc("user=ann", hits(0))), isOK, "OK 9")
	if n := s.Stats().Failed; n != 0 {
		t.Errorf("%d failed", n)
	}
}

// A request that is over a limit is denied, also where what else it charged can't be given back, or its overrun not charged.
func TestDenialsInOutages(t *testing.T) {
	t.Parallel()
	for _, policy := range []throttler.FailurePolicy{throttler.FailClosed, throttler.FailError} {
		b := newAway(t)
		c, s := open(t, b, config+"  - key: spent\n    rate_limit: {unit: hour, requests_per_unit: 2}\n    sluice: {overrun: true}\n",
			envoylimit.Config{Throttler: throttler.Config{Failure: policy, Logger: slog.New(slog.DiscardHandler)}})
		want(t, c.ask(desc("tenant=t", hits(2))), isOK, "OK 0")
		b.keep.Store(true)
		want(t, c.ask(desc("user=ann", hits(3)), desc("tenant=t", hits(1))), over, "OK 17", "OVER_LIMIT 0")
		if n := s.Stats().Failed; n != 1 {
			t.Errorf("%d failed", n)
		}
		b.down.Store(true)
		got, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "web", Descriptors: []*ratelimit.RateLimitDescriptor{desc("spent=a", hits(3))}})
		if policy == throttler.FailClosed && got.GetOverallCode() != over || policy == throttler.FailError && status.Code(err) != codes.Unavailable {
			t.Errorf("%s: an overrun in an outage: %v, %v", policy, got, err)
		}
	}
}

// Lists go before limits, also for a cost that a limit never holds.
func TestLists(t *testing.T) {
	t.Parallel()
	b := newAway(t)
	c, _ := open(t, b, config+"  - key: spent\n    rate_limit: {unit: hour, requests_per_unit: 2}\n    sluice: {overrun: true}\n",
		envoylimit.Config{Throttler: throttler.Config{
			Allow: []string{"web|user=good", "web|spent=good", "web|tried=good"}, Deny: []string{"web|user=bad"},
		}})
	for _, d := range []string{"user=good", "spent=good", "tried=good"} {
		want(t, c.ask(desc(d, hits(1000))), isOK, "OK 4294967295")
	}
	want(t, c.ask(desc("user=good", hits(1000)), desc("tenant=t")), isOK, "OK 4294967295", "OK 1")
	want(t, c.ask(desc("user=good", hits(1000)), desc("user=bob", hits(1000))), over, "OK 4294967295", "OVER_LIMIT 0")
	want(t, c.ask(desc("user=bad", hits(1000)), desc("tenant=t")), over, "OVER_LIMIT 0", "OK -")
	want(t, c.ask(desc("spent=a", hits(1000))), over, "OVER_LIMIT 0")
}

// Beyond MaxRequests a request is refused at once, with a status that says why, and those under way are not disturbed.
func TestShedding(t *testing.T) {
	t.Parallel()
	b := newAway(t)
	hold := make(chan struct{})
	b.held.Store(&hold)
	c, s := open(t, b, config, envoylimit.Config{MaxRequests: 8, Throttler: throttler.Config{Timeout: time.Minute}})
	req := &pb.RateLimitRequest{Domain: "web", Descriptors: []*ratelimit.RateLimitDescriptor{desc("user=ann")}}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { c.request(req) })
	}
	for deadline := time.Now().Add(10 * time.Second); s.Stats().UnderWay < 8; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the requests don't arrive")
		}
	}
	for range 5 {
		_, err := c.ShouldRateLimit(t.Context(), req)
		st := status.Convert(err)
		var reason string
		var retry time.Duration
		for _, d := range st.Details() {
			switch d := d.(type) {
			case *errdetails.ErrorInfo:
				reason = d.GetReason()
			case *errdetails.RetryInfo:
				retry = d.GetRetryDelay().AsDuration()
			}
		}
		if st.Code() != codes.ResourceExhausted || reason != "OVERLOADED" || retry <= 0 {
			t.Errorf("%v, %q, %s", err, reason, retry)
		}
	}
	close(hold)
	all.Wait()
	want(t, c.request(req), isOK, "OK 11")
	if n := s.Stats(); n.Shed != 5 || n.UnderWay != 0 {
		t.Errorf("%+v", n)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	c, s := open(t, backends["memory"](t, newClock()), config, envoylimit.Config{})
	want(t, c.ask(desc("user=ann")), isOK, "OK 19")
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for domain, descriptors := range map[string][]string{"web": {"user=ann", "user=banned", "free=a", "unknown=a"}, "unknown": {"user=ann"}} {
		for _, d := range descriptors {
			res, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: domain, Descriptors: []*ratelimit.RateLimitDescriptor{desc(d)}})
			if status.Code(err) != codes.Unavailable {
				t.Errorf("%s: %s: %v, %v", domain, d, res, err)
			}
		}
	}
	if err := s.SetRules(s.Rules()); !errors.Is(err, backend.ErrClosed) {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := envoylimit.New(envoylimit.Config{
		NearLimit: 2, MaxRequests: -1, MaxDescriptors: -2, MaxSeries: -3,
		Throttler: throttler.Config{Policy: limit.Policy{Name: "mine"}, PolicyFor: func(context.Context, string) *limit.Policy { return nil }},
	})
	for _, want := range []string{
		"Rules = nil", "Throttler.Policy = mine", "Throttler.PolicyFor = set", "NearLimit = 2", "MaxRequests = -1", "MaxDescriptors = -2", "MaxSeries = -3",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	own, err := envoylimit.New(envoylimit.Config{Rules: parse(t, config)}) // in memory of its own
	if err != nil {
		t.Fatal(err)
	}
	want(t, dial(t, own).ask(desc("user=ann")), isOK, "OK 19")
	if err := own.Close(); err != nil {
		t.Error(err)
	}
	_, err = envoylimit.New(envoylimit.Config{Rules: parse(t, config), Throttler: throttler.Config{Processes: -1}})
	if _, ok := errors.AsType[*limit.Error](err); !ok {
		t.Error(err)
	}
}
