package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secret is the key of most calls here: it must appear nowhere.
const secret = "alice@example.com"

func secretKey(context.Context, grpclimit.Call) (string, error) { return secret, nil }

const (
	unaryCall   = "/grpc.testing.TestService/UnaryCall"
	emptyCall   = "/grpc.testing.TestService/EmptyCall"
	sendMany    = "/grpc.testing.TestService/StreamingInputCall"
	receiveMany = "/grpc.testing.TestService/StreamingOutputCall"
	both        = "/grpc.testing.TestService/FullDuplexCall"
	allMethods  = "/grpc.testing.TestService/*"
)

var (
	errBoom = errors.New("boom " + secret)
	errAway = &backend.Error{Op: "take", Node: "node", Kind: backend.Unavailable, Err: errors.New("away")}
	errBusy = &backend.Error{Op: "take", Node: "node", Kind: backend.Contended, Err: errors.New("others were faster")}
)

func policy(limits ...limit.Limit) limit.Policy { return limit.Policy{Name: "test", Limits: limits} }

// counts is a Memory whose time stands still until the test moves it, and which can be away.
type counts struct {
	*memory.Memory
	micros         atomic.Int64
	down, busy     atomic.Bool
	calls, refunds atomic.Int64
}

func newCounts(t testing.TB) *counts {
	t.Helper()
	c := &counts{}
	// Far from what any host's clock says: what is told to a client must not depend on that.
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

func (c *counts) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	c.calls.Add(1)
	if c.down.Load() {
		return backend.Result{}, errAway
	}
	if c.busy.Load() {
		return backend.Result{}, errBusy
	}
	return c.Memory.Take(ctx, req)
}

func (c *counts) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	c.refunds.Add(1)
	if c.down.Load() {
		return errAway
	}
	return c.Memory.Refund(ctx, req, receipt, amount)
}

// newLimits is an Interceptor; the key is secret if cfg has none.
func newLimits(t testing.TB, th *throttler.Throttler, cfg grpclimit.Config) *grpclimit.Interceptor {
	t.Helper()
	if cfg.Key == nil {
		cfg.Key = secretKey
	}
	i, err := grpclimit.New(th, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return i
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

// service answers as the test says; what it doesn't say succeeds, and echoes.
type service struct {
	pb.UnimplementedTestServiceServer
	unary func(context.Context) error
	input func(pb.TestService_StreamingInputCallServer) error
	both  func(pb.TestService_FullDuplexCallServer) error
	calls atomic.Int64
}

func (s *service) EmptyCall(context.Context, *pb.Empty) (*pb.Empty, error) { return &pb.Empty{}, nil }

func (s *service) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	s.calls.Add(1)
	if s.unary != nil {
		return &pb.SimpleResponse{}, s.unary(ctx)
	}
	return &pb.SimpleResponse{}, nil
}

func (s *service) StreamingInputCall(stream pb.TestService_StreamingInputCallServer) error {
	s.calls.Add(1)
	if s.input != nil {
		return s.input(stream)
	}
	for size := int32(0); ; {
		in, err := stream.Recv()
		switch {
		case err == io.EOF:
			return stream.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: size})
		case err != nil:
			return err
		}
		size += int32(len(in.GetPayload().GetBody()))
	}
}

func (s *service) StreamingOutputCall(_ *pb.StreamingOutputCallRequest, stream pb.TestService_StreamingOutputCallServer) error {
	s.calls.Add(1)
	for range 3 {
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	s.calls.Add(1)
	if s.both != nil {
		return s.both(stream)
	}
	for {
		if _, err := stream.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

func options(i *grpclimit.Interceptor) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(i.Unary), grpc.StreamInterceptor(i.Stream)}
}

// serve starts a server on a loopback port and returns its address.
func serve(t testing.TB, s *service, opts ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	start(t, s, listener, opts...)
	return listener.Addr().String()
}

func start(t testing.TB, s *service, listener net.Listener, opts ...grpc.ServerOption) {
	server := grpc.NewServer(opts...)
	pb.RegisterTestServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// dial connects to an address.
func dial(t testing.TB, addr string, opts ...grpc.DialOption) pb.TestServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewTestServiceClient(conn)
}

// client is a client of a server with limits, over a loopback port.
func client(t testing.TB, s *service, i *grpclimit.Interceptor) pb.TestServiceClient {
	t.Helper()
	return dial(t, serve(t, s, options(i)...))
}

// inMemory is client without a network, for a synctest bubble.
func inMemory(t testing.TB, s *service, i *grpclimit.Interceptor, opts ...grpc.DialOption) pb.TestServiceClient {
	t.Helper()
	listener := bufconn.Listen(64 << 10)
	start(t, s, listener, options(i)...)
	return dial(t, "passthrough:///memory", append(opts, grpc.WithContextDialer(
		func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
	))...)
}

// payload is a message whose body has some bytes.
func payload(bytes int) *pb.Payload { return &pb.Payload{Body: make([]byte, bytes)} }
