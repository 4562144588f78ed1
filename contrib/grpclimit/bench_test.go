package grpclimit_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// sink is a stream that takes headers and trailers, as that of a server does.
type sink struct{ grpc.ServerTransportStream }

func (sink) Method() string               { return unaryCall }
func (sink) SetHeader(metadata.MD) error  { return nil }
func (sink) SendHeader(metadata.MD) error { return nil }
func (sink) SetTrailer(metadata.MD) error { return nil }

// unary returns a function that makes a unary call of a handler that does nothing, under a limit an hour. One call has been made.
func unary(t testing.TB, max int64) func() error {
	th, err := throttler.New(throttler.Config{Policy: policy(limit.PerHour(max))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = th.Close() })
	i, err := grpclimit.New(th, grpclimit.Config{Key: secretKey})
	if err != nil {
		t.Fatal(err)
	}
	ctx := grpc.NewContextWithServerTransportStream(context.Background(), sink{})
	info := &grpc.UnaryServerInfo{FullMethod: unaryCall}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	call := func() error {
		_, err := i.Unary(ctx, nil, info, handler)
		return err
	}
	if err := call(); err != nil {
		t.Fatal(err)
	}
	return call
}

// BenchmarkUnary is what the interceptor adds to a handler, with counts in memory and default metadata.
func BenchmarkUnary(b *testing.B) {
	for name, max := range map[string]int64{"admitted": limit.MaxCount, "denied": 1} {
		b.Run(name, func(b *testing.B) {
			call := unary(b, max)
			b.ReportAllocs()
			for b.Loop() {
				_ = call()
			}
		})
	}
}
