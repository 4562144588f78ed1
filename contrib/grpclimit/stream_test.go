package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// bodySize costs what the client sends, and a request to stream nothing.
func bodySize(_ context.Context, c grpclimit.Call) int64 {
	if m, ok := c.Request.(*pb.StreamingOutputCallRequest); ok && c.Method == both {
		return int64(len(m.GetPayload().GetBody()))
	}
	return 0
}

func TestStreamIsChargedOnce(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Backend: newCounts(t), Policy: policy(limit.PerMinute(9))})
	c := client(t, &service{}, newLimits(t, th, grpclimit.Config{}))
	stream, err := c.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := stream.Send(&pb.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if header, err := stream.Header(); err != nil || fields(header) != "9 8 60 -" {
		t.Errorf("header %q, %v", fields(header), err)
	}
	_ = stream.CloseSend()
	if _, err := stream.Recv(); err != io.EOF {
		t.Error(err)
	}
	if got := fields(stream.Trailer()); got != none {
		t.Errorf("trailer %q", got)
	}
	if got := used(t, th, secret); got != 1 {
		t.Errorf("%d used, want 1", got)
	}
}

// A stream whose handler never sends anything has the limits in its header or, if it failed, in its trailer.
func TestSilentStreams(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name            string
		handler         func(pb.TestService_FullDuplexCallServer) error
		header, trailer string
	}{
		{"success", func(pb.TestService_FullDuplexCallServer) error { return nil }, "9 8 60 -", none},
		{"failure", func(pb.TestService_FullDuplexCallServer) error { return io.ErrUnexpectedEOF }, none, "9 8 60 -"},
		{"failure after the header", func(s pb.TestService_FullDuplexCallServer) error {
			return errors.Join(s.SendHeader(metadata.Pairs("a", "b")), io.ErrUnexpectedEOF)
		}, "9 8 60 -", none},
		{"a header sent past the limiter", func(s pb.TestService_FullDuplexCallServer) error {
			return grpc.SendHeader(s.Context(), metadata.Pairs("a", "b"))
		}, none, "9 8 60 -"},
	} {
		th := throttlertesting.New(t, throttler.Config{Backend: newCounts(t), Policy: policy(limit.PerMinute(9))})
		c := client(t, &service{both: test.handler}, newLimits(t, th, grpclimit.Config{}))
		stream, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = stream.Recv()
		header, _ := stream.Header()
		if fields(header) != test.header || fields(stream.Trailer()) != test.trailer {
			t.Errorf("%s: header %q, trailer %q, want %q, %q", test.name, fields(header), fields(stream.Trailer()), test.header, test.trailer)
		}
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	const denied = "ResourceExhausted: the call exceeds a rate limit; retry 1m0s; 10/1m: the call exceeds the limit 10/1m"
	for _, test := range []struct {
		name     string
		messages []int
		echoed   int
		want     string // how it ends
		used     int64
		trailer  string
	}{
		{"within", []int{1, 2, 3}, 3, "OK: ", 7, none},
		{"free", []int{0, 0, 0}, 3, "OK: ", 1, none},
		{"too many", []int{4, 4, 4, 1}, 2, denied, 9, "10 1 60 60000"},
		{"the first is too large", []int{10}, 0, denied, 1, "10 9 60 60000"},
		{"one that never fits", []int{1, 11}, 1, "ResourceExhausted: the call costs more than its rate limit can ever hold; " +
			"10/1m: the call costs more than can ever fit the limit 10/1m", 2, "- - - -1"},
	} {
		for _, refund := range []func(codes.Code) bool{nil, func(code codes.Code) bool { return code != codes.OK }} {
			th := throttlertesting.New(t, throttler.Config{Backend: newCounts(t), Policy: policy(limit.PerMinute(10))})
			c := client(t, &service{}, newLimits(t, th, grpclimit.Config{MessageCost: bodySize, Refund: refund}))
			stream, err := c.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, size := range test.messages {
				// Of a stream that has ended this fails, and Recv says why.
				_ = stream.Send(&pb.StreamingOutputCallRequest{Payload: payload(size)})
			}
			_ = stream.CloseSend()
			echoed := 0
			for err = nil; err == nil; {
				if _, err = stream.Recv(); err == nil {
					echoed++
				}
			}
			if err == io.EOF {
				err = nil
			}
			if got := show(err); got != test.want || echoed != test.echoed {
				t.Errorf("%s: %s after %d\nwant %s after %d", test.name, got, echoed, test.want, test.echoed)
			}
			if got := fields(stream.Trailer()); got != test.trailer {
				t.Errorf("%s: trailer %q, want %q", test.name, got, test.trailer)
			}
			want := test.used
			if refund != nil && err != nil {
				want-- // the opening; messages stay
			}
			if got := used(t, th, secret); got != want {
				t.Errorf("%s: %d used, want %d", test.name, got, want)
			}
		}
	}
}

// A handler that goes on receiving after a denial gets no message more.
func TestDenialOfMessagesLasts(t *testing.T) {
	t.Parallel()
	b := newCounts(t)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerMinute(2))})
	c := client(t, &service{both: func(s pb.TestService_FullDuplexCallServer) error {
		for n, want := range []codes.Code{codes.OK, codes.ResourceExhausted, codes.ResourceExhausted} {
			if _, err := s.Recv(); status.Code(err) != want {
				t.Errorf("message %d: %v, want %v", n+1, err, want)
			}
		}
		return nil
	}}, newLimits(t, th, grpclimit.Config{MessageCost: bodySize}))
	stream, err := c.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_ = stream.Send(&pb.StreamingOutputCallRequest{Payload: payload(1)})
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Error(err)
	}
	if n := b.calls.Load(); n != 3 {
		t.Errorf("%d calls to the backend, want 3", n)
	}
}

// Messages without a verdict don't pass either.
func TestMessagesWithoutVerdict(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		cost int64
		down bool
		want codes.Code
	}{
		{"an outage", 1, true, codes.Unavailable},
		{"less than nothing", -1, false, codes.Internal},
	} {
		b := newCounts(t)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Failure: throttler.FailError, Policy: policy(limit.PerMinute(2))})
		var told []string
		c := client(t, &service{both: func(s pb.TestService_FullDuplexCallServer) error {
			b.down.Store(test.down)
			_, err := s.Recv()
			return err
		}}, newLimits(t, th, grpclimit.Config{
			MessageCost: func(context.Context, grpclimit.Call) int64 { return test.cost },
			OnError: func(_ context.Context, c grpclimit.Call, _ error) {
				told = append(told, fmt.Sprintf("%s %T", c.Method, c.Request))
			},
		}))
		stream, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&pb.StreamingOutputCallRequest{})
		if _, err := stream.Recv(); status.Code(err) != test.want {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		if want := "[" + both + " *grpc_testing.StreamingOutputCallRequest]"; fmt.Sprint(told) != want {
			t.Errorf("%s: told %v, want %s", test.name, told, want)
		}
	}
}
