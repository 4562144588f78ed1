package backend_test

import (
	"context"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
)

// longKey is a key of 256 KiB that differs from others in its tail.
func longKey(n int) string {
	b := make([]byte, 256<<10)
	for i := range b {
		b[i] = 'k'
	}
	binary.BigEndian.PutUint64(b[len(b)-8:], uint64(n))
	return string(b)
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestLongKeysTakeNoRoom: what remembers keys is bounded in bytes whatever clients send as a key, and tells long keys apart.
// It runs alone, for it looks at the memory of the whole process.
func TestLongKeysTakeNoRoom(t *testing.T) {
	const keys, most = 96, 6 << 20 // bytes; the keys have 24 MiB
	mem := func(t *testing.T) backend.Backend { return backendtesting.NewMemory(t, memory.Config{MaxKeys: 4096}) }
	blocked := make(chan struct{})
	for name, open := range map[string]func(t *testing.T) backend.Backend{
		"Memory": mem,
		"Lease": func(t *testing.T) backend.Backend {
			return backendtesting.NewLease(t, mem(t), lease.Config{Batch: 100})
		},
		"Lease, local view": func(t *testing.T) backend.Backend {
			return backendtesting.NewLease(t, mem(t), lease.Config{Batch: -1})
		},
		"Dual, shadow": func(t *testing.T) backend.Backend {
			yes := func(string) bool { return true }
			d, err := dual.New(dual.Config{Old: stuck{mem(t), blocked}, New: mem(t), Decide: backendtesting.Constant(true), Shadow: yes})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, p := open(t), backendtesting.Hour(1)
			before := heapInUse()
			for n := range keys {
				for i := range 2 {
					r, err := b.Take(t.Context(), backend.Request{Key: longKey(n), Policy: p, Cost: 1})
					if err != nil || r.Allowed != (i < 1) {
						t.Fatalf("take %d of key %d, of which one is admitted: %t, %v", i, n, r.Allowed, err)
					}
				}
			}
			if grown := heapInUse() - before; grown > most {
				t.Errorf("%d keys of 256 KiB take %d KiB", keys, grown>>10)
			}
			runtime.KeepAlive(b)
		})
	}
	close(blocked)
}

// stuck is a backend whose takes wait.
type stuck struct {
	backend.Backend
	until chan struct{}
}

func (s stuck) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	select {
	case <-s.until:
	case <-ctx.Done():
		return backend.Result{}, ctx.Err()
	}
	return s.Backend.Take(ctx, req)
}

// TestLongKeysAreTheirOwn: a long key is neither another long key, nor what stands for it, in a table or by a server; and a
// Lease gives back what it holds of one.
func TestLongKeysAreTheirOwn(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	head := strings.Repeat("k", 300)
	keys := []string{head, head + "a", head + "b", strings.Repeat("k", 200), strings.Repeat("k", 201), "a" + head}
	for name, inner := range map[string]backend.Backend{
		"Memory": backendtesting.NewMemory(t, memory.Config{}),
		"Redis":  backendtesting.OpenRedis(t, server.Addr, redisbackend.Config{Prefix: backendtesting.NewPrefix()}),
	} {
		ls := backendtesting.NewLease(t, inner, lease.Config{Batch: 10, Steady: true, Processes: 1})
		p := &limit.Policy{Limits: []limit.Limit{limit.PerHour(100).Staggered()}}
		for i, key := range keys {
			for range 3 + i {
				if r, err := ls.Take(t.Context(), backend.Request{Key: key, Policy: p, Cost: 1}); err != nil || !r.Allowed {
					t.Fatalf("allowed %t, %v", r.Allowed, err)
				}
			}
		}
		if err := ls.Reset(t.Context(), backend.Request{Key: keys[0], Policy: p}); err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			r, err := ls.Peek(t.Context(), backend.Request{Key: key, Policy: p, Cost: 1})
			want := int64(100 - 3 - i)
			if i == 0 {
				want = 100
			}
			if len(key) <= 200 { // leased: up to a batch is withheld
				want = max(min(want, r.Binding().Remaining), want-10)
			}
			if err != nil || r.Binding().Remaining != want {
				t.Errorf("%s: key %d has %d left, want %d; %v", name, i, r.Binding().Remaining, want, err)
			}
		}
	}
}
