package lease_test

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
)

// leaseOperations is what a Lease must be able to do.
var leaseOperations = []backendtest.Option{
	backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](), backendtest.Require[backend.Charger](), backendtest.Require[backend.Resetter](), backendtest.Require[backend.Granter](),
	backendtest.Require[backend.Pinger](), backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder](),
}

// TestLeaseConformance: a Lease that only keeps its local view is the backend that it holds; one that leases withholds
// what it has leased, and is exact but for buckets.
func TestLeaseConformance(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	inner := map[string]func(t *testing.T, now func() time.Time) backend.Backend{
		"Memory": func(t *testing.T, now func() time.Time) backend.Backend {
			m, err := memory.New(memory.Config{Now: now})
			if err != nil {
				t.Fatal(err)
			}
			return m
		},
		"Redis": func(t *testing.T, now func() time.Time) backend.Backend {
			return backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Prefix: backendtesting.NewPrefix(), Timeout: backendtesting.Patient, Now: now})
		},
	}
	for name, open := range inner {
		t.Run(name+"/View", func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
				return backendtesting.NewLease(t, open(t, now), lease.Config{Now: now, Batch: -1})
			}, leaseOperations...)
		})
		t.Run(name+"/Leases", func(t *testing.T) {
			const batch = 4
			backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
				return backendtesting.NewLease(t, open(t, now), lease.Config{Now: now, Batch: batch, Steady: true, Processes: 1})
			}, append(leaseOperations, backendtest.Withholds(batch-1), backendtest.Weakest(backend.Bounded))...)
		})
	}
}
