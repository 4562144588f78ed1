package router

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
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
		Heartbeat: -1, Node: func(string) (backend.Backend, error) { return memory.New(memory.Config{}) },
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

// TestRingsAreShared: topologies that have the same groups at other addresses keep one ring, and one lookup in it is enough.
func TestRingsAreShared(t *testing.T) {
	table := changed(t, 20).table.Load()
	rings := map[*ring.Ring]bool{table.ring: true}
	all, moved := table.history.all, table.history.moved
	for _, p := range all {
		rings[p.ring] = true
	}
	if len(all) != 20 || len(rings) != 2 || len(moved) != 1 {
		t.Errorf("%d previous topologies have %d rings, and %d are looked at; want 20, 2, 1", len(all), len(rings), len(moved))
	}
}

// BenchmarkPreviousOwners is the time that a call spends, while keys move, on where its key may have counts.
func BenchmarkPreviousOwners(b *testing.B) {
	for _, changes := range []int{1, 50} {
		b.Run(fmt.Sprint(changes), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			r := changed(b, changes)
			runtime.GC()
			runtime.ReadMemStats(&after)
			table, hold := r.table.Load(), r.hold(&limit.Policy{Limits: []limit.Limit{limit.PerHour(1)}})
			for b.Loop() {
				table.previousOwners("user:1", r.Owner("user:1"), hold)
			}
			b.ReportMetric(float64(after.HeapAlloc)-float64(before.HeapAlloc), "B-kept")
		})
	}
}

// TestLateHistory: a process may have acted until now under a topology that is heard of late, so those after it are not over
// either.
func TestLateHistory(t *testing.T) {
	r := changed(t, 6)
	table, now := *r.table.Load(), time.Now()
	table.history = newHistory(table.ring, slices.Clone(table.history.all[:2])) // epochs 6 and 5
	for i := range table.history.all {
		table.history.all[i].left = now.Add(-time.Duration(1+i) * time.Hour)
	}
	b := r.opener.builder(&table)
	chain := &Topology{Epoch: 4, Groups: []Group{{Name: "g4", Primary: "10.0.4.1:6379"}}}
	h := b.history(table.placement, table.history.all, chain, now)
	for _, p := range h.all {
		if p.left != now {
			t.Errorf("epoch %d was left %s before an earlier one", p.topology.Epoch, now.Sub(p.left))
		}
	}
	if err := b.finish(); err != nil || len(h.all) != 3 {
		t.Errorf("%d previous topologies, %v", len(h.all), err)
	}
}
