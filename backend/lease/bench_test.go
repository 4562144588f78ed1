package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/limit/state"
)

// BenchmarkLease is what a take costs that makes no call: beside BenchmarkMemory it should cost no more.
func BenchmarkLease(b *testing.B) {
	for _, test := range []struct {
		name string
		max  int64
	}{{"leased", 1 << 40}, {"denied", 1}} {
		b.Run(test.name, func(b *testing.B) {
			there := newPlace()
			there.states["key"] = new(state.State)
			ls := backendtesting.NewLease(b, instant{there}, lease.Config{Recheck: time.Hour, Life: time.Hour, Batch: 1 << 30, Steady: true})
			req := backend.Request{Key: "key", Policy: backendtesting.Hour(test.max), Cost: 1}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ls.Take(ctx, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
