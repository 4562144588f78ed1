package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit"
)

// TestServersForgotten: of addresses that a cluster no longer has, nothing is kept once the longest window is over, and they
// say nothing of keys that others have.
func TestServersForgotten(t *testing.T) {
	var last atomic.Int64
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1, ContextTimeoutEnabled: true, ClusterStateReloadInterval: time.Nanosecond,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			address := fmt.Sprintf("127.0.0.1:%d", last.Add(1))
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: address}}}}, nil
		},
	})
	defer client.Close()
	b, err := New(client, Config{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	req := backend.Request{Key: "k", Policy: &limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerMinute(1)}}}
	seen := make(map[*continuity]bool)
	for len(seen) < 50 {
		node, err := client.MasterForKey(t.Context(), b.name(&req))
		if err != nil {
			t.Fatal(err)
		}
		server := b.servers.of(node, b.guard.Deadline().Add(time.Duration(len(seen))*2*redispipe.ShardIdle))
		if seen[server] {
			runtime.Gosched() // the client looks for the slots in the background
			continue
		}
		if len(seen) == 0 {
			server.exactUntil.Store(0) // it evicts
		}
		b.servers.decided(req.Policy)
		seen[server] = true
	}
	b.servers.mu.Lock()
	if len(b.servers.all) > 3 {
		t.Errorf("%d servers are kept, of 50 that were there two minutes each", len(b.servers.all))
	}
	b.servers.mu.Unlock()
	if err := b.Doubt(req); err != nil {
		t.Errorf("a server that has gone says of another one's key: %v", err)
	}
}

// TestShardsUnknown: without the slots nothing is sent, and the error says so.
func TestShardsUnknown(t *testing.T) {
	for name, test := range map[string]struct {
		slots   func(context.Context) ([]redis.ClusterSlot, error)
		timeout time.Duration
		kind    backend.Kind
	}{
		"none": {func(context.Context) ([]redis.ClusterSlot, error) { return nil, errors.New("none") }, time.Minute, backend.Unavailable},
		"hangs": {func(ctx context.Context) ([]redis.ClusterSlot, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, 50 * time.Millisecond, backend.Unavailable},
		"refused": {func(context.Context) ([]redis.ClusterSlot, error) {
			return nil, redispipe.ReplyError("NOPERM this user has no permissions to run the 'cluster|slots' command")
		}, time.Minute, backend.Misconfigured},
	} {
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1, ContextTimeoutEnabled: true, ClusterSlots: test.slots,
		})
		b, err := New(client, Config{Timeout: test.timeout, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			_, err = b.Take(ctx, backend.Request{Key: "k", Cost: 1, Policy: &limit.Policy{Limits: []limit.Limit{limit.PerHour(10)}}})
			failed, ok := errors.AsType[*backend.Error](err)
			if !ok || failed.Kind != test.kind || failed.MayHaveCharged {
				t.Errorf("%s: %v", name, err)
			}
		}
		_ = b.Close()
		_ = client.Close()
	}
}
