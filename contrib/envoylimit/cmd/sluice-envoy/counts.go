package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/router"
)

// openCounts opens what counts. The router is nil without groups.
func openCounts(s *settings, onEvent func(router.Event)) (backend.Backend, *router.Router, error) {
	switch strings.ToLower(s.backend) {
	case "memory":
		b, err := memory.New(memory.Config{})
		return b, nil, err
	case "memcache":
		b, err := memcached.New(strings.Split(s.memcached, ","), memcached.Config{Prefix: s.prefix, Timeout: s.redisTimeout})
		return b, nil, err
	}
	opts, err := s.redisOptions()
	if err != nil {
		return nil, nil, err
	}
	cfg := redisbackend.Config{Prefix: s.prefix, Timeout: s.redisTimeout}
	routed := router.Config{Redis: opts, Backend: cfg, OnEvent: onEvent}
	if s.topology != "" {
		topology, err := router.LoadTopology(s.topology)
		if err != nil {
			return nil, nil, err
		}
		r, err := router.Open(topology, routed)
		if err != nil {
			return nil, nil, err
		}
		if err := r.WatchFile(s.topology); err != nil {
			return nil, nil, errors.Join(err, r.Close())
		}
		return r, r, nil
	}
	addresses := strings.Split(s.redisURL, ",")
	switch strings.ToUpper(s.redisType) {
	case "CLUSTER":
		b, err := redisbackend.OpenCluster(addresses, opts, cfg)
		return b, nil, err
	case "SENTINEL":
		if len(addresses) < 2 {
			return nil, nil, errors.New("REDIS_URL must be the name of a master and sentinels, separated by commas")
		}
		routed.Sentinel = &redis.Options{TLSConfig: opts.TLSConfig}
		routed.Sentinel.Username, routed.Sentinel.Password = login(s.sentinelAuth)
		r, err := router.Open(router.Topology{
			Epoch: 1, Groups: []router.Group{{Name: "redis", Master: addresses[0], Sentinels: addresses[1:]}},
		}, routed)
		return r, r, err
	}
	b, err := redisbackend.Open(opts, cfg)
	return b, nil, err
}

// redisOptions are those of each server.
func (s *settings) redisOptions() (*redis.Options, error) {
	opts := &redis.Options{}
	single := s.topology == "" && strings.EqualFold(s.redisType, "SINGLE")
	switch {
	case single && strings.Contains(s.redisURL, "://"):
		var err error
		if opts, err = redis.ParseURL(s.redisURL); err != nil {
			return nil, errors.New("REDIS_URL is no redis:// URL") // which may hold a password
		}
	case single:
		opts.Addr, opts.Network = s.redisURL, strings.ToLower(s.redisSocket)
		if opts.Network == "" && strings.HasPrefix(s.redisURL, "/") {
			opts.Network = "unix"
		}
	}
	opts.PoolSize = s.redisPool
	if s.redisAuth != "" {
		opts.Username, opts.Password = login(s.redisAuth)
	}
	if s.redisTLS {
		var err error
		if opts.TLSConfig, err = s.redisTLSConfig(); err != nil {
			return nil, err
		}
	}
	return opts, nil
}

// login reads a password, or a user and a password.
func login(text string) (user, password string) {
	if user, password, both := strings.Cut(text, ":"); both {
		return user, password
	}
	return "", text
}

func (s *settings) redisTLSConfig() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.redisCA != "" {
		var err error
		if cfg.RootCAs, err = authorities(s.redisCA); err != nil {
			return nil, fmt.Errorf("REDIS_TLS_CACERT: %w", err)
		}
	}
	if s.redisCert != "" || s.redisKey != "" {
		pair, err := tls.LoadX509KeyPair(s.redisCert, s.redisKey)
		if err != nil {
			return nil, fmt.Errorf("REDIS_TLS_CLIENT_CERT: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	if s.redisSkipVerify { // the chain is verified all the same
		roots := cfg.RootCAs
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(state tls.ConnectionState) error {
			return verifyChain(state.PeerCertificates, roots, x509.ExtKeyUsageServerAuth)
		}
	}
	return cfg, nil
}

func authorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", path)
	}
	return pool, nil
}

func verifyChain(certs []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage) error {
	if len(certs) == 0 {
		return errors.New("no certificate")
	}
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, c := range certs[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := certs[0].Verify(opts)
	return err
}

// ping reports whether what counts answers, of several nodes any: the loss of one must not take every process out of service.
func ping(ctx context.Context, b backend.Backend, groups *router.Router) bool {
	err := backend.Ping(ctx, b)
	if err == nil || groups == nil {
		return err == nil
	}
	silent, joined := err.(interface{ Unwrap() []error }) // one error a node; a router that has stopped has another one
	return joined && len(silent.Unwrap()) < len(groups.Nodes())
}
