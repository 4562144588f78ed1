//go:build unix

package integration_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
)

// TestLongKeys asks for keys of 256 KiB that differ in the tail, while the server is there and while it is down. It runs alone,
// for it looks at the memory of the whole process.
func TestLongKeys(t *testing.T) {
	const keys, size, most = 200, 256 << 10, 10 << 20
	l := limit.PerDay(2)
	s := startRedis(t)
	groups, _ := groupsOf(s.addr)
	blocked := make(chan struct{})
	c := ours(t, 1, setup{
		groups: groups, policy: one(l), failure: throttler.FailLocal, processes: 1, lease: &lease.Config{MaxKeys: 4096},
		router: router.Config{Backend: patient},
		throttler: func(cfg *throttler.Config) {
			recorder, err := insight.New(insight.Config{WatchedKeys: 1000})
			if err != nil {
				t.Fatal(err)
			}
			shadow, err := insight.NewShadow(insight.ShadowConfig{Backend: cfg.Backend, Policy: one(limit.PerDay(1))})
			if err != nil {
				t.Fatal(err)
			}
			near, err := insight.NewNearLimit(insight.NearLimitConfig{Share: 1, Notify: func(insight.NearLimitEvent) { <-blocked }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = shadow.Close(), near.Close() })
			cfg.FallbackKeys, cfg.Observer = 4096, throttler.Observers(recorder, shadow, near)
		},
	})
	t.Cleanup(func() { close(blocked) }) // before Close, which waits for it
	key := make([]byte, size)
	for i := range key {
		key[i] = 'k'
	}
	play := func(first uint64) (over int64) {
		for n := range uint64(keys) {
			binary.BigEndian.PutUint64(key[size-8:], first+n)
			admitted := int64(0)
			for range 4 {
				d, err := c.sluiceOf(0).Allow(t.Context(), string(key))
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed {
					admitted++
				}
			}
			if admitted < l.Max {
				t.Fatalf("%d admitted of key %d, want %d", admitted, n, l.Max)
			}
			over += admitted - l.Max
		}
		return over
	}
	before := heapInUse()
	over := play(0)
	there := heapInUse() - before
	s.kill()
	over += play(keys) // others: the local view still denies those
	without := heapInUse() - before
	runtime.KeepAlive(c)
	if there > most || without > most {
		t.Errorf("after %d keys of %d KiB %d KiB more are in use, and %d KiB after as many without a server", keys, size>>10, there>>10, without>>10)
	}
	shown := of(c, over)
	shown.note = fmt.Sprintf("%d keys of %d KiB: heap grew by %.1f MB, and by %.1f MB with as many in an outage", keys, size>>10,
		float64(max(0, there))/(1<<20), float64(max(0, without))/(1<<20))
	report(t, "long-keys", result{sluice: shown})
}
