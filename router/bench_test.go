package router_test

import (
	"fmt"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
)

// BenchmarkTake is what a router adds to a node: the ring, the breaker, the clock of the latency.
func BenchmarkTake(b *testing.B) {
	own := newMemory(b)
	r := open(b, []router.NodeGroup{{Name: "a", Primary: own}}, router.Config{Heartbeat: -1})
	for name, node := range map[string]backend.Backend{"node": own, "router": r} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := node.Take(b.Context(), request("k")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPeek(b *testing.B) {
	for _, replicas := range []int{0, 2} {
		b.Run(fmt.Sprintf("replicas=%d", replicas), func(b *testing.B) {
			store := newMemory(b)
			group := router.NodeGroup{Name: "a", Primary: store}
			for range replicas {
				group.Replicas = append(group.Replicas, newFake(store))
			}
			r := open(b, []router.NodeGroup{group}, router.Config{Heartbeat: -1})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Peek(b.Context(), request("k")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestTakeAddsNoAllocation(t *testing.T) {
	own := newMemory(t)
	r := open(t, []router.NodeGroup{{Name: "a", Primary: own}, {Name: "b", Primary: newMemory(t)}}, router.Config{Heartbeat: -1})
	ctx, req := t.Context(), request(keyOf(r, "a", 0))
	if _, err := r.Take(ctx, req); err != nil { // the key is known now
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = r.Take(ctx, req) }); n > 0 {
		t.Errorf("a take allocates %v times", n)
	}
}
