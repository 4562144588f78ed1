package backend_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/internal/testserver"
)

func openMemcached(t testing.TB, cfg backend.MemcachedConfig, servers ...string) *backend.Memcached {
	t.Helper()
	m, err := backend.NewMemcached(servers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestMemcachedConformance(t *testing.T) {
	servers := []string{testserver.Memcached(t).Addr, testserver.Memcached(t).Addr}
	n := 0
	backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
		n++
		prefix := "t" + strconv.Itoa(n) + ":" // every part of the suite begins with nothing stored
		return openMemcached(t, backend.MemcachedConfig{Prefix: prefix, Timeout: 10 * time.Second, Now: now}, servers...)
	},
		backendtest.Contends(),
		backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](),
		backendtest.Require[backend.Resetter](), backendtest.Require[backend.Pinger](),
		backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder](), backendtest.Require[backend.Sealer](),
		backendtest.Require[backend.Clock](),
	)
}
