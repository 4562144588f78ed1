package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// show is a status with its details, in a line.
func show(err error) string {
	s := status.Convert(err)
	line := fmt.Sprintf("%s: %s", s.Code(), s.Message())
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.RetryInfo:
			line += fmt.Sprintf("; retry %v", d.GetRetryDelay().AsDuration())
		case *errdetails.QuotaFailure:
			for _, v := range d.GetViolations() {
				line += fmt.Sprintf("; %s: %s", v.GetSubject(), v.GetDescription())
			}
		default:
			line += fmt.Sprintf("; %T", d)
		}
	}
	return line
}

// fields are the metadata that are the limiter's.
func fields(md metadata.MD) string {
	var list []string
	for _, name := range []string{"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "grpc-retry-pushback-ms"} {
		if values, ok := md[name]; ok {
			list = append(list, strings.Join(values, "&"))
		} else {
			list = append(list, "-")
		}
	}
	return strings.Join(list, " ")
}

const none = "- - - -"

func TestAnswers(t *testing.T) {
	t.Parallel()
	burst := limit.PerMinute(2).Named("burst")
	fixed := policy(burst, limit.Sliding(3, time.Hour, time.Minute))
	down := func(b *counts) { b.down.Store(true) }
	for _, test := range []struct {
		name            string
		th              throttler.Config
		cfg             grpclimit.Config
		before          func(*counts)
		charged         int64 // before the call
		ctx             func(context.Context) (context.Context, context.CancelFunc)
		want            string
		header, trailer string
	}{
		{name: "admitted", th: throttler.Config{Policy: fixed}, want: "OK: ", header: "2 1 60 -", trailer: none},
		{name: "denied", th: throttler.Config{Policy: fixed}, charged: 2, header: none, trailer: "2 0 60 60000",
			want: "ResourceExhausted: the call exceeds a rate limit; retry 1m0s; burst: the call exceeds the limit burst=2/1m"},
		{name: "two limits deny", th: throttler.Config{Policy: policy(burst, limit.Fixed(2, time.Hour))}, charged: 2,
			header: none, trailer: "2 0 3600 -1",
			want: "ResourceExhausted: the call exceeds a rate limit; retry 1h0m0s; " +
				"burst: the call exceeds the limit burst=2/1m; 2/1h: the call exceeds the limit 2/1h"},
		{name: "denied, no pushback", th: throttler.Config{Policy: fixed}, charged: 2, header: none, trailer: "2 0 60 -",
			cfg:  grpclimit.Config{MaxPushback: -1},
			want: "ResourceExhausted: the call exceeds a rate limit; retry 1m0s; burst: the call exceeds the limit burst=2/1m"},
		{name: "denied, longer than the pushback may be", th: throttler.Config{Policy: fixed}, charged: 2,
			cfg: grpclimit.Config{MaxPushback: time.Minute - 1}, header: none, trailer: "2 0 60 -1",
			want: "ResourceExhausted: the call exceeds a rate limit; retry 1m0s; burst: the call exceeds the limit burst=2/1m"},
		{name: "denied, longer than the call has left", th: throttler.Config{Policy: fixed}, charged: 2,
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 50*time.Second)
			}, header: none, trailer: "2 0 60 -1",
			want: "ResourceExhausted: the call exceeds a rate limit; retry 1m0s; burst: the call exceeds the limit burst=2/1m"},
		{name: "a bucket's fraction of a second", th: throttler.Config{Policy: policy(limit.TokenBucket(3, time.Second, 5))},
			charged: 5, header: none, trailer: "5 0 1 334",
			want: "ResourceExhausted: the call exceeds a rate limit; retry 333.334ms; 3/1s+5: the call exceeds the limit 3/1s+5"},
		{name: "a bucket has more soon", th: throttler.Config{Policy: policy(limit.TokenBucket(1, time.Second, 5))},
			charged: 3, header: "5 1 1 -", trailer: none, want: "OK: "},
		{name: "no metadata", th: throttler.Config{Policy: fixed}, charged: 2, header: none, trailer: "- - - 60000",
			cfg:  grpclimit.Config{NoMetadata: true},
			want: "ResourceExhausted: the call exceeds a rate limit; retry 1m0s; burst: the call exceeds the limit burst=2/1m"},
		{name: "never", th: throttler.Config{Policy: fixed}, header: none, trailer: "- - - -1",
			cfg: grpclimit.Config{Cost: func(context.Context, grpclimit.Call) int64 { return 3 }},
			want: "ResourceExhausted: the call costs more than its rate limit can ever hold; " +
				"burst: the call costs more than can ever fit the limit burst=2/1m"},
		{name: "never, above all counts", th: throttler.Config{Policy: fixed}, header: none, trailer: "- - - -1",
			cfg: grpclimit.Config{Cost: func(context.Context, grpclimit.Call) int64 { return limit.MaxCount + 1 }},
			want: "ResourceExhausted: the call costs more than its rate limit can ever hold; " +
				"burst: the call costs more than can ever fit the limit burst=2/1m"},
		{name: "never, reserved", th: throttler.Config{Policy: fixed}, header: none, trailer: "- - - -1",
			cfg: grpclimit.Config{
				Cost:   func(context.Context, grpclimit.Call) int64 { return 3 },
				Refund: func(codes.Code) bool { return true },
			},
			want: "ResourceExhausted: the call costs more than its rate limit can ever hold"},
		{name: "on the allow list", th: throttler.Config{Policy: fixed, Allow: []string{"*"}}, want: "OK: ", header: none, trailer: none},
		{name: "on the deny list", th: throttler.Config{Policy: fixed, Deny: []string{"*"}}, want: "PermissionDenied: the caller is denied",
			header: none, trailer: "- - - -1"},
		{name: "on the deny list, any pushback", th: throttler.Config{Policy: fixed, Deny: []string{"*"}},
			cfg:  grpclimit.Config{MaxPushback: math.MaxInt64},
			want: "PermissionDenied: the caller is denied", header: none, trailer: "- - - -1"},
		{name: "outage, decided alone", th: throttler.Config{Policy: fixed}, before: down, header: none, trailer: none,
			want: "OK: "},
		{name: "outage, denied alone", th: throttler.Config{Policy: policy(burst), Failure: throttler.FailOpen,
			OpenCap: limit.Fixed(1, time.Minute)}, before: down, header: none, trailer: "- - - *", charged: -1,
			want: "ResourceExhausted: the service can admit fewer calls than usual; retry *"},
		{name: "outage, closed", th: throttler.Config{Policy: fixed, Failure: throttler.FailClosed, RetryAfter: 2 * time.Second},
			before: down, header: none, trailer: "- - - 2000",
			want: "Unavailable: the service can admit fewer calls than usual; retry 2s"},
		{name: "contention", th: throttler.Config{Policy: fixed}, before: func(b *counts) { b.busy.Store(true) },
			header: none, trailer: "- - - 100", want: "Unavailable: the service can admit fewer calls than usual; retry 100ms"},
		{name: "outage, an error", th: throttler.Config{Policy: fixed, Failure: throttler.FailError}, before: down,
			header: none, trailer: none, want: "Unavailable: the call's rate limit can't be checked at the moment"},
	} {
		b := newCounts(t)
		test.th.Backend = b
		th := throttlertesting.New(t, test.th)
		s := &service{}
		c := client(t, s, newLimits(t, th, test.cfg))
		if test.before != nil {
			test.before(b)
		}
		switch {
		case test.charged > 0:
			if _, err := th.AllowN(t.Context(), secret, test.charged); err != nil {
				t.Fatal(err)
			}
		case test.charged < 0: // by the failure policy
			if d, err := th.Allow(t.Context(), secret); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}
		for _, call := range []string{"unary", "stream"} {
			if call == "stream" && strings.HasPrefix(test.want, "OK") {
				continue // it was charged for the first
			}
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if test.ctx != nil {
				ctx, cancel = test.ctx(ctx)
			}
			var header, trailer metadata.MD
			var err error
			if call == "unary" {
				_, err = c.UnaryCall(ctx, &pb.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
			} else {
				header, trailer, err = output(ctx, c)
			}
			cancel()
			if got := show(err); !like(got, test.want) {
				t.Errorf("%s, %s: %s\nwant %s", test.name, call, got, test.want)
			}
			if strings.Contains(test.name, "outage") && strings.Contains(show(err), "the limit") {
				t.Errorf("%s, %s: %s: names a limit that the backend doesn't count", test.name, call, show(err))
			}
			if got := fields(header); got != test.header {
				t.Errorf("%s, %s: header %q, want %q", test.name, call, got, test.header)
			}
			if got := fields(trailer); !like(got, test.trailer) {
				t.Errorf("%s, %s: trailer %q, want %q", test.name, call, got, test.trailer)
			}
			if strings.Contains(fmt.Sprint(err, status.Convert(err).Details(), header, trailer), secret) {
				t.Errorf("%s, %s: the key is told", test.name, call)
			}
		}
		if ran := s.calls.Load() > 0; ran != strings.HasPrefix(test.want, "OK") {
			t.Errorf("%s: the handler ran: %v", test.name, ran)
		}
	}
}

// like lets a * at the end of want stand for anything.
func like(got, want string) bool {
	if start, ok := strings.CutSuffix(want, "*"); ok {
		return strings.HasPrefix(got, start)
	}
	return got == want
}

// output makes a call that only the server streams, to its end.
func output(ctx context.Context, c pb.TestServiceClient) (header, trailer metadata.MD, err error) {
	stream, err := c.StreamingOutputCall(ctx, &pb.StreamingOutputCallRequest{})
	if err != nil {
		return nil, nil, err
	}
	for {
		if _, err = stream.Recv(); err != nil {
			break
		}
	}
	header, _ = stream.Header()
	if err.Error() == "EOF" {
		err = nil
	}
	return header, stream.Trailer(), err
}

// A call on which there is no verdict is not let through, and says nothing of why.
func TestNoVerdictIsNoWayPast(t *testing.T) {
	t.Parallel()
	key := func(key string, err error) grpclimit.KeyFunc {
		return func(context.Context, grpclimit.Call) (string, error) { return key, err }
	}
	const (
		unclear = ": the call carries no usable rate-limit key"
		unknown = "Internal: the call's rate limit can't be determined"
		away    = "Unavailable: the call's rate limit can't be checked at the moment"
	)
	for _, test := range []struct {
		name   string
		cfg    grpclimit.Config
		th     throttler.Config
		down   bool // the backend
		closed bool // the Throttler
		want   string
		is     error // what OnError is told; nil: anything
	}{
		{name: "no key", cfg: grpclimit.Config{Key: key("", grpclimit.ErrNoKey)}, want: "InvalidArgument" + unclear, is: grpclimit.ErrNoKey},
		{name: "an empty key", cfg: grpclimit.Config{Key: key("", nil)}, want: "InvalidArgument" + unclear, is: grpclimit.ErrNoKey},
		{name: "no key, as configured", cfg: grpclimit.Config{Key: key("", nil), NoKey: codes.Unauthenticated},
			want: "Unauthenticated" + unclear, is: grpclimit.ErrNoKey},
		{name: "no second key", cfg: grpclimit.Config{Also: []grpclimit.KeyFunc{key("", nil)}},
			want: "InvalidArgument" + unclear, is: grpclimit.ErrNoKey},
		{name: "the key can't be made out", cfg: grpclimit.Config{Key: key(secret, errBoom)}, want: unknown, is: errBoom},
		{name: "a status of the key's own", cfg: grpclimit.Config{
			Key: key("", fmt.Errorf("%w: %w", errBoom, status.Error(codes.PermissionDenied, "who are you?")))},
			want: "PermissionDenied: who are you?", is: errBoom},
		{name: "a status that is none", cfg: grpclimit.Config{Key: key("", okError{})}, want: unknown},
		{name: "cost 0", cfg: grpclimit.Config{Cost: func(context.Context, grpclimit.Call) int64 { return 0 }}, want: unknown},
		{name: "cost -1", cfg: grpclimit.Config{Cost: func(context.Context, grpclimit.Call) int64 { return -1 }}, want: unknown},
		{name: "invalid policy", want: unknown, th: throttler.Config{
			PolicyFor: func(context.Context, string) *limit.Policy { return &limit.Policy{} }}},
		{name: "two keys that can't be given back", cfg: grpclimit.Config{Also: []grpclimit.KeyFunc{key("another", nil)}},
			th: throttler.Config{Backend: struct{ backend.Backend }{newCounts(t)}}, want: unknown, is: throttler.ErrUnsupported},
		{name: "outage", th: throttler.Config{Failure: throttler.FailError}, down: true, want: away, is: errAway},
		{name: "closed", closed: true, want: away, is: throttler.ErrClosed},
	} {
		for _, refund := range []func(codes.Code) bool{nil, func(codes.Code) bool { return true }} {
			b := newCounts(t)
			test.th.Policy = policy(limit.PerMinute(10))
			if test.th.Backend == nil || test.down {
				test.th.Backend = b
			}
			th := throttlertesting.New(t, test.th)
			cfg := test.cfg
			told := make(chan error, 2)
			cfg.Refund, cfg.OnError = refund, func(_ context.Context, _ grpclimit.Call, err error) { told <- err }
			s := &service{}
			c := client(t, s, newLimits(t, th, cfg))
			b.down.Store(test.down)
			if test.closed {
				_ = th.Close()
			}
			_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
			_, _, err2 := output(t.Context(), c)
			for _, err := range []error{err, err2} {
				if got := show(err); got != test.want {
					t.Errorf("%s: %s, want %s", test.name, got, test.want)
				}
				if got := <-told; test.is != nil && !errors.Is(got, test.is) {
					t.Errorf("%s: OnError is told %v, want %v", test.name, got, test.is)
				}
			}
			if n := s.calls.Load(); n != 0 {
				t.Errorf("%s: the handler ran %d times", test.name, n)
			}
		}
	}
}

// okError is an error whose status says that there is none.
type okError struct{}

func (okError) Error() string { return "ok" }

func (okError) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

// What ends the call's context is the answer, and nobody else's business.
func TestContextErrorsPass(t *testing.T) {
	t.Parallel()
	past, done := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer done()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx  context.Context
		want codes.Code
	}{{past, codes.DeadlineExceeded}, {canceled, codes.Canceled}} {
		th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerMinute(10))})
		i := newLimits(t, th, grpclimit.Config{OnError: func(context.Context, grpclimit.Call, error) {
			t.Error("OnError is told")
		}})
		// The interceptor alone: grpc's own server answers by itself once the client has gone.
		_, err := i.Unary(test.ctx, nil, &grpc.UnaryServerInfo{FullMethod: unaryCall}, func(context.Context, any) (any, error) {
			t.Error("the handler ran")
			return nil, nil
		})
		if status.Code(err) != test.want {
			t.Errorf("%v, want %v", err, test.want)
		}
		if got := used(t, th, secret); got != 0 {
			t.Errorf("%d used, want 0", got)
		}
	}
}

func TestFromContext(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Backend: newCounts(t), Policy: policy(limit.PerMinute(5))})
	var got []int64
	look := func(ctx context.Context) error {
		d, ok := grpclimit.FromContext(ctx)
		if !ok || !d.Allowed {
			t.Errorf("FromContext = %+v, %v", d, ok)
		}
		got = append(got, d.Remaining)
		return nil
	}
	c := client(t, &service{unary: look, both: func(s pb.TestService_FullDuplexCallServer) error { return look(s.Context()) }},
		newLimits(t, th, grpclimit.Config{}))
	if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	stream, err := c.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil || err.Error() != "EOF" {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != "[4 3]" {
		t.Errorf("left: %v, want [4 3]", got)
	}
	if d, ok := grpclimit.FromContext(t.Context()); ok {
		t.Errorf("FromContext = %+v outside of a call", d)
	}
}

// Headers that the handler has sent are no reason to leave the limits out; nor is its failure, whose response must not
// get headers from the limiter, because a client takes those for a reason not to retry.
func TestWhereTheLimitsAreTold(t *testing.T) {
	t.Parallel()
	fail := status.Error(codes.Unavailable, "try again")
	for _, test := range []struct {
		name            string
		handler         func(context.Context) error
		header, trailer string
	}{
		{"success", nil, "9 8 60 -", none},
		{"failure", func(context.Context) error { return fail }, none, "9 8 60 -"},
		{"headers sent", func(ctx context.Context) error { return grpc.SendHeader(ctx, metadata.Pairs("a", "b")) }, none, "9 8 60 -"},
		{"headers set", func(ctx context.Context) error { return grpc.SetHeader(ctx, metadata.Pairs("a", "b")) }, "9 8 60 -", none},
	} {
		th := throttlertesting.New(t, throttler.Config{Backend: newCounts(t), Policy: policy(limit.PerMinute(9))})
		c := client(t, &service{unary: test.handler}, newLimits(t, th, grpclimit.Config{}))
		var header, trailer metadata.MD
		_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
		if (err != nil) != (test.name == "failure") {
			t.Errorf("%s: %v", test.name, err)
		}
		if fields(header) != test.header || fields(trailer) != test.trailer {
			t.Errorf("%s: header %q, trailer %q, want %q, %q", test.name, fields(header), fields(trailer), test.header, test.trailer)
		}
	}
}

func TestAlso(t *testing.T) {
	t.Parallel()
	for _, refund := range []func(codes.Code) bool{nil, func(codes.Code) bool { return false }} {
		th := throttlertesting.New(t, throttler.Config{Backend: newCounts(t), Policy: policy(limit.PerMinute(2))})
		user := "a"
		i := newLimits(t, th, grpclimit.Config{
			Key:    func(context.Context, grpclimit.Call) (string, error) { return user, nil },
			Also:   []grpclimit.KeyFunc{secretKey, secretKey}, // which counts once
			Refund: refund,
		})
		c := client(t, &service{}, i)
		for n, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
			user = string(rune('a' + n))
			if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) != want {
				t.Errorf("call %d: %v, want %v", n+1, err, want)
			}
		}
		if got := used(t, th, "c"); got != 0 {
			t.Errorf("%d charged to a user whose address is denied, want 0", got)
		}
	}
}
