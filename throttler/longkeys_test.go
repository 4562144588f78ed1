package throttler_test

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"strconv"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
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
	for name, watch := range map[string]func(*testing.T, *throttler.Config) *insight.Shadow{
		"fallback": func(_ *testing.T, cfg *throttler.Config) *insight.Shadow {
			cfg.Backend, cfg.FallbackKeys = failing{throttlertesting.NewMemory(t, nil)}, 4096
			return nil
		},
		"near limit": func(t *testing.T, cfg *throttler.Config) *insight.Shadow {
			cfg.Observer = newNearLimit(t, insight.NearLimitConfig{Share: 1, Notify: func(insight.NearLimitEvent) { <-blocked }})
			t.Cleanup(func() { close(blocked) }) // before Close, which waits for it
			return nil
		},
		"shadow": func(t *testing.T, cfg *throttler.Config) *insight.Shadow {
			s := newShadow(t, insight.ShadowConfig{Backend: endless{throttlertesting.NewMemory(t, nil)}, Policy: throttlertesting.One(limit.PerHour(1))})
			cfg.Observer = s
			return s
		},
		"statistics": func(t *testing.T, cfg *throttler.Config) *insight.Shadow {
			cfg.Observer = newRecorder(t, insight.Config{WatchedKeys: 1000})
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := throttler.Config{Policy: throttlertesting.One(limit.PerHour(1))}
			shadow := watch(t, &cfg)
			th := throttlertesting.New(t, cfg)
			before := heapInUse()
			for n := range keys {
				for i := range 2 {
					if d := throttlertesting.Allow(t, th, longKey(n)); d.Allowed != (i < 1) {
						t.Fatalf("take %d of key %d, of which one is admitted: %t", i, n, d.Allowed)
					}
				}
			}
			if grown := heapInUse() - before; grown > most {
				t.Errorf("%d keys of 256 KiB take %d KiB", keys, grown>>10)
			}
			if shadow != nil && shadow.Counts().Dropped == 0 {
				t.Error("no shadow was dropped")
			}
			runtime.KeepAlive(th)
		})
	}
}

// failing is a backend that is down.
type failing struct{ backend.Backend }

func (failing) Take(context.Context, backend.Request) (backend.Result, error) {
	return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Unavailable, Err: errors.New("down")}
}

// A fallback that is full forgets keys.
func TestFallbackKeys(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Backend: failing{throttlertesting.NewMemory(t, nil)}, Policy: throttlertesting.One(limit.PerHour(1)), FallbackKeys: 16})
	again := 0
	for _, first := range []bool{true, false} {
		for n := range 1000 {
			if d := throttlertesting.Allow(t, th, strconv.Itoa(n)); d.Allowed && !first {
				again++
			}
		}
	}
	if again < 900 {
		t.Errorf("a fallback of 16 keys knew %d of 1000", 1000-again)
	}
}
