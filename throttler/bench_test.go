package throttler_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// BenchmarkAllow decides in memory, from a lease and by the local view, for comparison of what surrounds a decision.
func BenchmarkAllow(b *testing.B) {
	for _, test := range []struct {
		name   string
		policy limit.Policy
		leased bool
	}{
		{"allowed", throttlertesting.One(limit.PerDay(1 << 40)), false},
		{"denied", throttlertesting.One(limit.PerDay(1)), false},
		{"leased", throttlertesting.One(limit.PerDay(1 << 40)), true},
		{"denied locally", throttlertesting.One(limit.PerDay(1)), true},
	} {
		var counts backend.Backend = throttlertesting.NewMemory(b, nil)
		if test.leased {
			counts = telling{throttlertesting.NewMemory(b, nil)}
			ls, err := lease.New(counts, lease.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer ls.Close()
			counts = ls
		}
		for _, observer := range []throttler.Observer{nil, &idle{}} {
			th := throttlertesting.New(b, throttler.Config{Backend: counts, Policy: test.policy, Observer: observer})
			ctx := context.Background()
			b.Run(fmt.Sprintf("%s, observed %t", test.name, observer != nil), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := th.Allow(ctx, "user:42"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// telling is a Memory that tells what it knows of a key, as servers do, which a lease's local view needs.
type telling struct{ *memory.Memory }

func (m telling) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	r, err := m.Memory.Take(ctx, req)
	if snapshot, failed := m.Load(ctx, req); failed == nil {
		r.State = snapshot.State
	}
	return r, err
}
