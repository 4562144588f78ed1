package envoylimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// most is the limit of each of the keys of a fault test, for a day: no window ends on the way.
const (
	most = 60
	keys = 40
)

var faultConfig = fmt.Sprintf("domain: web\ndescriptors:\n  - {key: key, rate_limit: {unit: day, requests_per_unit: %d}}\n"+
	"  - {key: client, rate_limit: {unit: day, requests_per_unit: 1000000}}\n", most)

// failing has no failure policy: only what the backend decides is admitted.
var failing = envoylimit.Config{Throttler: throttler.Config{Failure: throttler.FailError}}

// traffic calls services at once, as gateways do, until it is stopped, and counts what is admitted by key.
type traffic struct {
	admitted      [keys]atomic.Int64
	failed        [keys]atomic.Bool // whether a call has had no verdict
	calls, errors atomic.Int64
	stop          func()
}

func load(t *testing.T, clients ...client) *traffic {
	tr := &traffic{}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for caller := range 4 * len(clients) {
		running.Go(func() {
			for ctx.Err() == nil {
				tr.call(clients[caller%len(clients)], rand.IntN(keys), caller%2 == 0)
				time.Sleep(rand.N(time.Millisecond))
			}
		})
	}
	tr.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(tr.stop)
	return tr
}

// call asks about a key, and with several descriptors about another limit that never denies.
func (tr *traffic) call(c client, key int, several bool) (admitted bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // a request that is sent is answered, or it may count unseen
	defer cancel()
	req := &pb.RateLimitRequest{Domain: "web", Descriptors: []*ratelimit.RateLimitDescriptor{desc(fmt.Sprintf("key=%d", key))}}
	if several {
		req.Descriptors = append(req.Descriptors, desc("client=a"))
	}
	tr.calls.Add(1)
	res, err := c.ShouldRateLimit(ctx, req)
	if err != nil {
		tr.errors.Add(1)
		tr.failed[key].Store(true)
		return false, err
	}
	if admitted = res.GetOverallCode() == isOK; admitted {
		tr.admitted[key].Add(1)
	}
	return admitted, nil
}

// drain takes what is left of all keys.
func (tr *traffic) drain(t *testing.T, c client) {
	t.Helper()
	for key := range keys {
		for try, denied := 0, 0; denied < 3; try++ { // a request of several descriptors may be denied for a moment
			admitted, err := tr.call(c, key, false)
			if err != nil || try > 10*most {
				t.Fatalf("key %d: %v after %d tries", key, err, try)
			}
			if !admitted {
				denied++
			}
		}
	}
}

func (tr *traffic) total() (n int64) {
	for i := range tr.admitted {
		n += tr.admitted[i].Load()
	}
	return n
}

// openGroups opens groups whose servers tell of a newer topology, as those of a deployment do.
func openGroups(t *testing.T, topology router.Topology) *router.Router {
	t.Helper()
	r, err := router.Open(topology, router.Config{Backend: redisConfig(nil), AllowedAddresses: []string{"127.0.0.1"}})
	closed(t, r, err)
	return r
}

// TestReshard adds a group under load, and removes it again; one process is told, the other meets the change. No key is
// admitted more than its limit, and none loses quota.
func TestReshard(t *testing.T) {
	t.Parallel()
	four := groups(t, 4)
	a, b := openGroups(t, router.Topology{Epoch: 1, Groups: four[:3]}), openGroups(t, router.Topology{Epoch: 1, Groups: four[:3]})
	first, _ := open(t, a, faultConfig, failing)
	second, _ := open(t, b, faultConfig, failing)
	tr := load(t, first, second)
	for i, now := range [][]router.Group{four, four[:3]} {
		for _, r := range []*router.Router{a, b} {
			time.Sleep(150 * time.Millisecond) // the schedule of the release, not a wait for anything
			if err := r.Update(router.Topology{Epoch: uint64(i + 2), Groups: now}); err != nil {
				t.Error(err)
			}
		}
	}
	tr.stop()
	tr.drain(t, second)
	for key := range keys {
		if n := tr.admitted[key].Load(); n != most {
			t.Errorf("key %d: %d admitted", key, n)
		}
	}
	if moved := a.Stats().Handovers + b.Stats().Handovers; moved == 0 || tr.errors.Load() > tr.calls.Load()/50 {
		t.Errorf("%d handovers, %d of %d calls without a verdict", moved, tr.errors.Load(), tr.calls.Load())
	}
}

// TestMigration moves keys from one Redis to another and back by a flag, under load. No key is admitted more than its limit.
func TestMigration(t *testing.T) {
	t.Parallel()
	source := featureflag.File(filepath.Join(t.TempDir(), "flags.json"))
	set := func(percent float64) {
		if _, err := featureflag.Set(t.Context(), source, "move", percent); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	flag, err := featureflag.New(featureflag.Config{Name: "move", Source: source, Refresh: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Close() })
	if err := flag.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	old, err := redisbackend.Open(&redis.Options{Addr: testserver.Redis(t).Addr}, redisConfig(nil))
	if err != nil {
		t.Fatal(err)
	}
	next, err := redisbackend.Open(&redis.Options{Addr: testserver.Redis(t).Addr}, redisConfig(nil))
	if err != nil {
		t.Fatal(err)
	}
	d, err := dual.New(dual.Config{Old: old, New: next, Decide: flag.Decide, CarryOver: true, Settle: time.Minute})
	c, _ := open(t, closed(t, d, err), faultConfig, failing)
	tr := load(t, c)
	for _, percent := range []float64{50, 100, 30, 0, 100} {
		set(percent)
		time.Sleep(120 * time.Millisecond)
	}
	tr.stop()
	tr.drain(t, c)
	for key := range keys {
		if n := tr.admitted[key].Load(); n != most {
			t.Errorf("key %d: %d admitted", key, n)
		}
	}
	if n := d.Stats().Handovers; n == 0 || tr.errors.Load() > 0 {
		t.Errorf("%d handovers, %d errors", n, tr.errors.Load())
	}
}

// TestKilledPrimary kills the primary of one of two groups under load and promotes its replica. Keys of the other group never
// notice. A key of the group has no verdict meanwhile, and is admitted at most its limit once more for the loss.
func TestKilledPrimary(t *testing.T) {
	t.Parallel()
	primary, other := testserver.Redis(t), testserver.Redis(t)
	replica := testserver.Replica(t, primary)
	topology := func(address string) router.Topology {
		return router.Topology{Epoch: 1, Groups: []router.Group{{Name: "killed", Primary: address}, {Name: "other", Primary: other.Addr}}}
	}
	// Calls fail fast.
	r, err := router.Open(topology(primary.Addr), router.Config{Backend: redisbackend.Config{Timeout: time.Second}})
	closed(t, r, err)
	c, _ := open(t, r, faultConfig, failing)
	tr := load(t, c)
	eventually(t, "no traffic", func() bool { return tr.total() > keys*most/4 })
	primary.Kill()
	eventually(t, "the outage goes unnoticed", func() bool { return tr.errors.Load() > keys })
	if err := replica.Client().Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.Update(topology(replica.Addr)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the promoted replica is not used", func() bool {
		before := tr.errors.Load()
		time.Sleep(50 * time.Millisecond)
		return tr.errors.Load() == before
	})
	tr.stop()
	tr.drain(t, c)
	names, err := other.Client().Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for key := range keys {
		elsewhere := slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, fmt.Sprintf("|key=%d", key)) })
		n := tr.admitted[key].Load()
		switch {
		case n > 2*most:
			t.Errorf("key %d: %d admitted", key, n)
		case elsewhere && (n != most || tr.failed[key].Load()):
			t.Errorf("key %d of the other group: %d admitted, without a verdict at times: %t", key, n, tr.failed[key].Load())
		}
		if elsewhere {
			kept++
		}
	}
	if kept < keys/10 || kept > keys*9/10 {
		t.Errorf("%d of %d keys are on the other group: %q", kept, keys, names)
	}
	t.Logf("%d admitted above the limits, for a promotion that lost writes", max(0, tr.total()-keys*most))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}
