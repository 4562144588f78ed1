// Command example is a gRPC server with limits and two clients of it, which show what each gets. It ends by itself:
//
//	cd contrib/grpclimit
//	go run ./example
//	go run ./example -listen 127.0.0.1:9090    # only the server, until it is interrupted
//
// It counts in memory. Any other backend, such as a router.Router, would let many servers share the limits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

func main() {
	log.SetFlags(0)
	listen := flag.String("listen", "", "the `address` of a server that goes on; without it, clients show what they get")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *listen); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, listen string) error {
	t, err := newThrottler()
	if err != nil {
		return err
	}
	defer t.Close()
	server, err := newServer(t)
	if err != nil {
		return err
	}
	addr := listen
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	if listen != "" {
		defer context.AfterFunc(ctx, server.GracefulStop)()
		fmt.Fprintf(out, "listening on %s: %s\n", listener.Addr(), hello)
		if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) { // before it began
			return err
		}
		return nil
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	err = show(ctx, out, listener.Addr().String())
	server.Stop()
	if failed := <-served; err == nil {
		err = failed
	}
	return err
}

const (
	greeter = "sluice.example.Greeter"
	hello   = "/" + greeter + "/Hello"
	report  = "/" + greeter + "/Report"
)

func newThrottler() (*throttler.Throttler, error) {
	// Reports have limits of their own.
	policyFor, err := grpclimit.PolicyFor(map[string]limit.Policy{
		report: {Name: "reports", Limits: []limit.Limit{limit.PerMinute(10).Named("reports")}},
	})
	if err != nil {
		return nil, err
	}
	return throttler.New(throttler.Config{
		Policy:    limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerSecond(3).Named("burst"), limit.PerHour(1000)}},
		PolicyFor: policyFor,
	})
}

func newServer(t *throttler.Throttler) (*grpc.Server, error) {
	limits, err := grpclimit.New(t, grpclimit.Config{
		Key: grpclimit.PeerAddr(), // behind proxies: with their prefixes
		Methods: map[string]grpclimit.Method{
			report:                     {Cost: 5},
			"/grpc.health.v1.Health/*": {Exempt: true},
		},
		// What isn't there costs nothing. Mind that clients choose what they ask for.
		Refund: func(code codes.Code) bool { return code == codes.NotFound },
	})
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	server.RegisterService(&grpc.ServiceDesc{ServiceName: greeter, Methods: []grpc.MethodDesc{
		unary(hello, func(ctx context.Context, name string) (string, error) {
			d, _ := grpclimit.FromContext(ctx)
			return fmt.Sprintf("hello %s, %d left", name, d.Remaining), nil
		}),
		unary(report, func(_ context.Context, name string) (string, error) {
			if name == "" {
				return "", status.Error(codes.NotFound, "there is no such report")
			}
			return "a report that took much work", nil
		}),
	}}, nil)
	return server, nil
}

// unary is what protoc-gen-go-grpc would generate for a method from string to string.
func unary(method string, handle func(context.Context, string) (string, error)) grpc.MethodDesc {
	handler := func(ctx context.Context, req any) (any, error) {
		text, err := handle(ctx, req.(*wrapperspb.StringValue).GetValue())
		return wrapperspb.String(text), err
	}
	return grpc.MethodDesc{
		MethodName: method[len("/"+greeter+"/"):],
		Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.StringValue)
			if err := decode(in); err != nil {
				return nil, err
			}
			return intercept(ctx, in, &grpc.UnaryServerInfo{FullMethod: method}, handler)
		},
	}
}

// retrying is all that a client needs in order to wait as long as the server says: grpc retries by itself.
const retrying = `{"methodConfig": [{"name": [{"service": "` + greeter + `"}], "retryPolicy": {
	"maxAttempts": 3, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`

// show makes calls that are over a limit, with a client that doesn't wait and one that does.
func show(ctx context.Context, out io.Writer, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, client := range []struct {
		name, config, method string
		calls                []string
	}{
		{"a client that doesn't wait", "{}", hello, []string{"a", "b", "c", "d"}},
		{"a client that waits", retrying, hello, []string{"a", "b", "c", "d", "e", "f", "g"}},
		{"reports cost 5; what isn't there, nothing", "{}", report, []string{"a", "", "", "b", "c"}},
	} {
		fmt.Fprintf(out, "%s:\n", client.name)
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(client.config))
		if err != nil {
			return err
		}
		for _, name := range client.calls {
			call(ctx, out, conn, client.method, name)
		}
		if err := conn.Close(); err != nil {
			return err
		}
	}
	return nil
}

func call(ctx context.Context, out io.Writer, conn *grpc.ClientConn, method, name string) {
	var header metadata.MD
	reply := new(wrapperspb.StringValue)
	started := time.Now()
	err := conn.Invoke(ctx, method, wrapperspb.String(name), reply, grpc.Header(&header))
	took := time.Since(started).Round(100 * time.Millisecond)
	if err == nil {
		fmt.Fprintf(out, "  %-28s after %-6v ratelimit-remaining: %s\n", reply.GetValue(), took, header["ratelimit-remaining"])
		return
	}
	s := status.Convert(err)
	fmt.Fprintf(out, "  %v: %s\n", s.Code(), s.Message())
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.RetryInfo:
			fmt.Fprintf(out, "    retry after %v\n", d.GetRetryDelay().AsDuration().Round(100*time.Millisecond))
		case *errdetails.QuotaFailure:
			for _, v := range d.GetViolations() {
				fmt.Fprintf(out, "    %s: %s\n", v.GetSubject(), v.GetDescription())
			}
		}
	}
}
