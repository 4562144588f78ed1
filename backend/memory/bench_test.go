package memory_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
)

func BenchmarkMemoryTake(b *testing.B) {
	m, err := memory.New(memory.Config{})
	if err != nil {
		b.Fatal(err)
	}
	policy := limit.Policy{Limits: []limit.Limit{limit.PerSecond(1_000_000_000)}}
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = "user:" + strconv.Itoa(i)
	}
	ctx := context.Background()
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			i++
			if _, err := m.Take(ctx, backend.Request{Key: keys[i%len(keys)], Policy: &policy, Cost: 1}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		var start atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			i := int(start.Add(7919))
			for pb.Next() {
				i++
				if _, err := m.Take(ctx, backend.Request{Key: keys[i%len(keys)], Policy: &policy, Cost: 1}); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}
