//go:build unix

package integration_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestMisconfigured: what only a person can fix ends a start that asks for it, and later is typed as that while the failure
// policy decides.
func TestMisconfigured(t *testing.T) {
	t.Parallel()
	const quota, processes = 10, 5
	policy := one(limit.PerHour(quota))
	var typed, wrong, most int64
	for name, test := range map[string]struct {
		host  string // that the certificate is for; empty for no TLS
		ends  time.Duration
		trust bool // whether the client knows who issued it
		cause func(*testing.T, *server)
	}{
		"wrong password": {cause: func(t *testing.T, s *server) {
			command(t, s, "ACL", "SETUSER", "app", "resetpass", ">changed")
		}},
		"no rights":           {cause: func(t *testing.T, s *server) { command(t, s, "ACL", "SETUSER", "app", "-@all") }},
		"expired certificate": {host: "127.0.0.1", ends: -time.Hour, trust: true},
		"another host":        {host: "redis.example.com", ends: time.Hour, trust: true},
		"unknown authority":   {host: "127.0.0.1", ends: time.Hour},
	} {
		s := startRedis(t)
		command(t, s, "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all")
		cover := &tlsCover{target: s.addr}
		options := &redis.Options{Username: "app", Password: "secret"}
		address := s.addr
		if test.host != "" {
			good := cover.certify(t, "127.0.0.1", time.Hour)
			address, options.TLSConfig = cover.listen(t), &tls.Config{RootCAs: good, MinVersion: tls.VersionTLS12}
		}
		open := func() *router.Router {
			r, err := router.Open(router.Topology{Groups: []router.Group{{Name: "a", Primary: address}}},
				router.Config{Redis: options, Backend: redisbackend.Config{Timeout: 2 * time.Second}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = r.Close() })
			return r
		}
		start := func(require bool) (*throttler.Throttler, error) {
			th, err := throttler.New(throttler.Config{Backend: open(), Policy: policy, Processes: processes, RequireReachable: require})
			if err == nil {
				t.Cleanup(func() { _ = th.Close() })
			}
			return th, err
		}
		running, err := start(true)
		if err != nil {
			t.Fatalf("%s: a server that works: %v", name, err)
		}
		if test.cause != nil {
			test.cause(t, s)
		} else if known := cover.certify(t, test.host, test.ends); test.trust {
			options.TLSConfig = &tls.Config{RootCAs: known, MinVersion: tls.VersionTLS12}
		}
		command(t, s, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

		judge := func(what string, err error) {
			typed++
			var failed *backend.Error
			if !errors.As(err, &failed) || failed.Kind != backend.Misconfigured || failed.MayHaveCharged || !strings.Contains(failed.Node, address) {
				wrong++
				t.Errorf("%s, %s: %v, want Misconfigured at %s, and nothing charged", name, what, err, address)
			}
		}
		var d throttler.Decision
		await(t, "the running process notices", func() bool { // that its connections were killed it notices first
			d, err = running.Allow(t.Context(), "user:1")
			return err != nil || kind(d.Cause) == backend.Misconfigured
		})
		judge("later", d.Cause)
		_, err = start(true)
		judge("at the start", err)
		fresh, err := start(false)
		if err != nil {
			t.Fatalf("%s: a start that asks for nothing: %v", name, err)
		}
		var admitted int64
		for range 3 * quota {
			if d, err = fresh.Allow(t.Context(), "user:2"); err == nil && d.Allowed {
				admitted++
			}
		}
		judge("without RequireReachable", d.Cause)
		most = max(most, admitted)
	}
	if most > quota/processes {
		t.Errorf("%d admitted by one process, want its share of %d", most, quota/processes)
	}
	report(t, "misconfigured", result{sluice: figures{
		over: max(0, most-quota/processes), note: fmt.Sprintf("%d of %d typed as configuration, at the right node", typed-wrong, typed),
	}})
}

// tlsCover serves TLS in front of a server, with a certificate that can be changed.
type tlsCover struct {
	target      string
	certificate atomic.Pointer[tls.Certificate]
}

func (c *tlsCover) listen(t *testing.T) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.certificate.Load(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				if client.(*tls.Conn).Handshake() != nil {
					return
				}
				server, err := net.Dial("tcp", c.target)
				if err != nil {
					return
				}
				defer server.Close()
				go func() {
					_, _ = io.Copy(server, client)
					_ = server.Close()
				}()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	return listener.Addr().String()
}

// certify gives the cover a certificate of its own, and returns whom a client has to know to trust it.
func (c *tlsCover) certify(t *testing.T, host string, ends time.Duration) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(ends),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	c.certificate.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	known := x509.NewCertPool()
	known.AddCert(cert)
	return known
}
