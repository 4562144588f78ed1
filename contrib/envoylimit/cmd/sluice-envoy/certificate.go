package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// certificate is a certificate in files that are read anew when they change.
type certificate struct {
	certFile, keyFile string
	failed            func(error)

	mu        sync.Mutex // guards what follows
	checked   time.Time
	cert, key []byte
	pair      *tls.Certificate
}

// certificateEvery is how often the files are read at most.
const certificateEvery = time.Second

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) >= certificateEvery {
		c.checked = time.Now()
		if err := c.loadLocked(); err != nil && c.pair != nil {
			c.failed(err) // the one before is still good
		} else if err != nil {
			return nil, err
		}
	}
	return c.pair, nil
}

func (c *certificate) loadLocked() error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return err
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	c.cert, c.key, c.pair = cert, key, &pair
	return nil
}

// serverTLS is the TLS of the gRPC server.
func serverTLS(s *settings, failed func(error)) (*tls.Config, error) {
	c := &certificate{certFile: s.tlsCert, keyFile: s.tlsKey, failed: failed}
	if _, err := c.get(nil); err != nil {
		return nil, fmt.Errorf("GRPC_SERVER_TLS_CERT: %w", err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
	if s.clientCA != "" {
		var err error
		if cfg.ClientCAs, err = authorities(s.clientCA); err != nil {
			return nil, fmt.Errorf("GRPC_CLIENT_TLS_CACERT: %w", err)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if name := s.sanName; name != "" {
		cfg.VerifyConnection = func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("no certificate")
			}
			return state.PeerCertificates[0].VerifyHostname(name)
		}
	}
	return cfg, nil
}
