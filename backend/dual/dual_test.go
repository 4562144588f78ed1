//go:build unix

package dual_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/testserver"
)

// swing is a flag that changes its mind for every key, again and again.
type swing struct {
	start time.Time
	every time.Duration
}

func (f swing) Decide(key string) (useNew bool, version uint64) {
	version = uint64(time.Since(f.start) / f.every)
	return (version+keyhash.Sum(key))%2 == 0, version
}

// tide is a flag that changes its mind with the clock, so that a history can be repeated.
type tide struct {
	now     func() time.Time
	mu      sync.Mutex // guards all below
	last    time.Time
	version uint64
}

func (f *tide) Decide(key string) (useNew bool, version uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if !now.Equal(f.last) {
		f.last = now
		f.version++
	}
	return (uint64(now.UnixMicro())+keyhash.Sum(key))%2 == 0, f.version
}

// restless is a flag that changes with every reading: odd versions are the new side.
type restless struct{ readings atomic.Uint64 }

func (f *restless) Decide(string) (useNew bool, version uint64) {
	version = f.readings.Add(1)
	return version%2 == 1, version
}

func always(string) bool { return true }

// dualOperations is what a Dual must be able to do.
var dualOperations = []backendtest.Option{
	backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](), backendtest.Require[backend.Charger](), backendtest.Require[backend.Resetter](), backendtest.Require[backend.Granter](),
	backendtest.Require[backend.Pinger](), backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder](),
}

// TestDualConformance: whatever the flag does, both sides together are one exact backend.
func TestDualConformance(t *testing.T) {
	t.Parallel()
	server, mc := testserver.Redis(t), testserver.Memcached(t)
	mem := func(t *testing.T, _ string, now func() time.Time) backend.Backend {
		m, err := memory.New(memory.Config{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	inMemcached := func(t *testing.T, prefix string, now func() time.Time) backend.Backend {
		return backendtesting.OpenMemcached(t, memcached.Config{Prefix: prefix, Timeout: backendtesting.Patient, Now: now, Tries: 100}, mc.Addr)
	}
	inRedis := func(t *testing.T, prefix string, now func() time.Time) backend.Backend {
		return backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Prefix: prefix, Timeout: backendtesting.Patient, Now: now})
	}
	for name, sides := range map[string][2]func(*testing.T, string, func() time.Time) backend.Backend{
		"memories": {mem, mem}, "Memcached to Redis": {inMemcached, inRedis}, "Redis to Memcached": {inRedis, inMemcached},
	} {
		for flag, cfg := range map[string]func(now func() time.Time) dual.Config{
			"off": func(func() time.Time) dual.Config { return dual.Config{Decide: backendtesting.Constant(false)} },
			"on":  func(func() time.Time) dual.Config { return dual.Config{Decide: backendtesting.Constant(true)} },
			"on, carried over": func(func() time.Time) dual.Config {
				return dual.Config{Decide: backendtesting.Constant(true), CarryOver: true}
			},
			"swinging": func(func() time.Time) dual.Config {
				s := swing{time.Now(), 100 * time.Millisecond} // longer than a request takes on a busy machine
				return dual.Config{Decide: s.Decide, CarryOver: true}
			},
			"tidal": func(now func() time.Time) dual.Config {
				f := &tide{now: now}
				return dual.Config{Decide: f.Decide, CarryOver: true}
			},
		} {
			t.Run(name+"/"+flag, func(t *testing.T) {
				t.Parallel()
				n := 0
				backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
					n++
					prefix := fmt.Sprintf("%s%d:", backendtesting.NewPrefix(), n)
					c := cfg(now)
					c.Old, c.New = sides[0](t, prefix, now), sides[1](t, prefix, now)
					return backendtesting.NewDual(t, c)
				}, append(dualOperations, backendtest.Contends())...)
			})
		}
	}
}

// TestDualTakesSideAndVersionTogether: a flag that changes between any two readings never sends a key to a side that its
// version doesn't name, and each key gets exactly its Max (promise P10).
func TestDualTakesSideAndVersionTogether(t *testing.T) {
	s, f := newStage(t), &restless{}
	processes := []*dual.Dual{}
	for range 2 {
		processes = append(processes, backendtesting.NewDual(t, dual.Config{Old: s.old, New: s.new, Decide: f.Decide, CarryOver: true}))
	}
	const keys, calls = 20, 15
	var admitted, mixed int
	for i := range keys * calls {
		req := takeTen(fmt.Sprint("k", i%keys))
		req.Trace = &backend.Trace{}
		if backendtesting.MustTake(t, processes[i%3%2], req).Allowed {
			admitted++
		}
		if (req.Trace.Side == "new") != (req.Trace.FlagVersion%2 == 1) {
			mixed++
		}
	}
	if admitted != keys*10 || mixed > 0 {
		t.Errorf("%d admitted, want %d; %d of %d decisions on a side that their version doesn't name", admitted, keys*10, mixed, keys*calls)
	}
}
