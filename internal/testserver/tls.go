//go:build unix

package testserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates that those who trust it believe.
type Authority struct {
	File string // with its certificate

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority returns a new certificate authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "testserver"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	a.File = writePEM(t, t.TempDir(), "ca.pem", "CERTIFICATE", der)
	return a
}

// Trust is the configuration of a client that believes the authority.
func (a *Authority) Trust() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// Issue writes a certificate for a host, a name or an IP address, and its key to files in dir. It serves servers and clients.
func (a *Authority) Issue(t testing.TB, dir, host string, notAfter time.Time) (cert, key string) {
	t.Helper()
	private := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	return writePEM(t, dir, host+".pem", "CERTIFICATE", der), writePEM(t, dir, host+".key", "EC PRIVATE KEY", secret)
}

// SetCertificate makes a Redis server serve TLS, beside its plain port, with a certificate for host that ends at notAfter.
// At a second call the certificate changes; connections stay. It returns the address. If clients is true, the server wants
// certificates of the authority from its clients.
func (s *Server) SetCertificate(t testing.TB, a *Authority, host string, notAfter time.Time, clients bool) (address string) {
	t.Helper()
	cert, key := a.Issue(t, t.TempDir(), host, notAfter)
	if s.tls == "" {
		s.tls = reserve(t)
	}
	_, port, _ := net.SplitHostPort(s.tls)
	wanted := "no"
	if clients {
		wanted = "yes"
	}
	err := s.Client().Do(t.Context(), "CONFIG", "SET", "tls-cert-file", cert, "tls-key-file", key,
		"tls-ca-cert-file", a.File, "tls-auth-clients", wanted, "tls-port", port).Err()
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	return s.tls
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	return key
}

func writePEM(t testing.TB, dir, name, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatalf("testserver: %v", err)
	}
	return file
}
