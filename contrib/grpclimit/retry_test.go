package grpclimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// retrying is a service config as an application would write it: grpc retries by itself. Its own backoff is much too
// short for the limits here, so that only the server's pushback lets it through.
const retrying = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 3, "initialBackoff": "0.001s", "maxBackoff": "0.002s", "backoffMultiplier": 1.5,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}}]}`

// honourRetryInfo is an interceptor as an application would write it: it waits as long as a denial says, and no longer
// than the call may take.
func honourRetryInfo(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	for range 3 {
		err := invoke(ctx, method, req, reply, conn, opts...)
		var wait *errdetails.RetryInfo
		for _, detail := range status.Convert(err).Details() {
			if info, ok := detail.(*errdetails.RetryInfo); ok {
				wait = info
			}
		}
		if wait == nil {
			return err
		}
		delay := wait.GetRetryDelay().AsDuration()
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= delay {
			return err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}

// Clients that do as they are told get through, at the pace of the limit, with one attempt more for each denial.
func TestClientsThatWaitGetThrough(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		cfg  grpclimit.Config
		opt  grpc.DialOption
	}{
		{"RetryInfo", grpclimit.Config{MaxPushback: -1}, grpc.WithUnaryInterceptor(honourRetryInfo)},
		{"pushback", grpclimit.Config{}, grpc.WithDefaultServiceConfig(retrying)},
		{"pushback, reserving", grpclimit.Config{Refund: func(codes.Code) bool { return false }}, grpc.WithDefaultServiceConfig(retrying)},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newCounts(t)
			th := throttlertesting.New(t, throttler.Config{Backend: clocked{b}, Policy: policy(limit.Fixed(2, 10*time.Second))})
			s := &service{}
			c := inMemory(t, s, newLimits(t, th, test.cfg), test.opt)
			started := time.Now()
			for n, want := range []time.Duration{0, 0, 10 * time.Second, 10 * time.Second, 20 * time.Second} {
				if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil {
					t.Errorf("%s: call %d: %v", test.name, n+1, err)
				}
				if got := time.Since(started); got < want || got > want+time.Second {
					t.Errorf("%s: call %d is through after %v, want %v", test.name, n+1, got, want)
				}
			}
			if calls, takes := s.calls.Load(), b.calls.Load(); calls != 5 || takes != 7 {
				t.Errorf("%s: %d calls ran in %d attempts, want 5 in 7", test.name, calls, takes)
			}
		})
	}
}

// A stream that is denied when it opens, or for a message before anything is answered, is retried too.
func TestStreamsThatWaitGetThrough(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		messages func(context.Context, grpclimit.Call) int64
		charged  int64 // before, of 3
	}{
		{"opening", nil, 3},
		{"a message", func(context.Context, grpclimit.Call) int64 { return 1 }, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newCounts(t)
			th := throttlertesting.New(t, throttler.Config{Backend: clocked{b}, Policy: policy(limit.Fixed(3, 10*time.Second))})
			c := inMemory(t, &service{}, newLimits(t, th, grpclimit.Config{MessageCost: test.messages}), grpc.WithDefaultServiceConfig(retrying))
			if _, err := th.AllowN(t.Context(), secret, test.charged); err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			stream, err := c.StreamingInputCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := stream.Send(&pb.StreamingInputCallRequest{Payload: payload(5)}); err != nil {
					t.Fatal(err)
				}
			}
			out, err := stream.CloseAndRecv()
			if err != nil || out.GetAggregatedPayloadSize() != 10 {
				t.Errorf("%s: %v, %v", test.name, out, err)
			}
			if got := time.Since(started); got < 10*time.Second || got > 11*time.Second {
				t.Errorf("%s: through after %v, want 10s", test.name, got)
			}
		})
	}
}

// Where waiting is in vain grpc's own retries give up at once, with the denial and not with a deadline.
func TestRetriesGiveUp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		cost    int64
		timeout time.Duration
		window  time.Duration
	}{
		{"never", 2, time.Hour, time.Second},
		{"longer than the deadline", 1, 5 * time.Second, 10 * time.Second},
		{"longer than a client should hang", 1, time.Hour, 2 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newCounts(t)
			th := throttlertesting.New(t, throttler.Config{Backend: clocked{b}, Policy: policy(limit.Fixed(1, test.window))})
			if _, err := th.Allow(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			c := inMemory(t, &service{}, newLimits(t, th, grpclimit.Config{
				Cost: func(context.Context, grpclimit.Call) int64 { return test.cost },
			}), grpc.WithDefaultServiceConfig(retrying))
			ctx, cancel := context.WithTimeout(t.Context(), test.timeout)
			defer cancel()
			started := time.Now()
			if _, err := c.UnaryCall(ctx, &pb.SimpleRequest{}); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: %v", test.name, err)
			}
			if got := time.Since(started); got >= time.Second {
				t.Errorf("%s: after %v, want at once", test.name, got)
			}
		})
	}
}

// What the limiter tells an admitted call must not keep grpc from retrying when the handler fails.
func TestFailuresCanBeRetried(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(10))})
	s := &service{}
	fail := func() error {
		if s.calls.Load()%2 == 1 {
			return status.Error(codes.Unavailable, "try again")
		}
		return nil
	}
	s.unary = func(context.Context) error { return fail() }
	s.both = func(pb.TestService_FullDuplexCallServer) error { return fail() }
	i := newLimits(t, th, grpclimit.Config{})
	c := dial(t, serve(t, s, options(i)...), grpc.WithDefaultServiceConfig(retrying))
	if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil {
		t.Error(err)
	}
	stream, err := c.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil || err.Error() != "EOF" {
		t.Error(err)
	}
	if calls := s.calls.Load(); calls != 4 {
		t.Errorf("the handlers ran %d times, want 4", calls)
	}
}

// clocked is a counts whose time is the bubble's.
type clocked struct{ *counts }

func (c clocked) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	c.micros.Store(time.Now().UnixMicro())
	return c.counts.Take(ctx, req)
}
