package main

import (
	"crypto/tls"
	"path/filepath"
	"slices"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sluice-go/sluice/internal/testserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// Clients need a certificate of the authority, for the name; the server's own may change while it runs.
func TestTLS(t *testing.T) {
	root, _ := folder(t, limits)
	dir := t.TempDir()
	servers, clients, later := testserver.NewAuthority(t), testserver.NewAuthority(t), time.Now().Add(time.Hour)
	cert, key := servers.Issue(t, dir, "limits.test", later)
	p := start(t, map[string]string{
		"RUNTIME_ROOT": root, "GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": cert, "GRPC_SERVER_TLS_KEY": key,
		"GRPC_CLIENT_TLS_CACERT": clients.File, "GRPC_CLIENT_TLS_SAN": "gateway.test",
	})
	client := func(by *testserver.Authority, name string) tls.Certificate {
		pair, err := tls.LoadX509KeyPair(by.Issue(t, t.TempDir(), name, later))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	ask := func(server *testserver.Authority, client ...tls.Certificate) error {
		trust := server.Trust()
		trust.ServerName, trust.Certificates = "limits.test", client
		conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(credentials.NewTLS(trust)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("user", "ann"))
		return err
	}
	own := client(clients, "gateway.test")
	if err := ask(servers, own); err != nil {
		t.Error(err)
	}
	if err := ask(servers); err == nil {
		t.Error("a client without a certificate is served")
	}
	if err := ask(servers, client(testserver.NewAuthority(t), "gateway.test")); err == nil {
		t.Error("a client of another authority is served")
	}
	if err := ask(servers, client(clients, "other.test")); err == nil {
		t.Error("a client of another name is served")
	}
	renewed := testserver.NewAuthority(t)
	renewed.Issue(t, dir, "limits.test", later)
	eventually(t, "the new certificate is not used", func() bool { return ask(renewed, own) == nil })
}

// The server tells clients without a proto file what it serves, on a Unix socket, too.
func TestReflection(t *testing.T) {
	root, _ := folder(t, limits)
	p := start(t, map[string]string{"RUNTIME_ROOT": root, "GRPC_UDS": filepath.Join(t.TempDir(), "limits.sock")})
	stream, err := grpc_reflection_v1.NewServerReflectionClient(p.dial(t)).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	reply, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range reply.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	if !slices.Contains(names, "envoy.service.ratelimit.v3.RateLimitService") || !slices.Contains(names, "grpc.health.v1.Health") {
		t.Error(names)
	}
	_ = stream.CloseSend()
	_, _ = stream.Recv()
}
