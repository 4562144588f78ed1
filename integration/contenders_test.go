//go:build unix

package integration_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// deadline is what an application gives each call, by its context. It is twice the default timeout of a Redis backend.
const deadline = 500 * time.Millisecond

// slack is how much later than its deadline a call may return: the machine may be busy.
const slack = 4 * time.Second

// A limiter is one process's limiter, ours or another. An error means that there is no verdict of a server.
type limiter interface {
	allow(ctx context.Context, key string) (admitted bool, err error)
}

// A contender is what several processes use, and what became of their calls.
type contender struct {
	name      string
	processes []limiter
	within    time.Duration // each call's deadline; the usual one if zero

	calls, admitted, unknown atomic.Int64
	maybe                    atomic.Int64 // calls that the server may have counted
	longest                  atomic.Int64 // nanoseconds
}

// call lets one process ask for one, within the deadline.
func (c *contender) call(process int, key string) (admitted bool, err error) {
	ctx, cancel := c.limited()
	defer cancel()
	begin := time.Now()
	admitted, err = c.processes[process].allow(ctx, key)
	c.saw(time.Since(begin), admitted, err)
	return admitted, err
}

// decide is call for a process of ours, with the whole decision.
func (c *contender) decide(process int, key string) (throttler.Decision, error) {
	ctx, cancel := c.limited()
	defer cancel()
	begin := time.Now()
	d, err := c.sluiceOf(process).decide(ctx, key)
	c.saw(time.Since(begin), d.Allowed, err)
	return d, err
}

func (c *contender) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), cmp.Or(c.within, deadline))
}

// unhurried gives calls as long as patient servers get: where they are expected to succeed, a busy machine may take its time.
func (c *contender) unhurried() *contender {
	c.within = patient.Timeout
	return c
}

func (c *contender) saw(took time.Duration, admitted bool, err error) {
	for last := c.longest.Load(); int64(took) > last && !c.longest.CompareAndSwap(last, int64(took)); {
		last = c.longest.Load()
	}
	c.calls.Add(1)
	if admitted {
		c.admitted.Add(1)
	}
	if err != nil {
		c.unknown.Add(1)
	}
	var failed *backend.Error
	if err == nil || !errors.As(err, &failed) || failed.MayHaveCharged {
		c.maybe.Add(1)
	}
}

// take makes n calls, the processes in turn, one after the other, and returns how many were admitted.
func (c *contender) take(n int, key string) (admitted int64) {
	for i := range n {
		if ok, _ := c.call(i%len(c.processes), key); ok {
			admitted++
		}
	}
	return admitted
}

// takeAtOnce makes calls from each of several callers at once, the processes in turn.
func (c *contender) takeAtOnce(callers, each int, key func(caller int) string) {
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for range each {
				_, _ = c.call(i%len(c.processes), key(i))
			}
		})
	}
	all.Wait()
}

// exhaust calls until every process was denied by the server and returns how many were admitted. A process that gets
// no verdict asks again.
func (c *contender) exhaust(t *testing.T, key string) (admitted int64) {
	t.Helper()
	left := make(map[int]bool)
	for i := range c.processes {
		left[i] = true
	}
	for end := time.Now().Add(patience); len(left) > 0; {
		if time.Now().After(end) {
			t.Fatalf("%s: not exhausted after %v", c.name, patience)
		}
		for i := range left {
			ok, err := c.call(i, key)
			switch {
			case ok:
				admitted++
			case err == nil:
				delete(left, i)
			default:
				time.Sleep(5 * time.Millisecond) // an open breaker answers at once
			}
		}
	}
	return admitted
}

// at makes one call for each contender at once.
func at(all []*contender, do func(c *contender)) {
	var running sync.WaitGroup
	for _, c := range all {
		running.Go(func() { do(c) })
	}
	running.Wait()
}

// sluice is one process's Throttler over a Router.
type sluice struct {
	*throttler.Throttler
	router *router.Router
	lease  *lease.Lease // nil without floors
}

func (s *sluice) allow(ctx context.Context, key string) (bool, error) {
	d, err := s.decide(ctx, key)
	return d.Allowed, err
}

func (s *sluice) decide(ctx context.Context, key string) (throttler.Decision, error) {
	d, err := s.Allow(ctx, key)
	if err == nil && d.Source == throttler.Fallback {
		err = d.Cause
	}
	return d, err
}

// setup is how a process uses Sluice.
type setup struct {
	groups    []router.Group
	epoch     uint64 // of the topology; 0 for one that never changes
	policy    limit.Policy
	failure   throttler.FailurePolicy
	processes int
	floors    bool          // a local view, without leases
	lease     *lease.Config // more than that
	router    router.Config
	throttler func(*throttler.Config) // changes what is not named here
	wrap      func(backend.Backend) backend.Backend
}

// newSluice opens what one process has, and closes it with the test.
func newSluice(t testing.TB, s setup) *sluice {
	t.Helper()
	if s.router.Heartbeat == 0 {
		s.router.Heartbeat = 200 * time.Millisecond
	}
	if s.router.OpenFor == 0 {
		s.router.OpenFor = 200 * time.Millisecond
	}
	s.router.AllowedAddresses = []string{"*"} // containers have addresses of any kind
	r, err := router.Open(router.Topology{Epoch: s.epoch, Groups: s.groups}, s.router)
	if err != nil {
		t.Fatal(err)
	}
	made := &sluice{router: r}
	var counts backend.Backend = r
	if s.floors {
		s.lease = &lease.Config{Batch: -1}
	}
	if s.lease != nil {
		if made.lease, err = lease.New(r, *s.lease); err != nil {
			t.Fatal(err)
		}
		counts = made.lease
	}
	t.Cleanup(func() { _ = counts.Close() })
	if s.wrap != nil {
		counts = s.wrap(counts)
	}
	cfg := throttler.Config{
		Backend: counts, Policy: s.policy, Failure: s.failure, Processes: s.processes,
		Logger: slog.New(slog.DiscardHandler),
	}
	if s.throttler != nil {
		s.throttler(&cfg)
	}
	if made.Throttler, err = throttler.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = made.Throttler.Close() })
	return made
}

// patient is for tests in which a server is up or down, but not slow: there a busy machine must not look like an outage.
var patient = redisbackend.Config{Timeout: 6 * deadline}

// ours makes a contender of n processes that use Sluice.
func ours(t testing.TB, n int, s setup) *contender {
	t.Helper()
	c := &contender{name: "Sluice"}
	for range n {
		c.processes = append(c.processes, newSluice(t, s))
	}
	return c
}

// sluiceOf is what a process of ours uses.
func (c *contender) sluiceOf(process int) *sluice { return c.processes[process].(*sluice) }

// rate is redis_rate, as its README shows it: clients have go-redis's defaults.
type rate struct {
	*redis_rate.Limiter
	limit redis_rate.Limit
}

func (r rate) allow(ctx context.Context, key string) (bool, error) {
	result, err := r.Limiter.Allow(ctx, key, r.limit)
	return err == nil && result.Allowed > 0, err
}

// redisRate makes a contender of n processes that use redis_rate on one server.
func redisRate(t testing.TB, n int, addr string, l limit.Limit) *contender {
	c := &contender{name: "redis_rate"}
	for range n {
		client := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = client.Close() })
		c.processes = append(c.processes, rate{redis_rate.NewLimiter(client), rateLimit(l)})
	}
	return c
}

// rateRing makes a contender of n processes that use redis_rate on a Ring, whose shards are named as our groups.
func rateRing(t testing.TB, n int, shards map[string]string, l limit.Limit) *contender {
	c := &contender{name: "go-redis Ring"}
	for range n {
		client := redis.NewRing(&redis.RingOptions{Addrs: shards})
		t.Cleanup(func() { _ = client.Close() })
		c.processes = append(c.processes, rate{redis_rate.NewLimiter(client), rateLimit(l)})
	}
	return c
}

func rateLimit(l limit.Limit) redis_rate.Limit {
	return redis_rate.Limit{Rate: int(l.Max), Burst: int(l.Max), Period: l.Window}
}

// counted is what the server at addr holds of a key, by the contender's own account. It is at most Max.
func (c *contender) counted(t *testing.T, addr, key string, l limit.Limit) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if c.name == "Sluice" {
		b, err := redisbackend.Open(&redis.Options{Addr: addr}, redisbackend.Config{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		policy := one(l)
		r, err := b.Peek(ctx, backend.Request{Key: key, Policy: &policy, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		return l.Max - r.Binding().Remaining
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	r, err := redis_rate.NewLimiter(client).AllowN(ctx, key, rateLimit(l), 0)
	if err != nil {
		t.Fatal(err)
	}
	return l.Max - int64(r.Remaining)
}

// one is the policy of one limit that all tests use.
func one(l limit.Limit) limit.Policy { return limit.Policy{Name: "api", Limits: []limit.Limit{l}} }

// storedName is the name under which a server holds our state of a key.
func storedName(key string) string { return "sl:api:" + key }

// kind is what our error means, 0 for none of ours.
func kind(err error) backend.Kind {
	var failed *backend.Error
	if errors.As(err, &failed) {
		return failed.Kind
	}
	return 0
}

// settled is counted once nothing more is on its way to the server.
func (c *contender) settled(t *testing.T, addr, key string, l limit.Limit) int64 {
	t.Helper()
	last, same := int64(-1), 0
	await(t, "counts stand still", func() bool {
		now := c.counted(t, addr, key, l)
		if same++; now != last {
			last, same = now, 0
		}
		return same == 20
	})
	return last
}

// shardKey returns a key that a Ring has at the server, and what it has admitted of it.
func (c *contender) shardKey(t *testing.T, s *server) string {
	t.Helper()
	for i := range 1000 {
		key := fmt.Sprintf("shard:%d", i)
		if ok, err := c.call(0, key); err != nil || !ok {
			t.Fatalf("%s: %v, %v", c.name, ok, err)
		}
		if s.client.Exists(t.Context(), "rate:"+key).Val() == 1 {
			c.calls.Store(1)
			c.admitted.Store(1)
			return key
		}
	}
	t.Fatal("no key at the server")
	return ""
}

// ownedBy returns the n-th key that a group of a router owns.
func ownedBy(r *router.Router, group string, n int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("user:%d", i); r.Owner(key) == group {
			if n == 0 {
				return key
			}
			n--
		}
	}
}
