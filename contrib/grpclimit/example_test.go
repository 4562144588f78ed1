package grpclimit_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// frozen is a throttler whose clock stands still, for the output's sake.
func frozen(cfg throttler.Config) *throttler.Throttler {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	counts, err := memory.New(memory.Config{Now: func() time.Time { return noon }})
	if err != nil {
		log.Fatal(err)
	}
	cfg.Backend = counts
	t, err := throttler.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	return t
}

// checks starts a server with the health service, and returns a client of it; done ends both.
func checks(limits *grpclimit.Interceptor) (client healthpb.HealthClient, done func()) {
	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	return healthpb.NewHealthClient(conn), func() {
		_ = conn.Close()
		server.Stop()
		<-served
	}
}

func Example() {
	t := frozen(throttler.Config{Policy: limit.Policy{Name: "api", Limits: []limit.Limit{
		limit.PerMinute(2).Named("burst"), limit.PerDay(1000).Named("daily"),
	}}})
	defer t.Close()
	limits, err := grpclimit.New(t, grpclimit.Config{Key: grpclimit.PeerAddr()})
	if err != nil {
		log.Fatal(err)
	}
	client, done := checks(limits)
	defer done()

	for range 3 {
		var header metadata.MD
		_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{}, grpc.Header(&header))
		fmt.Println(status.Code(err), header["ratelimit-remaining"])
		for _, detail := range status.Convert(err).Details() {
			switch d := detail.(type) {
			case *errdetails.RetryInfo:
				fmt.Println("retry after", d.GetRetryDelay().AsDuration())
			case *errdetails.QuotaFailure:
				fmt.Println(d.GetViolations()[0].GetSubject(), "-", d.GetViolations()[0].GetDescription())
			}
		}
	}
	// Output:
	// OK [1]
	// OK [0]
	// ResourceExhausted []
	// retry after 1m0s
	// burst - the call exceeds the limit burst=2/1m
}

// A method costs more, another nothing; what isn't there costs 1.
func ExampleConfig() {
	t := frozen(throttler.Config{Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(100)}}})
	defer t.Close()
	limits, err := grpclimit.New(t, grpclimit.Config{
		Key:   grpclimit.Metadata("api-key", nil),
		Also:  []grpclimit.KeyFunc{grpclimit.PeerAddr()},
		NoKey: codes.Unauthenticated,
		Methods: map[string]grpclimit.Method{
			"/grpc.health.v1.Health/Check": {Cost: 10},
			"/grpc.health.v1.Health/*":     {Exempt: true},
		},
		Refund: func(code codes.Code) bool { return code == codes.NotFound },
		Keep:   1, // or clients could ask for what isn't there without end
		OnError: func(_ context.Context, c grpclimit.Call, err error) {
			fmt.Println(c.Method, err) // tell somebody
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	client, done := checks(limits)
	defer done()

	known := metadata.AppendToOutgoingContext(context.Background(), "api-key", "secret")
	for _, call := range []struct {
		ctx     context.Context
		service string
	}{{known, "unknown"}, {known, ""}, {known, ""}, {context.Background(), ""}} {
		var header, trailer metadata.MD
		_, err := client.Check(call.ctx, &healthpb.HealthCheckRequest{Service: call.service},
			grpc.Header(&header), grpc.Trailer(&trailer))
		fmt.Println(status.Code(err), header["ratelimit-remaining"], trailer["ratelimit-remaining"])
	}
	// Output:
	// NotFound [] [90]
	// OK [80] []
	// OK [70] []
	// /grpc.health.v1.Health/Check grpclimit: the call has no key
	// Unauthenticated [] []
}

// Methods have policies of their own on one backend.
func ExamplePolicyFor() {
	policyFor, err := grpclimit.PolicyFor(map[string]limit.Policy{
		"/grpc.health.v1.Health/Check": {Name: "checks", Limits: []limit.Limit{limit.PerSecond(1)}},
		"/grpc.health.v1.Health/*":     {Name: "health", Limits: []limit.Limit{limit.PerMinute(20)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	t := frozen(throttler.Config{
		Policy:    limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(100)}}, // of all other methods
		PolicyFor: policyFor,
	})
	defer t.Close()
	limits, err := grpclimit.New(t, grpclimit.Config{Key: grpclimit.PeerAddr()})
	if err != nil {
		log.Fatal(err)
	}
	client, done := checks(limits)
	defer done()

	for range 2 {
		_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Println("Check", status.Code(err))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	header, err := stream.Header()
	fmt.Println("Watch", header["ratelimit-remaining"], err)
	// Output:
	// Check OK
	// Check ResourceExhausted
	// Watch [19] <nil>
}
