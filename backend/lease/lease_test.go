package lease_test

import (
	"math"
	"path"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memcached"
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

// TestCreditConformance: a Lease that admits on credit charges each request once and where it was admitted, and never shows
// more than remains. Callers at once are admitted at most the allowance above a limit.
func TestCreditConformance(t *testing.T) {
	t.Parallel()
	redis, mc := testserver.Redis(t), testserver.Memcached(t)
	inner := map[string]func(t *testing.T, now func() time.Time) backend.Backend{
		"Redis": func(t *testing.T, now func() time.Time) backend.Backend {
			return backendtesting.OpenRedis(t, redis.Addr, redisbackend.Config{Prefix: backendtesting.NewPrefix(), Timeout: backendtesting.Patient, Now: now})
		},
		"Memcached": func(t *testing.T, now func() time.Time) backend.Backend {
			return backendtesting.OpenMemcached(t, memcached.Config{Prefix: backendtesting.NewPrefix(), Now: now}, mc.Addr)
		},
	}
	cfg := lease.Config{Batch: -1, Slack: 0.9, Least: 1000, Processes: 1, Flush: time.Millisecond}
	bound := lease.BoundError{Slack: cfg.Slack, Least: cfg.Least, Processes: cfg.Processes}
	owes := backendtest.Owes(func(b backend.Backend) int64 { return b.(*lease.Lease).Stats().Debt }, bound.Above)
	for name, open := range inner {
		t.Run(name, func(t *testing.T) {
			parts := make(map[string]*lease.Lease)
			backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
				cfg := cfg
				cfg.Now = now
				l := backendtesting.NewLease(t, open(t, now), cfg)
				parts[path.Base(t.Name())] = l
				return l
			}, append(leaseOperations, owes, backendtest.Weakest(backend.Bounded), backendtest.Contends())...)
			both := []string{ // parts with decisions of both kinds
				"Fixed", "Aligned", "Staggered", "Sliding", "Policy", "Denied", "Expiry", "ClockBack", "BigNumbers", "Peek", "Refund",
				"ChargeMarks", "Grant", "Load", "Seed", "Floor", "Concurrent", "ConcurrentRefund", "History",
			}
			for _, part := range both {
				l := parts[part]
				if l == nil && len(parts) < len(both) { // -run leaves parts out
					continue
				}
				if s := l.Stats(); s.OnCredit == 0 || s.Forwarded == 0 || s.LostCharges > 0 {
					t.Errorf("%s: %d on credit and %d not, %d lost", part, s.OnCredit, s.Forwarded, s.LostCharges)
				}
			}
		})
	}
}

// TestAsManyKeysAsThereAre: the largest MaxKeys bounds nothing, and keeps views.
func TestAsManyKeysAsThereAre(t *testing.T) {
	ls := backendtesting.NewLease(t, newPlace().from(1), lease.Config{MaxKeys: math.MaxInt})
	takeKey(t, ls, backendtesting.Hour(10), 1, true)
	if s := ls.Stats(); s.Keys != 1 {
		t.Errorf("%+v", s)
	}
}
