//go:build unix

package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/throttlertest"
)

// What follows needs redis-server and memcached.

func openRedis(t testing.TB, addr string, cfg redisbackend.Config) *redisbackend.Redis {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second // a loaded machine is no outage
	}
	b, err := redisbackend.Open(&redis.Options{Addr: addr, PoolSize: 64}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// go-redis writes to stderr when a pool can't dial, which is what these tests are about.
func init() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func poll(t testing.TB, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Fatal("waited for 10 s")
		}
	}
}

func TestBadInputSendsNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := openRedis(t, server.Addr, redisbackend.Config{})
	server.ResetStats(t)
	refuse(t, b)
	stats := server.Stats(t)
	delete(stats, "info") // the test's own
	delete(stats, "config|resetstat")
	if len(stats) != 0 {
		t.Errorf("commands were sent: %v", stats)
	}
}

// 64 callers in two processes' worth of Throttlers meet at one limit: promise P1.
func TestExactlyMaxAdmitted(t *testing.T) {
	t.Parallel()
	const quota, callers, calls = 1000, 64, 20
	const window = 1000 * 24 * time.Hour // nothing comes back during the test
	server := testserver.Redis(t)
	for name, policy := range map[string]limit.Policy{
		"fixed":     throttlertesting.One(limit.Fixed(quota, window)),
		"aligned":   throttlertesting.One(limit.Fixed(quota, window).Aligned()),
		"staggered": throttlertesting.One(limit.Fixed(quota, window).Staggered()),
		"sliding":   throttlertesting.One(limit.Sliding(quota, window, window/100)),
		"bucket":    throttlertesting.One(limit.TokenBucket(1, 24*time.Hour, quota)),
		"together": {Name: "test", Limits: []limit.Limit{
			limit.Fixed(quota+1, window), limit.Sliding(quota, window, window/10), limit.TokenBucket(1, 24*time.Hour, 2*quota),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var throttlers [2]*throttler.Throttler
			for i := range throttlers {
				throttlers[i] = throttlertesting.New(t, throttler.Config{
					Backend: openRedis(t, server.Addr, redisbackend.Config{}), Policy: policy, Failure: throttler.FailError,
				})
			}
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for range calls {
						d, err := throttlers[i%2].Allow(t.Context(), name)
						if err != nil {
							t.Error(err)
							return
						}
						if d.Source != throttler.Primary || d.Guarantee != throttler.Exact || d.Cause != nil {
							t.Errorf("%+v, want an exact decision of the primary", d)
						}
						if d.Allowed {
							admitted.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if n := admitted.Load(); n != quota {
				t.Errorf("%d admitted, want %d", n, quota)
			}
			if got := remaining(t, throttlers[0], name); got != 0 {
				t.Errorf("%d left, want 0", got)
			}
		})
	}
}

// The four failure policies with a server that is dead, and one that is frozen.
func TestFailurePoliciesOnAServer(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	for _, frozen := range []bool{false, true} {
		for _, test := range failurePolicies {
			name := "dead, "
			if frozen {
				name = "frozen, "
			}
			t.Run(name+test.cfg.Failure.String(), func(t *testing.T) {
				t.Parallel()
				server := testserver.Redis(t)
				patient := throttlertesting.New(t, throttler.Config{
					Backend: openRedis(t, server.Addr, redisbackend.Config{}), Policy: throttlertesting.One(limit.PerHour(10)),
				})
				throttlertesting.Allow(t, patient, "first")

				cfg := test.cfg
				cfg.Backend = openRedis(t, server.Addr, redisbackend.Config{Timeout: timeout})
				cfg.Policy = throttlertesting.One(limit.PerHour(10))
				th := throttlertesting.New(t, cfg)
				poll(t, func() bool { // it has connections and the server's time
					_, err := th.Peek(t.Context(), "first")
					d, _ := th.Allow(t.Context(), "warm")
					return err == nil && d.Source == throttler.Primary
				})
				if frozen {
					server.Pause()
					defer server.Resume()
				} else {
					server.Kill()
					if _, err := th.Peek(t.Context(), "first"); err == nil { // finds the connection broken
						t.Error("Peek found a server that is dead")
					}
				}

				const calls = 12
				mayHaveCharged := frozen // the call that finds the connection frozen; later ones can't set one up
				for _, key := range []string{"first", "second"} {
					admitted := 0
					for range calls {
						start := time.Now()
						d, err := th.Allow(t.Context(), key)
						if took := time.Since(start); took > timeout+5*time.Second { // five for a loaded machine
							t.Errorf("a call took %v, want %v", took, timeout)
						}
						if outcome(t, cfg.Failure, d, err, mayHaveCharged) {
							admitted++
						}
						mayHaveCharged = false
					}
					if want := map[string]int{"first": test.first, "second": test.second}[key]; admitted != want {
						t.Errorf("%d of %q admitted, want %d", admitted, key, want)
					}
				}
				if !frozen {
					return
				}
				server.Resume() // what was sent to it runs now, once
				if used := 10 - remaining(t, patient, "first"); used < 1 || used > 1+calls {
					t.Errorf("%d counted of %d calls", used, 1+calls)
				}
			})
		}
	}
}

// Of every third take the reply is lost: each counts once, and the decision says that it is not known.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	const calls = 60
	for name, lose := range map[string]testserver.Action{
		"connection closed": testserver.CloseAfter, "reply cut off": testserver.Truncate,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			proxy := testserver.NewProxy(t, server.Addr)
			th := throttlertesting.New(t, throttler.Config{
				Backend: openRedis(t, proxy.Addr, redisbackend.Config{}), Policy: throttlertesting.One(limit.PerHour(1000)),
			})
			throttlertesting.Allow(t, th, "other") // the server knows the script
			var takes, lost atomic.Int64
			proxy.SetFault(func(args []string) testserver.Action {
				if args[0] == "EVALSHA" && takes.Add(1)%3 == 0 {
					lost.Add(1)
					return lose
				}
				return testserver.Pass
			})
			unsure := int64(0)
			for range calls {
				d := throttlertesting.Allow(t, th, "k")
				if d.Source == throttler.Primary {
					if d.Guarantee != throttler.Exact || d.Cause != nil {
						t.Errorf("%+v, want it exact", d)
					}
					continue
				}
				unsure++
				outcome(t, throttler.FailLocal, d, nil, true)
			}
			proxy.SetFault(nil)
			if takes.Load() != calls || unsure != lost.Load() || unsure != calls/3 {
				t.Errorf("%d takes sent for %d calls, %d replies lost, %d decisions unsure",
					takes.Load(), calls, lost.Load(), unsure)
			}
			if used := 1000 - remaining(t, th, "k"); used != calls {
				t.Errorf("%d counted of %d calls, want each once", used, calls)
			}
		})
	}
}

// Under a partition that comes and goes the failure policy admits its share once, not once for each outage.
func TestFlappingOnAServer(t *testing.T) {
	t.Parallel()
	const quota, share = 30, 8
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	th := throttlertesting.New(t, throttler.Config{
		Backend: openRedis(t, proxy.Addr, redisbackend.Config{}), Policy: throttlertesting.One(limit.PerHour(quota)), Processes: 4,
	})
	bySource := map[throttler.Source]int{}
	for range 6 { // few enough that the client's pool doesn't stop dialling for a second
		for _, turn := range []func(){proxy.Cut, proxy.Heal} {
			turn()
			for range 8 {
				if d := throttlertesting.Allow(t, th, "k"); d.Allowed {
					bySource[d.Source]++
				}
			}
		}
	}
	if bySource[throttler.Primary] > quota || bySource[throttler.Primary] < quota/2 || bySource[throttler.Fallback] != share {
		t.Errorf("admitted %v, want at most %d by the primary and %d without", bySource, quota, share)
	}
	if left := remaining(t, th, "k"); left > int64(quota-bySource[throttler.Primary]) {
		t.Errorf("%d left though the primary admitted %d of %d", left, bySource[throttler.Primary], quota)
	}
}

// A server that answers and refuses is not down. That is logged as an error, once, and not by the key.
func TestMisconfiguredServerIsLoud(t *testing.T) {
	t.Parallel()
	const key = "alice@example.com"
	for name, mend := range map[string]func(*testing.T, *testserver.Server){
		"password": func(t *testing.T, s *testserver.Server) {
			if err := s.Client().ConfigSet(t.Context(), "requirepass", "secret").Err(); err != nil {
				t.Fatal(err)
			}
		},
		"permission": func(t *testing.T, s *testserver.Server) {
			if err := s.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-evalsha").Err(); err != nil {
				t.Fatal(err)
			}
		},
		"permission on keys": func(t *testing.T, s *testserver.Server) {
			if err := s.Client().Do(t.Context(), "ACL", "SETUSER", "default", "resetkeys", "~else:*").Err(); err != nil {
				t.Fatal(err)
			}
		},
		"foreign value": func(t *testing.T, s *testserver.Server) {
			if err := s.Client().LPush(t.Context(), "sl:test:"+key, "x").Err(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			book := &throttlertesting.LogBook{}
			th := throttlertesting.New(t, throttler.Config{
				Backend: openRedis(t, server.Addr, redisbackend.Config{}), Policy: throttlertesting.One(limit.PerHour(10)), Processes: 5,
				Logger: book.Logger(),
			})
			mend(t, server)
			admitted := 0
			for range 5 {
				d := throttlertesting.Allow(t, th, key)
				var cause *backend.Error
				if !errors.As(d.Cause, &cause) || cause.Kind != backend.Misconfigured || cause.MayHaveCharged {
					t.Errorf("cause = %v, want Misconfigured and nothing charged", d.Cause)
				}
				if d.Allowed {
					admitted++
				}
			}
			if admitted != 2 {
				t.Errorf("%d admitted, want the share of 2", admitted)
			}
			if got := book.Levels(); got[slog.LevelError] != 1 || len(got) != 1 {
				t.Errorf("logged %v, want one error", got)
			}
			if text := book.Text(); strings.Contains(text, key) {
				t.Errorf("the log names the key: %s", text)
			}
		})
	}
}

// A caller's own deadline is an error, whoever notices it first; the failure policy doesn't decide.
func TestCallersDeadlineOnAFrozenServer(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	b := openRedis(t, server.Addr, redisbackend.Config{Timeout: time.Minute})
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: throttlertesting.One(limit.PerHour(1000))})
	throttlertesting.Allow(t, th, "k")
	server.Pause()
	defer server.Resume()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			want := context.DeadlineExceeded
			if i%4 == 0 {
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(10*time.Millisecond, cancel)
				want = context.Canceled
			}
			defer cancel()
			start := time.Now()
			d, err := th.Allow(ctx, "k")
			if !errors.Is(err, want) || d.Allowed {
				t.Errorf("%+v, %v, want %v", d, err, want)
			}
			if took := time.Since(start); took > 10*time.Second { // the backend's own timeout is a minute
				t.Errorf("returned after %v", took)
			}
		})
	}
	wg.Wait()
}

// Usage on the primary, and by a plain read on its replica.
func TestUsageFromAReplica(t *testing.T) {
	t.Parallel()
	now := throttlertest.NewClock()
	primary := testserver.Redis(t)
	replica := testserver.Replica(t, primary)
	cfg := redisbackend.Config{Now: now.Now}
	th := throttlertesting.New(t, throttler.Config{Backend: openRedis(t, primary.Addr, cfg), Policy: recentPolicy})
	reader := throttlertesting.New(t, throttler.Config{Backend: openRedis(t, replica.Addr, cfg), Policy: recentPolicy})

	want := spendRecent(t, th, now)
	checkUsage(t, th, want)
	replica.AwaitSync(primary)
	replica.ResetStats(t)
	checkUsage(t, reader, want)
	if got := remaining(t, reader, "k"); got != 1000-89 {
		t.Errorf("%d left by the replica, want %d", got, 1000-89)
	}
	if stats := replica.Stats(t); stats["evalsha"]+stats["eval"] != 0 || stats["get"] == 0 {
		t.Errorf("commands on the replica: %v, want plain reads", stats)
	}

	if err := th.Reset(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	replica.AwaitSync(primary)
	nothing := map[time.Duration]int64{20 * time.Second: 0, 5 * time.Minute: 0}
	checkUsage(t, th, nothing)
	checkUsage(t, reader, nothing)
}

// A denial is answered from the reply that denied it: one script call, one round trip.
func TestOneCallForEachDecision(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	th := throttlertesting.New(t, throttler.Config{
		Backend: openRedis(t, server.Addr, redisbackend.Config{}), Policy: throttlertesting.One(limit.PerHour(2)),
	})
	throttlertesting.Allow(t, th, "other") // the script is known and so is the time
	server.ResetStats(t)
	var last throttler.Decision
	for range 5 {
		last = throttlertesting.Allow(t, th, "k")
	}
	if last.Allowed || last.Remaining != 0 || last.RetryAfter <= 0 || last.RetryAfter > time.Hour ||
		last.ResetAt.Sub(last.At) != last.RetryAfter {
		t.Errorf("%+v, want a denial until the reset", last)
	}
	if stats := server.Stats(t); stats["evalsha"] != 5 || stats["eval"] != 0 {
		t.Errorf("commands: %v, want 5 evalsha", stats)
	}
}

func TestReserveOnAServer(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	th := throttlertesting.New(t, throttler.Config{
		Backend: openRedis(t, server.Addr, redisbackend.Config{}),
		Policy: limit.Policy{Name: "test", Limits: []limit.Limit{
			limit.PerHour(10), limit.Sliding(10, 24*time.Hour, time.Hour), limit.TokenBucket(1, time.Hour, 10),
		}},
	})
	for _, test := range []struct{ actual, left int64 }{{4, 6}, {1, 5}, {0, 5}} {
		if err := reserve(t, th, 4).Settle(t.Context(), test.actual); err != nil {
			t.Fatal(err)
		}
		d, err := th.Peek(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		for s := range d.All() {
			if s.Remaining != test.left {
				t.Errorf("%d left of %v after settling at %d, want %d", s.Remaining, s.Limit, test.actual, test.left)
			}
		}
	}
	if err := th.Ping(t.Context()); err != nil {
		t.Errorf("Ping = %v", err)
	}
	server.Kill()
	if err := th.Ping(t.Context()); err == nil {
		t.Error("Ping found a server that is dead")
	}
}

// Whoever makes many calls at once finds Memcached contended, and gets no more than Max all the same: promise P1.
func TestContentionOnMemcached(t *testing.T) {
	t.Parallel()
	const quota, callers, calls = 100, 32, 10
	server := testserver.Memcached(t)
	for _, policy := range failurePolicies {
		if policy.cfg.Failure == throttler.FailError {
			continue // its errors admit nothing
		}
		t.Run(policy.cfg.Failure.String(), func(t *testing.T) {
			b, err := memcached.New([]string{server.Addr}, memcached.Config{
				Tries: 1, Timeout: time.Minute, // a loaded machine is no outage
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			cfg := policy.cfg
			cfg.Backend, cfg.Policy = b, throttlertesting.One(limit.Fixed(quota, 1000*time.Hour))
			th := throttlertesting.New(t, cfg)
			var crowded atomic.Int64
			for round := 0; crowded.Load() == 0; round++ { // calls may happen to come one after the other
				if round == 200 {
					t.Fatal("no call met contention")
				}
				key := fmt.Sprintf("%s %d", cfg.Failure, round)
				var admitted atomic.Int64
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for range calls {
							d, err := th.Allow(t.Context(), key)
							switch {
							case err != nil:
								t.Error(err)
							case d.Source == throttler.Unknown:
								crowded.Add(1)
								wantContended(t, d, 100*time.Millisecond)
							case d.Source != throttler.Primary || d.Guarantee != throttler.Exact:
								t.Errorf("%+v, want an exact decision of the primary", d)
							case d.Allowed:
								admitted.Add(1)
							}
						}
					})
				}
				wg.Wait()
				left := remaining(t, th, key)
				if n := admitted.Load(); n > quota || left != quota-n {
					t.Errorf("%d admitted of %d, %d left", n, quota, left)
				}
			}
		})
	}
}
