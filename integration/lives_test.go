//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// TestBucketLives lets a take of one process, which has read the clock and has a floor, wait on a slow lane until the bucket
// is full and another process has emptied it. The floor knows of refunds from before the bucket was full.
func TestBucketLives(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	proxy := testserver.NewProxy(t, s.addr)
	l := limit.TokenBucket(10, time.Second, 10)
	p := one(l)
	var clock atomic.Int64 // Unix microseconds, of both processes
	begin := time.Now().UnixMicro()
	open := func(addr string) *redisbackend.Redis {
		b, err := redisbackend.Open(&redis.Options{Addr: addr}, redisbackend.Config{
			Now: func() time.Time { return time.UnixMicro(clock.Load()) }, Timeout: 10 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	slow, fast := open(proxy.Addr), open(s.addr)
	admitted := int64(0)
	for round := range 5 {
		key := fmt.Sprintf("user:%d", round)
		req := backend.Request{Key: key, Policy: &p, Cost: 10}
		clock.Store(begin)
		for range 5 {
			r, err := slow.Take(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if err := slow.Refund(t.Context(), req, r.Receipt(), 10); err != nil {
				t.Fatal(err)
			}
		}
		known, err := slow.Load(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		late := req
		late.Floor = &known.State

		clock.Store(begin + 950_000)
		waits, goes, done := make(chan struct{}), make(chan struct{}), make(chan bool, 1)
		var first atomic.Bool
		proxy.SetFault(func(args []string) testserver.Action {
			if args[0] == "EVALSHA" && first.CompareAndSwap(false, true) {
				close(waits)
				<-goes
			}
			return testserver.Pass
		})
		go func() {
			r, err := slow.Take(context.WithoutCancel(t.Context()), late)
			if err != nil {
				t.Error(err)
			}
			done <- r.Allowed
		}()
		<-waits
		clock.Store(begin + 1_000_000) // full, whatever had been given back
		r, err := fast.Take(t.Context(), req)
		close(goes)
		if err != nil || !r.Allowed {
			t.Errorf("a full bucket denies: %v", err)
		}
		if <-done {
			admitted += 10
		}
		admitted += 10
		proxy.SetFault(nil)
	}
	const bound = 5 * 10 // of a burst, and half a token in 50 ms
	if admitted > bound {
		t.Errorf("of five keys %d were admitted within 50 ms, at most %d may be", admitted, bound)
	}
	report(t, "bucket-lives", result{sluice: figures{
		over: max(0, admitted-bound), note: fmt.Sprintf("%d admitted within 50 ms, of a burst of 10 for each of five keys", admitted),
	}})
}
