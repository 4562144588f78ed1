package lease_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestReturnsThatWereNotSentAreKept: a server can't be reached while leases on a day's quota end. What was not sent goes back
// once the server can be reached.
func TestReturnsThatWereNotSentAreKept(t *testing.T) {
	t.Parallel()
	const batch, admitted = 250, 1 + 4
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	var refused atomic.Int64
	inner := backendtesting.OpenRedisWith(t, &redis.Options{
		Addr: proxy.Addr,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				refused.Add(1)
			}
			return conn, err
		},
	}, redisbackend.Config{Prefix: "away:", Timeout: 5 * time.Second})
	direct := backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Prefix: "away:"})
	ls := backendtesting.NewLease(t, inner, lease.Config{Batch: batch, Steady: true, Processes: 1, Life: 3 * time.Second})
	p := &limit.Policy{Limits: []limit.Limit{limit.PerDay(1000)}}
	keys := []string{"a", "b", "c", "d"}
	for _, key := range keys {
		for range admitted {
			if r, err := ls.Take(t.Context(), backend.Request{Key: key, Policy: p, Cost: 1}); err != nil || !r.Allowed {
				t.Fatalf("allowed %t, %v", r.Allowed, err)
			}
		}
	}
	proxy.Cut()
	held := ls.Stats().Stranded
	backendtesting.Await(t, "the leases end, and returns fail, each more than once", func() bool { return refused.Load() >= int64(3*len(keys)) })
	if s := ls.Stats(); s.Lost != 0 || s.Stranded != held {
		t.Errorf("while the server is away: %+v, want %d stranded and none lost", s, held)
	}
	proxy.Heal()
	backendtesting.Await(t, "the returns", func() bool { return ls.Stats().Stranded == 0 })
	var used int64
	for _, key := range keys {
		r, err := direct.Peek(t.Context(), backend.Request{Key: key, Policy: p, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		used += 1000 - r.Binding().Remaining
	}
	if s := ls.Stats(); used != int64(len(keys)*admitted) || s.Lost != 0 || s.Returned != held || held < batch {
		t.Errorf("%d used after %d admissions: %+v, want %d returned", used, len(keys)*admitted, s, held)
	}
}

// unsteady is a Memory whose refunds fail as it is told.
type unsteady struct {
	*memory.Memory
	fail  func(calls int) error
	calls int
}

func (u *unsteady) Refund(ctx context.Context, req backend.Request, r state.Receipt, n int64) error {
	u.calls++
	if err := u.fail(u.calls); err != nil {
		return err
	}
	return u.Memory.Refund(ctx, req, r, n)
}

// TestReturnsThatFail: what may have been carried out is not sent again; what was not is, as long as it counts, and less often
// the longer it fails.
func TestReturnsThatFail(t *testing.T) {
	away := func(may bool) error {
		return &backend.Error{Op: "refund", Kind: backend.Unavailable, MayHaveCharged: may, Err: errLost}
	}
	for _, test := range []struct {
		name                string
		fail                func(calls int) error
		after               time.Duration
		closes              bool
		returned, lost      int64
		fewest, most, still int64 // calls, and cost that is stranded
	}{
		{"unknown outcome", func(int) error { return away(true) }, 30 * time.Minute, false, 0, 99, 1, 1, 0},
		{"not sent, once", func(n int) error {
			if n > 1 {
				return nil
			}
			return away(false)
		}, 30 * time.Minute, false, 99, 0, 2, 2, 0},
		{"not sent, for long", func(int) error { return away(false) }, 30 * time.Minute, false, 0, 0, 20, 200, 99},
		{"not sent, then over", func(int) error { return away(false) }, 2 * time.Hour, false, 0, 99, 20, 400, 0},
		{"not sent, at Close", func(int) error { return away(false) }, time.Minute, true, 0, 99, 2, 20, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, p := &unsteady{Memory: backendtesting.NewMemory(t, memory.Config{}), fail: test.fail}, backendtesting.Hour(100_000)
				ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 100, Steady: true})
				backendtesting.Warm(t, ls, p)
				backendtesting.Warm(t, ls, p)
				time.Sleep(test.after)
				if test.closes {
					if err := ls.Close(); err != nil {
						t.Error(err)
					}
				}
				synctest.Wait()
				s := ls.Stats()
				if s.Returned != test.returned || s.Lost != test.lost || s.Stranded != test.still {
					t.Errorf("%+v, want %d returned, %d lost, %d stranded", s, test.returned, test.lost, test.still)
				}
				if n := int64(inner.calls); n < test.fewest || n > test.most {
					t.Errorf("%d calls, want %d to %d", n, test.fewest, test.most)
				}
			})
		})
	}
}
