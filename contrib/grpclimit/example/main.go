// Command example is a gRPC server with limits and two clients of it, which show what each gets. It ends by itself:
//
//	cd contrib/grpclimit
//	go run ./example
//	go run ./example -listen 127.0.0.1:9090    # only the server, until it is interrupted
//
// The server tells clients about its services by reflection, so that grpcurl calls it without a proto file:
//
//	grpcurl -plaintext 127.0.0.1:9090 list
//	grpcurl -plaintext -v -d '{"name": "ann"}' 127.0.0.1:9090 sluice.example.Greeter/Hello
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
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/contrib/grpclimit/example/greeterpb"
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
		fmt.Fprintf(out, "listening: grpcurl -plaintext %s list\n", listener.Addr())
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

func newThrottler() (*throttler.Throttler, error) {
	// Reports have limits of their own.
	policyFor, err := grpclimit.PolicyFor(map[string]limit.Policy{
		report: {Name: "reports", Limits: []limit.Limit{limit.PerMinute(20).Named("reports")}},
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
			// Public: clients ask it before every call.
			"/grpc.reflection.v1.ServerReflection/*":      {Exempt: true},
			"/grpc.reflection.v1alpha.ServerReflection/*": {Exempt: true},
		},
		// What isn't there costs 1. Clients choose what they ask for: if it cost nothing, they could ask without end.
		Refund: func(code codes.Code) bool { return code == codes.NotFound },
		Keep:   1,
	})
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	greeterpb.RegisterGreeterServer(server, greeter{})
	reflection.Register(server)
	return server, nil
}

const (
	hello  = greeterpb.Greeter_Hello_FullMethodName
	report = greeterpb.Greeter_Report_FullMethodName
)

type greeter struct {
	greeterpb.UnimplementedGreeterServer
}

func (greeter) Hello(ctx context.Context, req *greeterpb.HelloRequest) (*greeterpb.HelloReply, error) {
	d, _ := grpclimit.FromContext(ctx)
	return &greeterpb.HelloReply{Text: "hello " + req.GetName(), Remaining: d.Remaining}, nil
}

func (greeter) Report(_ context.Context, req *greeterpb.ReportRequest) (*greeterpb.ReportReply, error) {
	if req.GetId() == "" {
		return nil, status.Error(codes.NotFound, "there is no such report")
	}
	return &greeterpb.ReportReply{Text: "a report that took much work"}, nil
}

// retrying is all that a client needs in order to wait as long as the server says: grpc retries by itself.
const retrying = `{"methodConfig": [{"name": [{"service": "sluice.example.Greeter"}], "retryPolicy": {
	"maxAttempts": 3, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`

// show makes calls that are over a limit, with a client that doesn't wait and one that does.
func show(ctx context.Context, out io.Writer, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, client := range []struct {
		name, config string
		call         method
		names        []string
	}{
		{"a client that doesn't wait", "{}", callHello, []string{"a", "b", "c", "d"}},
		{"a client that waits", retrying, callHello, []string{"a", "b", "c", "d", "e", "f", "g"}},
		{"reports cost 5; what isn't there, 1", "{}", callReport, []string{"a", "", "", "b", "c", "d"}},
	} {
		fmt.Fprintf(out, "%s:\n", client.name)
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(client.config))
		if err != nil {
			return err
		}
		for _, name := range client.names {
			var header metadata.MD
			started := time.Now()
			reply, err := client.call(ctx, greeterpb.NewGreeterClient(conn), name, grpc.Header(&header))
			if err != nil {
				printDenial(out, status.Convert(err))
				continue
			}
			took := time.Since(started).Round(100 * time.Millisecond)
			fmt.Fprintf(out, "  %-28s after %-6v ratelimit-remaining: %s\n", reply.GetText(), took, header["ratelimit-remaining"])
		}
		if err := conn.Close(); err != nil {
			return err
		}
	}
	return nil
}

// method calls one of the two methods with a text.
type method func(ctx context.Context, c greeterpb.GreeterClient, text string, opt grpc.CallOption) (reply, error)

type reply interface{ GetText() string }

func callHello(ctx context.Context, c greeterpb.GreeterClient, name string, opt grpc.CallOption) (reply, error) {
	return c.Hello(ctx, &greeterpb.HelloRequest{Name: name}, opt)
}

func callReport(ctx context.Context, c greeterpb.GreeterClient, id string, opt grpc.CallOption) (reply, error) {
	return c.Report(ctx, &greeterpb.ReportRequest{Id: id}, opt)
}

func printDenial(out io.Writer, s *status.Status) {
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
