package grpclimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

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

func five(context.Context, grpclimit.Call) int64 { return 5 }

// What is given back depends on the code that the client gets, whatever the handler made it of.
func TestRefund(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
		code codes.Code
	}{
		{"success", nil, codes.OK},
		{"a status", status.Error(codes.NotFound, "no"), codes.NotFound},
		{"a wrapped status", errors.Join(status.Error(codes.Unavailable, "no")), codes.Unavailable},
		{"a deadline", context.DeadlineExceeded, codes.DeadlineExceeded},
		{"any error", errBoom, codes.Unknown},
	} {
		for _, back := range []bool{false, true} {
			b := newCounts(t)
			th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerHour(100))})
			c := client(t, &service{
				unary: func(context.Context) error { return test.err },
				both:  func(pb.TestService_FullDuplexCallServer) error { return test.err },
			}, newLimits(t, th, grpclimit.Config{Cost: five, Refund: func(code codes.Code) bool {
				if code != test.code {
					t.Errorf("%s: Refund(%v), want %v", test.name, code, test.code)
				}
				return back
			}}))
			if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) != test.code {
				t.Errorf("%s: %v", test.name, err)
			}
			stream, err := c.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = stream.Recv()
			want, refunds := int64(10), int64(0)
			if back {
				want, refunds = 0, 2
			}
			if got := used(t, th, secret); got != want || b.refunds.Load() != refunds {
				t.Errorf("%s, %v: %d used after %d refunds, want %d after %d", test.name, back, got, b.refunds.Load(), want, refunds)
			}
		}
	}
}

// With ClampReserve less may be charged than the call costs. No more than that is kept of the other keys.
func TestRefundOfAClampedCost(t *testing.T) {
	t.Parallel()
	const address = "address"
	th := throttlertesting.New(t, throttler.Config{ // the bucket refills a second for each that was charged
		Backend: newCounts(t), ClampReserve: true, Policy: policy(limit.TokenBucket(1, time.Second, 100)),
	})
	c := client(t, &service{unary: func(context.Context) error { return status.Error(codes.Unavailable, "no") }},
		newLimits(t, th, grpclimit.Config{
			Also:   []grpclimit.KeyFunc{func(context.Context, grpclimit.Call) (string, error) { return address, nil }},
			Cost:   func(context.Context, grpclimit.Call) int64 { return 500 },
			Refund: func(codes.Code) bool { return true }, Keep: 30,
		}))
	if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	for key, want := range map[string]time.Duration{secret: 30 * time.Second, address: 100 * time.Second} {
		if d, err := th.Peek(t.Context(), key); err != nil || d.ResetAt.Sub(d.At) != want {
			t.Errorf("%s refills for %s, %v, want %s", key, d.ResetAt.Sub(d.At), err, want)
		}
	}
}

// A code that a client can bring about is no way past the limits: what is kept bounds it, and the other keys pay in full.
func TestRefundKeeps(t *testing.T) {
	t.Parallel()
	const address = "address"
	for _, test := range []struct {
		keep int64
		also bool
		user, address,
		admitted int64
	}{
		{0, true, 0, 0, 200}, {1, true, 96, 96, 96}, {1, false, 20, 100, 20}, {5, true, 100, 100, 20}, {7, true, 100, 100, 20},
	} {
		th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(100))})
		c := client(t, &service{unary: func(context.Context) error { return status.Error(codes.NotFound, "no") }},
			newLimits(t, th, grpclimit.Config{
				Cost: five, Keep: test.keep, RefundAlso: test.also,
				Also:   []grpclimit.KeyFunc{func(context.Context, grpclimit.Call) (string, error) { return address, nil }},
				Refund: func(code codes.Code) bool { return code == codes.NotFound },
			}))
		var admitted int64
		for range 200 {
			if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) == codes.NotFound {
				admitted++
			}
		}
		if u, a := used(t, th, secret), used(t, th, address); u != test.user || a != test.address || admitted != test.admitted {
			t.Errorf("keep %d, also %t: %d and %d used by %d calls, want %d and %d by %d",
				test.keep, test.also, u, a, admitted, test.user, test.address, test.admitted)
		}
	}
}

// A panic counts as what a server that recovers makes of it, and goes on.
func TestRefundAfterPanic(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(100))})
	i := newLimits(t, th, grpclimit.Config{Refund: func(code codes.Code) bool { return code == codes.Internal }})
	recovering := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic has not passed")
			}
			err = status.Error(codes.Internal, "panic")
		}()
		return i.Unary(ctx, req, info, handler)
	}
	c := dial(t, serve(t, &service{unary: func(context.Context) error { panic("boom") }}, grpc.UnaryInterceptor(recovering)))
	if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) != codes.Internal {
		t.Error(err)
	}
	if got := used(t, th, secret); got != 0 {
		t.Errorf("%d used, want 0", got)
	}
}

// What is to be given back is, also when the client has gone.
func TestRefundAfterTheClientHasGone(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(100))})
	settled := make(chan struct{})
	i := newLimits(t, th, grpclimit.Config{Refund: func(code codes.Code) bool { return code == codes.Canceled }})
	after := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		defer close(settled)
		return i.Unary(ctx, req, info, handler)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := dial(t, serve(t, &service{unary: func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}, grpc.UnaryInterceptor(after)))
	if _, err := c.UnaryCall(ctx, &pb.SimpleRequest{}); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	<-settled
	if got := used(t, th, secret); got != 0 {
		t.Errorf("%d used, want 0", got)
	}
}

// What can't be given back stays charged, and somebody hears of it.
func TestRefundFails(t *testing.T) {
	t.Parallel()
	b := newCounts(t)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerHour(100))})
	var told error
	for _, hook := range []func(context.Context, grpclimit.Call, error){
		nil, func(_ context.Context, _ grpclimit.Call, err error) { told = err },
	} {
		c := client(t, &service{unary: func(context.Context) error { b.down.Store(true); return nil }},
			newLimits(t, th, grpclimit.Config{Refund: func(codes.Code) bool { return true }, OnError: hook}))
		if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil {
			t.Error(err)
		}
		b.down.Store(false)
	}
	if !errors.Is(told, errAway) {
		t.Errorf("OnError is told %v, want %v", told, errAway)
	}
	if got := used(t, th, secret); got != 2 {
		t.Errorf("%d used, want 2", got)
	}
}

// A backend that can't give back still counts.
func TestRefundWithoutARefunder(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{
		Backend: struct{ backend.Backend }{newCounts(t)}, Policy: policy(limit.PerHour(2)),
	})
	c := client(t, &service{}, newLimits(t, th, grpclimit.Config{Refund: func(codes.Code) bool {
		t.Error("Refund is asked in vain")
		return true
	}}))
	for n, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) != want {
			t.Errorf("call %d: %v, want %v", n+1, err, want)
		}
	}
}

// Who is denied by a list doesn't touch the quota of the others that the call names.
func TestListsDenyFirst(t *testing.T) {
	t.Parallel()
	for _, refund := range []func(codes.Code) bool{nil, func(codes.Code) bool { return true }} {
		b := newCounts(t)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerHour(10)), Deny: []string{"denied"}})
		c := client(t, &service{}, newLimits(t, th, grpclimit.Config{
			Also:   []grpclimit.KeyFunc{func(context.Context, grpclimit.Call) (string, error) { return "denied", nil }},
			Refund: refund,
		}))
		if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v, want PermissionDenied", err)
		}
		if n := b.refunds.Load(); n != 0 {
			t.Errorf("%d refunds: the other key was charged", n)
		}
	}
}
