package backend

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// TestMemoryCollisions gives keys the same hash, as chance could: they stay strangers, whichever of them is forgotten.
func TestMemoryCollisions(t *testing.T) {
	m, err := NewMemory(MemoryConfig{MaxKeys: -1})
	if err != nil {
		t.Fatal(err)
	}
	s := &m.shards[0]
	policies := []*limit.Policy{
		{Limits: []limit.Limit{limit.PerHour(1000)}}, {Name: "a", Limits: []limit.Limit{limit.PerHour(1000)}},
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	random := rand.New(rand.NewPCG(1, 2))
	used := make(map[string]int64) // by policy and key
	for range 3000 {
		req := &Request{Key: fmt.Sprint(random.IntN(8)), Policy: policies[random.IntN(2)], Cost: 1}
		name := req.Policy.Name + "/" + req.Key
		hash := uint64(random.IntN(2)) // two chains
		name += fmt.Sprint(hash)
		if c := s.findLocked(hash, req); c != nil && random.IntN(4) == 0 {
			s.forgetLocked(c)
			used[name] = 0
		}
		c := s.findOrAddLocked(hash, req, now)
		used[name]++
		v := c.state.Take(req.Policy, limit.At{Micros: now}, 1)
		if got, want := v.Binding().Remaining, 1000-used[name]; got != want {
			t.Fatalf("%s: %d left, want %d", name, got, want)
		}
	}
	if len(s.byHash) > 2 {
		t.Errorf("%d chains, want 2", len(s.byHash))
	}
	for i, c := range s.cells {
		if c.slot != i {
			t.Errorf("the cell in slot %d believes to be in %d", i, c.slot)
		}
	}
	for len(s.cells) > 0 {
		s.forgetLocked(s.cells[random.IntN(len(s.cells))])
	}
	if len(s.byHash) != 0 {
		t.Errorf("%d chains are left of no keys", len(s.byHash))
	}
}
