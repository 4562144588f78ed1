//go:build unix

package backend_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/testserver"
)

// swing is a flag that changes its mind for every key, again and again.
type swing struct {
	start time.Time
	every time.Duration
}

func (f swing) Version() uint64 { return uint64(time.Since(f.start) / f.every) }

func (f swing) UseNew(key string) bool { return (f.Version()+keyhash.Sum(key))%2 == 0 }

// tide is a flag that changes its mind with the clock, so that a history can be repeated.
type tide struct {
	now     func() time.Time
	mu      sync.Mutex // guards all below
	last    time.Time
	version uint64
}

func (f *tide) Version() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); !now.Equal(f.last) {
		f.last = now
		f.version++
	}
	return f.version
}

func (f *tide) UseNew(key string) bool {
	return (uint64(f.now().UnixMicro())+keyhash.Sum(key))%2 == 0
}

func constant(useNew bool) func(string) bool { return func(string) bool { return useNew } }

func newDual(t testing.TB, cfg backend.DualConfig) *backend.Dual {
	t.Helper()
	d, err := backend.NewDual(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// dualOperations is what a Dual must be able to do.
var dualOperations = []backendtest.Option{
	backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](), backendtest.Require[backend.Resetter](),
	backendtest.Require[backend.Pinger](), backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder](),
}

// TestDualConformance: whatever the flag does, both sides together are one exact backend.
func TestDualConformance(t *testing.T) {
	server, memcached := testserver.Redis(t), testserver.Memcached(t)
	memory := func(t *testing.T, _ string, now func() time.Time) backend.Backend {
		m, err := backend.NewMemory(backend.MemoryConfig{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	inMemcached := func(t *testing.T, prefix string, now func() time.Time) backend.Backend {
		return openMemcached(t, backend.MemcachedConfig{Prefix: prefix, Timeout: patient, Now: now, Tries: 100}, memcached.Addr)
	}
	inRedis := func(t *testing.T, prefix string, now func() time.Time) backend.Backend {
		return openRedis(t, server.Addr, backend.RedisConfig{Prefix: prefix, Timeout: patient, Now: now})
	}
	for name, sides := range map[string][2]func(*testing.T, string, func() time.Time) backend.Backend{
		"memories": {memory, memory}, "Memcached to Redis": {inMemcached, inRedis}, "Redis to Memcached": {inRedis, inMemcached},
	} {
		for flag, cfg := range map[string]func(now func() time.Time) backend.DualConfig{
			"off": func(func() time.Time) backend.DualConfig { return backend.DualConfig{UseNew: constant(false)} },
			"on":  func(func() time.Time) backend.DualConfig { return backend.DualConfig{UseNew: constant(true)} },
			"on, carried over": func(func() time.Time) backend.DualConfig {
				return backend.DualConfig{UseNew: constant(true), Version: func() uint64 { return 1 }, CarryOver: true}
			},
			"swinging": func(func() time.Time) backend.DualConfig {
				s := swing{time.Now(), 20 * time.Millisecond}
				return backend.DualConfig{UseNew: s.UseNew, Version: s.Version, CarryOver: true}
			},
			"tidal": func(now func() time.Time) backend.DualConfig {
				f := &tide{now: now}
				return backend.DualConfig{UseNew: f.UseNew, Version: f.Version, CarryOver: true}
			},
		} {
			t.Run(name+"/"+flag, func(t *testing.T) {
				t.Parallel()
				n := 0
				backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
					n++
					prefix := fmt.Sprintf("%s%d:", newPrefix(), n)
					c := cfg(now)
					c.Old, c.New = sides[0](t, prefix, now), sides[1](t, prefix, now)
					return newDual(t, c)
				}, append(dualOperations, backendtest.Contends())...)
			})
		}
	}
}
