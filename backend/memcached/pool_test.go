//go:build unix

package memcached_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
)

// TestMemcachedFrozenBesideOthers: while one of three servers stands still and more callers wait for it than may call at
// once, keys of the others are decided as before (promise P15).
func TestMemcachedFrozenBesideOthers(t *testing.T) {
	t.Parallel()
	const maxCalls, waiting, callers, takes = 16, 64, 8, 100
	servers := make([]*testserver.Server, 3)
	addrs := make([]string, len(servers))
	for i := range servers {
		servers[i] = testserver.Memcached(t)
		addrs[i] = servers[i].Addr
	}
	b := backendtesting.OpenMemcached(t, memcached.Config{Timeout: 2 * time.Second, MaxCalls: maxCalls}, addrs...)
	var frozen, healthy []string
	for i := 0; len(frozen) < waiting || len(healthy) < callers; i++ {
		key := strconv.Itoa(i)
		backendtesting.MustTake(t, b, backendtesting.Request(key))
		if backendtesting.MemcachedUsed(t, addrs[0], key) > 0 {
			frozen = append(frozen, key)
		} else {
			healthy = append(healthy, key)
		}
	}
	servers[0].Pause()
	defer servers[0].Resume()
	ctx, stop := context.WithCancel(t.Context())
	var waits, works sync.WaitGroup
	var timedOut, failed atomic.Int64
	for _, key := range frozen[:waiting] {
		waits.Go(func() {
			for ctx.Err() == nil {
				if _, err := b.Take(ctx, backendtesting.Request(key)); err != nil && ctx.Err() == nil {
					timedOut.Add(1)
				}
			}
		})
	}
	backendtesting.Await(t, "callers that wait for the frozen server", func() bool { return timedOut.Load() > 0 })
	for _, key := range healthy[:callers] {
		works.Go(func() {
			for range takes {
				if _, err := b.Take(t.Context(), backendtesting.Request(key)); err != nil {
					failed.Add(1)
					return
				}
			}
		})
	}
	works.Wait()
	stop()
	waits.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d callers of servers that are well had a failure beside a frozen one", n, callers)
	}
}
