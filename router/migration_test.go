//go:build unix

package router_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/backendtest"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
)

func newMemcached(t testing.TB, cfg memcached.Config, servers ...string) *memcached.Memcached {
	t.Helper()
	m, err := memcached.New(servers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func newDual(t testing.TB, cfg dual.Config) *dual.Dual {
	t.Helper()
	d, err := dual.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// TestConformanceOfMigration: Memcached and three groups of Redis are together one exact backend, in both directions,
// while a flag changes its mind for every key fifty times a second.
func TestConformanceOfMigration(t *testing.T) {
	t.Parallel()
	servers, mc := startCluster(t, 3, 0), testserver.Memcached(t)
	for name, back := range map[string]bool{"Memcached to Redis": false, "Redis to Memcached": true} {
		t.Run(name, func(t *testing.T) {
			n := 0
			backendtest.Run(t, func(t *testing.T, now func() time.Time) backend.Backend {
				n++
				prefix, start := fmt.Sprintf("%.1s%d:", name, n), time.Now() // every part begins with nothing stored
				cfg := dual.Config{
					Old: newMemcached(t, memcached.Config{Prefix: prefix, Timeout: 10 * time.Second, Now: now}, mc.Addr),
					New: dial(t, servers.topology, router.Config{Backend: redisbackend.Config{
						Prefix: prefix, Timeout: 10 * time.Second, Now: now,
					}}),
					Decide: func(key string) (bool, uint64) {
						version := uint64(time.Since(start) / (20 * time.Millisecond))
						return (version+keyhash.Sum(key))%2 == 0, version
					},
					CarryOver: true,
				}
				if back {
					cfg.Old, cfg.New = cfg.New, cfg.Old
				}
				return newDual(t, cfg)
			}, backendtest.Contends(), backendtest.Require[backend.Peeker](), backendtest.Require[backend.Refunder](), backendtest.Require[backend.Charger](),
				backendtest.Require[backend.Resetter](), backendtest.Require[backend.Granter](), backendtest.Require[backend.Loader](), backendtest.Require[backend.Seeder]())
		})
	}
}

// TestMigrationIsExact is promise P10 under load: two processes that see changes of the percentage up to two seconds
// apart, forward, back and forward. Without CarryOver the same run admits too much, or it would prove nothing.
func TestMigrationIsExact(t *testing.T) {
	t.Parallel()
	servers, mc := startCluster(t, 3, 0), testserver.Memcached(t)
	for _, carryOver := range []bool{true, false} {
		t.Run(fmt.Sprintf("carry over %t", carryOver), func(t *testing.T) {
			t.Parallel()
			flags := featureflag.File(filepath.Join(t.TempDir(), "flags.json"))
			set := func(percent float64) {
				if _, err := featureflag.Set(context.Background(), flags, "redis", percent); err != nil {
					t.Fatal(err)
				}
			}
			set(0)
			prefix := fmt.Sprintf("%t:", carryOver)
			var processes []*dual.Dual
			for range 2 {
				flag, err := featureflag.New(featureflag.Config{Name: "redis", Source: flags, Refresh: 2 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				defer flag.Close()
				if err := flag.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				d := newDual(t, dual.Config{
					Old: newMemcached(t, memcached.Config{Prefix: prefix, Timeout: 5 * time.Second}, mc.Addr),
					New: dial(t, servers.topology, router.Config{Backend: redisbackend.Config{Prefix: prefix, Timeout: 5 * time.Second}}),

					Decide: flag.Decide, CarryOver: carryOver, Settle: 5 * time.Second,
				})
				processes = append(processes, d)
				time.Sleep(time.Second) // the second one looks at its flag a second later
			}

			const most, window, precision = 20, 5 * time.Second, time.Second
			policies := []*limit.Policy{
				{Name: "fixed", Limits: []limit.Limit{limit.Fixed(most, window)}},
				{Name: "sliding", Limits: []limit.Limit{limit.Sliding(most, window, precision)}},
				{Name: "bucket", Limits: []limit.Limit{limit.TokenBucket(4, time.Second, most)}},
			}
			var books ledger
			ctx, stop := context.WithCancel(context.Background())
			var clients sync.WaitGroup
			for _, d := range processes {
				for range 6 {
					clients.Go(func() {
						for ctx.Err() == nil {
							key, policy := fmt.Sprintf("user:%d", rand.IntN(16)), policies[rand.IntN(len(policies))]
							result, err := d.Take(context.Background(), backend.Request{Key: key, Policy: policy, Cost: 1})
							books.enter(key, policy.Name, result, err)
							time.Sleep(rand.N(10 * time.Millisecond))
						}
					})
				}
			}
			for _, percent := range []float64{50, 100, 50, 0, 100} {
				set(percent)
				time.Sleep(2600 * time.Millisecond)
			}
			stop()
			clients.Wait()

			for name, err := range books.errors {
				t.Errorf("%d takes failed: %v", books.failed[name], err)
			}
			over := map[string]int{
				"fixed":   books.overFixed("fixed", most, window),
				"sliding": books.overInterval("sliding", window-precision, func(time.Duration) int { return most }),
				"bucket":  books.overInterval("bucket", 2*window, func(t time.Duration) int { return most + int(4*t.Seconds()) + 1 }),
			}
			handovers := processes[0].Stats().Handovers + processes[1].Stats().Handovers
			t.Logf("%d admitted, %d denied, over the limit: %v; %d handovers, %d calls went after their key", books.admitted, books.denied,
				over, handovers, processes[0].Stats().Redirects+processes[1].Stats().Redirects)
			for policy, n := range over {
				switch {
				case carryOver && n > 0:
					t.Errorf("%s: %d admitted over the limit", policy, n)
				case !carryOver && n == 0:
					t.Errorf("%s: nothing is admitted over the limit without CarryOver: the load tests nothing", policy)
				}
			}
			if books.contended > books.admitted/4 {
				t.Errorf("%d takes met too many others", books.contended)
			}
			if carryOver && handovers < 5*16 || books.denied < books.admitted/4 {
				t.Errorf("only %d handovers, %d denied: the load tests nothing", handovers, books.denied)
			}
		})
	}
}

// ledger is what was admitted.
type ledger struct {
	mu               sync.Mutex // guards all below
	entries          map[[2]string][]admission
	admitted, denied int
	contended        int
	errors           map[string]error
	failed           map[string]int
}

type admission struct{ at, reset int64 } // Unix microseconds

func (l *ledger) enter(key, policy string, r backend.Result, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries == nil {
		l.entries, l.errors, l.failed = make(map[[2]string][]admission), make(map[string]error), make(map[string]int)
	}
	var failed *backend.Error
	switch {
	case errors.As(err, &failed) && failed.Kind == backend.Contended: // nothing was charged
		l.contended++
	case err != nil:
		l.errors[err.Error()] = err
		l.failed[err.Error()]++
	case r.Allowed:
		name := [2]string{key, policy}
		l.entries[name] = append(l.entries[name], admission{r.Now, r.Binding().ResetAt.UnixMicro()})
		l.admitted++
	default:
		l.denied++
	}
}

// clocks is by how much the clocks of the servers may differ.
const clocks = 20 * time.Millisecond

// overFixed is how much was admitted above most in any window that some reply named, whatever the others named.
func (l *ledger) overFixed(policy string, most int, window time.Duration) (over int) {
	for name, entries := range l.entries {
		counted := make(map[int64]bool)
		for _, a := range entries {
			if name[1] != policy || counted[a.reset] {
				continue
			}
			counted[a.reset] = true
			n := 0
			for _, b := range entries {
				if b.at >= a.reset-(window-clocks).Microseconds() && b.at < a.reset-clocks.Microseconds() {
					n++
				}
			}
			over += max(0, n-most)
		}
	}
	return over
}

// overInterval is how often an admission is one too many for some interval that ends with it, of up to longest.
func (l *ledger) overInterval(policy string, longest time.Duration, most func(time.Duration) int) (over int) {
	for name, entries := range l.entries {
		if name[1] != policy {
			continue
		}
		slices.SortFunc(entries, func(a, b admission) int { return int(a.at - b.at) })
		for i := range entries {
			for j := i; j >= 0; j-- {
				span := time.Duration(entries[i].at-entries[j].at) * time.Microsecond
				if span > longest-clocks {
					break
				}
				if i-j+1 > most(span+clocks) {
					over++
					break
				}
			}
		}
	}
	return over
}
