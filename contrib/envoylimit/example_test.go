package envoylimit_test

import (
	"context"
	"fmt"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
)

// A gRPC server answers Envoy by a file of limits, here in memory.
func Example() {
	set, err := rules.Parse([]rules.File{{Name: "web.yaml", Text: []byte(`
domain: web
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2}
`)}}, rules.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	service, err := envoylimit.New(envoylimit.Config{Rules: set})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer service.Close()
	server := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(server, service) // and server.Serve(listener)

	for range 3 { // as Envoy does over the network
		res, err := service.ShouldRateLimit(context.Background(), &pb.RateLimitRequest{
			Domain: "web", Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: "ann"}}}},
		})
		fmt.Println(res.GetOverallCode(), res.GetStatuses()[0].GetLimitRemaining(), err)
	}
	// Output:
	// OK 1 <nil>
	// OK 0 <nil>
	// OVER_LIMIT 0 <nil>
}
