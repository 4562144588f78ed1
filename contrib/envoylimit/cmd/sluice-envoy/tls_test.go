package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"slices"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// issue writes a certificate for a name, which is its own authority, and its key.
func issue(t testing.TB, dir, name string, serial int64) (cert, key string, parsed *x509.Certificate) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})))
	return cert, key, parsed
}

// Clients need a certificate of the authority, for the name; the server's own may change while it runs.
func TestTLS(t *testing.T) {
	root, _ := folder(t, limits)
	dir := t.TempDir()
	cert, key, parsed := issue(t, dir, "limits.test", 1)
	clientCert, clientKey, _ := issue(t, dir, "gateway.test", 2)
	p := start(t, map[string]string{
		"RUNTIME_ROOT": root, "GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": cert, "GRPC_SERVER_TLS_KEY": key,
		"GRPC_CLIENT_TLS_CACERT": clientCert, "GRPC_CLIENT_TLS_SAN": "gateway.test",
	})
	own, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(server *x509.Certificate, client ...tls.Certificate) error {
		pool := x509.NewCertPool()
		pool.AddCert(server)
		conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: pool, ServerName: "limits.test", Certificates: client, MinVersion: tls.VersionTLS12,
		})))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("user", "ann"))
		return err
	}
	if err := ask(parsed, own); err != nil {
		t.Error(err)
	}
	if err := ask(parsed); err == nil {
		t.Error("a client without a certificate is served")
	}
	otherCert, otherKey, _ := issue(t, dir, "other.test", 3)
	other, err := tls.LoadX509KeyPair(otherCert, otherKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(parsed, other); err == nil {
		t.Error("a client of another authority is served")
	}
	_, _, renewed := issue(t, dir, "limits.test", 4)
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
