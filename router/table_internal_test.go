package router

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/ring"
)

// changed is a router after many changes between two and three groups, which have other addresses each time.
func changed(t testing.TB, changes int) *Router {
	t.Helper()
	topology := func(epoch int) Topology {
		t := Topology{Epoch: uint64(epoch)}
		for g := range 2 + epoch%2 {
			t.Groups = append(t.Groups, Group{Name: fmt.Sprint("g", g), Primary: fmt.Sprintf("10.0.%d.%d:6379", epoch, g)})
		}
		return t
	}
	r, err := Open(topology(1), Config{
		Heartbeat: -1, Node: func(string) (backend.Backend, error) { return backend.NewMemory(backend.MemoryConfig{}) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	for epoch := 2; epoch <= 1+changes; epoch++ {
		if err := r.Update(topology(epoch)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// TestRingsAreShared: topologies that have the same groups at other addresses keep one ring, and one look at it is enough.
func TestRingsAreShared(t *testing.T) {
	s := changed(t, 20).table.Load()
	rings := map[*ring.Ring]bool{s.ring: true}
	for _, f := range s.history {
		rings[f.ring] = true
	}
	if len(s.history) != 20 || len(rings) != 2 || len(s.ownedElsewhere) != 1 {
		t.Errorf("%d former topologies have %d rings, and %d are looked at; want 20, 2, 1", len(s.history), len(rings), len(s.ownedElsewhere))
	}
}

// BenchmarkOrigins spends the time of a call, while keys move, on where its key may come from.
func BenchmarkOrigins(b *testing.B) {
	for _, changes := range []int{1, 50} {
		b.Run(fmt.Sprint(changes), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			r := changed(b, changes)
			runtime.GC()
			runtime.ReadMemStats(&after)
			s, hold := r.table.Load(), r.hold(&limit.Policy{Limits: []limit.Limit{limit.PerHour(1)}})
			for b.Loop() {
				s.previousOwners("user:1", hold)
			}
			b.ReportMetric(float64(after.HeapAlloc)-float64(before.HeapAlloc), "B-kept")
		})
	}
}

// TestRememberLate: of a topology that is heard of late, some process may have acted under it until now, so those after it
// are not over either.
func TestRememberLate(t *testing.T) {
	r := changed(t, 6)
	s, now := *r.table.Load(), time.Now()
	s.setHistory(slices.Clone(s.history[:2])) // epochs 6 and 5
	for i := range s.history {
		s.history[i].left = now.Add(-time.Duration(1+i) * time.Hour)
	}
	m := r.opener.builder(&s)
	s.addPrevious(m, &Topology{Epoch: 4, Groups: []Group{{Name: "g4", Primary: "10.0.4.1:6379"}}}, now)
	for _, f := range s.history {
		if f.left != now {
			t.Errorf("epoch %d was left %s before one that came earlier", f.topology.Epoch, now.Sub(f.left))
		}
	}
	if err := m.finish(); err != nil || len(s.history) != 3 {
		t.Errorf("%d former topologies, %v", len(s.history), err)
	}
}
