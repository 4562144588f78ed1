package throttler_test

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"strconv"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// longKey is a key of 256 KiB that differs from others in its tail.
func longKey(n int) string {
	b := make([]byte, 256<<10)
	binary.BigEndian.PutUint64(b[len(b)-8:], uint64(n)+1)
	return string(b)
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// endless is a backend whose takes wait for their context.
type endless struct{ backend.Backend }

func (endless) Take(ctx context.Context, _ backend.Request) (backend.Result, error) {
	<-ctx.Done()
	return backend.Result{}, ctx.Err()
}

// Whatever clients send as a key, what a Throttler remembers and queues is bounded in bytes. It runs alone, for it looks at the
// memory of the whole process.
func TestLongKeysTakeNoRoom(t *testing.T) {
	const keys, most = 96, 6 << 20 // bytes; the keys have 24 MiB
	blocked := make(chan struct{})
	for name, cfg := range map[string]throttler.Config{
		"fallback":   {Backend: failing{newMemory(t, nil)}, FallbackKeys: 4096},
		"near limit": {NearLimit: 1, OnNearLimit: func(throttler.NearLimitData) { <-blocked }},
		"shadow":     {Shadow: one(limit.PerHour(1)), ShadowBackend: endless{newMemory(t, nil)}},
		"statistics": {Stats: throttler.StatsConfig{WatchedKeys: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Policy = one(limit.PerHour(1))
			th := newThrottler(t, cfg)
			if cfg.OnNearLimit != nil {
				t.Cleanup(func() { close(blocked) }) // before Close, which waits for it
			}
			before := heapInUse()
			for n := range keys {
				for i := range 2 {
					if d := allow(t, th, longKey(n)); d.Allowed != (i < 1) {
						t.Fatalf("take %d of key %d, of which one is admitted: %t", i, n, d.Allowed)
					}
				}
			}
			if grown := heapInUse() - before; grown > most {
				t.Errorf("%d keys of 256 KiB take %d KiB", keys, grown>>10)
			}
			if name == "shadow" && th.ShadowStats().Dropped == 0 {
				t.Error("no shadow was dropped")
			}
			runtime.KeepAlive(th)
		})
	}
}

// failing is a backend that is away.
type failing struct{ backend.Backend }

func (failing) Take(context.Context, backend.Request) (backend.Result, error) {
	return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Unavailable, Err: errors.New("away")}
}

// A fallback that is full forgets keys.
func TestFallbackKeys(t *testing.T) {
	t.Parallel()
	th := newThrottler(t, throttler.Config{Backend: failing{newMemory(t, nil)}, Policy: one(limit.PerHour(1)), FallbackKeys: 16})
	again := 0
	for _, first := range []bool{true, false} {
		for n := range 1000 {
			if d := allow(t, th, strconv.Itoa(n)); d.Allowed && !first {
				again++
			}
		}
	}
	if again < 900 {
		t.Errorf("a fallback of 16 keys knew %d of 1000", 1000-again)
	}
}
