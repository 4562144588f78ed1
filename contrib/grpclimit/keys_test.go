package grpclimit_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/contrib/grpclimit"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// from is the context of a call from an address, with metadata.
func from(t testing.TB, addr string, kv ...string) context.Context {
	t.Helper()
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(kv...))
	if addr == "" {
		return ctx
	}
	host := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))
	return peer.NewContext(ctx, &peer.Peer{Addr: host})
}

func TestPeerAddr(t *testing.T) {
	t.Parallel()
	direct := grpclimit.PeerAddr()
	proxied := grpclimit.PeerAddr(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"))
	realIP := grpclimit.PeerAddrOf(httplimit.AddrConfig{Header: "X-Real-IP", Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	for _, test := range []struct {
		name string
		key  grpclimit.KeyFunc
		ctx  context.Context
		want string // empty: an error
	}{
		{"IPv4", direct, from(t, "192.0.2.1:80"), "addr:192.0.2.1"},
		{"IPv6 by /64", direct, from(t, "[2001:db8:1:2::17]:80"), "addr:2001:db8:1:2::/64"},
		{"a claim", direct, from(t, "192.0.2.1:80", "x-forwarded-for", "8.8.8.8"), "addr:192.0.2.1"},
		{"a claim past no proxy", proxied, from(t, "192.0.2.1:80", "x-forwarded-for", "8.8.8.8"), "addr:192.0.2.1"},
		{"a proxy", proxied, from(t, "10.0.0.1:80", "x-forwarded-for", "8.8.8.8, 192.0.2.1"), "addr:192.0.2.1"},
		{"two proxies, two lines", proxied, from(t, "[fd00::1]:80",
			"x-forwarded-for", "8.8.8.8", "X-Forwarded-For", "192.0.2.1, 10.0.0.2"), "addr:192.0.2.1"},
		{"a proxy alone", proxied, from(t, "10.0.0.1:80"), "addr:10.0.0.1"},
		{"another field", realIP, from(t, "10.0.0.1:80", "x-real-ip", "192.0.2.1", "x-forwarded-for", "8.8.8.8"), "addr:192.0.2.1"},
		{"another field past no proxy", realIP, from(t, "192.0.2.9:80", "x-real-ip", "192.0.2.1"), "addr:192.0.2.9"},
		{"no peer", direct, from(t, ""), ""},
		{"a peer without an address", direct, peer.NewContext(t.Context(), &peer.Peer{}), ""},
		{"a Unix socket", direct, peer.NewContext(t.Context(), &peer.Peer{Addr: &net.UnixAddr{Name: "@"}}), ""},
	} {
		got, err := test.key(test.ctx, grpclimit.Call{})
		if got != test.want || (err == nil) != (test.want != "") || errors.Is(err, grpclimit.ErrNoKey) {
			t.Errorf("%s: %q, %v, want %q", test.name, got, err, test.want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a prefix that trusts everybody doesn't panic")
		}
	}()
	grpclimit.PeerAddr(netip.MustParsePrefix("0.0.0.0/0"))
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	key := grpclimit.Metadata("Api-Key", nil)
	for _, test := range []struct {
		name  string
		ctx   context.Context
		ok    bool
		noKey bool
	}{
		{"one", from(t, "", "api-key", secret), true, false},
		{"none", from(t, ""), false, true},
		{"no metadata", t.Context(), false, true},
		{"an empty one", from(t, "", "api-key", ""), false, true},
		{"two", from(t, "", "api-key", secret, "API-KEY", "other"), false, false},
		{"the same twice", from(t, "", "api-key", secret, "api-key", secret), false, false},
	} {
		got, err := key(test.ctx, grpclimit.Call{})
		if (err == nil) != test.ok || errors.Is(err, grpclimit.ErrNoKey) != test.noKey {
			t.Errorf("%s: %q, %v", test.name, got, err)
		}
		if test.ok && got != httplimit.HeaderKey("api-key", secret, nil) {
			t.Errorf("%s: %q, want what HeaderKey gives", test.name, got)
		}
	}
}

func TestFirstOf(t *testing.T) {
	t.Parallel()
	key := grpclimit.FirstOf(grpclimit.Metadata("api-key", nil), grpclimit.PeerAddr())
	const addr = "192.0.2.1:80"
	for _, test := range []struct {
		name string
		ctx  context.Context
		want string // empty: an error
	}{
		{"the first", from(t, addr, "api-key", "a"), httplimit.HeaderKey("api-key", "a", nil)},
		{"the second", from(t, addr), "addr:192.0.2.1"},
		{"an empty one is none", from(t, addr, "api-key", ""), "addr:192.0.2.1"},
		{"two API keys don't lead to the address", from(t, addr, "api-key", "a", "api-key", "b"), ""},
		{"none", from(t, ""), ""},
	} {
		if got, err := key(test.ctx, grpclimit.Call{}); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s: %q, %v, want %q", test.name, got, err, test.want)
		}
	}
	empty := func(context.Context, grpclimit.Call) (string, error) { return "", nil }
	if _, err := grpclimit.FirstOf(empty)(t.Context(), grpclimit.Call{}); !errors.Is(err, grpclimit.ErrNoKey) {
		t.Errorf("no key of any kind: %v", err)
	}
}

// authority issues certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	}}
	a.cert, err = x509.ParseCertificate(a.issue(*a.cert).Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) issue(c x509.Certificate) tls.Certificate {
	a.t.Helper()
	c.SerialNumber, c.NotAfter = big.NewInt(2), time.Now().Add(time.Hour)
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, &c, a.cert, a.key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// TestTLSIdentity shakes hands for real, so that it is crypto/tls that says what it has verified.
func TestTLSIdentity(t *testing.T) {
	t.Parallel()
	trusted, stranger := newAuthority(t), newAuthority(t)
	id, err := url.Parse("spiffe://example.com/billing")
	if err != nil {
		t.Fatal(err)
	}
	other, err := url.Parse("https://example.com")
	if err != nil {
		t.Fatal(err)
	}
	subject := pkix.Name{CommonName: "billing", Organization: []string{"Example"}}
	names := []string{"b.example", "a.example"}
	for _, test := range []struct {
		name   string
		client []tls.Certificate
		auth   tls.ClientAuthType
		want   string // the identity; empty: no key
	}{
		{"SPIFFE", []tls.Certificate{trusted.issue(x509.Certificate{Subject: subject, DNSNames: names, URIs: []*url.URL{id}})},
			tls.RequireAndVerifyClientCert, id.String()},
		{"two URIs are no SPIFFE ID", []tls.Certificate{trusted.issue(x509.Certificate{Subject: subject, URIs: []*url.URL{id, id}})},
			tls.RequireAndVerifyClientCert, "CN=billing,O=Example"},
		{"another URI", []tls.Certificate{trusted.issue(x509.Certificate{Subject: subject, URIs: []*url.URL{other}})},
			tls.VerifyClientCertIfGiven, "CN=billing,O=Example"},
		{"DNS names", []tls.Certificate{trusted.issue(x509.Certificate{DNSNames: names})},
			tls.VerifyClientCertIfGiven, "dns:a.example,b.example"},
		{"a certificate without a name", []tls.Certificate{trusted.issue(x509.Certificate{})}, tls.VerifyClientCertIfGiven, ""},
		{"no certificate", nil, tls.VerifyClientCertIfGiven, ""},
		{"one that nobody has verified", []tls.Certificate{stranger.issue(x509.Certificate{Subject: subject})}, tls.RequireAnyClientCert, ""},
	} {
		th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(5))})
		i := newLimits(t, th, grpclimit.Config{Key: grpclimit.TLSIdentity(nil), NoKey: codes.Unauthenticated})
		server := trusted.issue(x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
		addr := serve(t, &service{}, append(options(i), grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{server}, ClientAuth: test.auth, ClientCAs: trusted.pool(),
		})))...)
		c := dial(t, addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			Certificates: test.client, RootCAs: trusted.pool(),
		})))
		_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
		if test.want == "" {
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s: %v, want Unauthenticated", test.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if got := used(t, th, grpclimit.TLSKey(test.want, nil)); got != 1 {
			t.Errorf("%s: %d used by %q, want 1", test.name, got, test.want)
		}
	}

	// Without TLS nobody has an identity.
	if _, err := grpclimit.TLSIdentity(nil)(from(t, "192.0.2.1:80"), grpclimit.Call{}); !errors.Is(err, grpclimit.ErrNoKey) {
		t.Errorf("no TLS: %v", err)
	}
	if got, want := grpclimit.TLSKey("abc", nil), "tls:ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0"; got != want {
		t.Errorf("TLSKey = %q, want %q: all counts of all keys would start afresh", got, want)
	}
}

// With a secret nobody who reads the keys can try values against them.
func TestKeysWithASecret(t *testing.T) {
	t.Parallel()
	mine := []byte("sixteen bytes or")
	got, err := grpclimit.Metadata("authorization", mine)(from(t, "", "authorization", "Basic x"), grpclimit.Call{})
	if err != nil || got != httplimit.HeaderKey("authorization", "Basic x", mine) || got == httplimit.HeaderKey("authorization", "Basic x", nil) {
		t.Errorf("%q, %v, want what HeaderKey gives with the secret", got, err)
	}
	if a, b := grpclimit.TLSKey("CN=alice", mine), grpclimit.TLSKey("CN=alice", nil); a == b || len(a) != len(b) {
		t.Errorf("%q with a secret and %q without", a, b)
	}
	for name, call := range map[string]func(){
		"Metadata":    func() { grpclimit.Metadata("a", mine[:15]) },
		"TLSIdentity": func() { grpclimit.TLSIdentity(mine[:15]) },
		"TLSKey":      func() { grpclimit.TLSKey("a", []byte{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s takes a short secret", name)
				}
			}()
			call()
		}()
	}
}
