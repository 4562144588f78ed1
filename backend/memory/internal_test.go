package memory

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// TestMemoryCollisions gives keys the same hash, as chance could, or hashes that lie close together, across the end of
// the table, too: they stay strangers, whichever of them is forgotten.
func TestMemoryCollisions(t *testing.T) {
	m, err := New(Config{MaxKeys: -1})
	if err != nil {
		t.Fatal(err)
	}
	s := &m.shards[0]
	policies := []*limit.Policy{
		{Limits: []limit.Limit{limit.PerHour(1000)}}, {Name: "1", Limits: []limit.Limit{limit.PerHour(1000)}},
	}
	hashes := []uint64{5, 6, 7, 13, 14, 15, 1 << 60, 1<<60 | 7}
	type life struct {
		hash uint64
		key  string
		*limit.Policy
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	random := rand.New(rand.NewPCG(1, 2))
	used := make(map[life]int64)
	for range 20_000 {
		// The names of the policies and the keys together are "11", "111" in more than one way.
		l := life{hashes[random.IntN(len(hashes))], strings.Repeat("1", 1+random.IntN(3)), policies[random.IntN(2)]}
		req := &backend.Request{Key: l.key, Policy: l.Policy, Cost: 1}
		switch c := s.cells.Find(l.hash, req.Policy.Name, req.Key); {
		case (c != nil) != (used[l] > 0):
			t.Fatalf("%v: found %t after %d takes", l, c != nil, used[l])
		case c != nil && random.IntN(4) == 0:
			slot, at := s.cells.Next()
			for at != c {
				slot, at = s.cells.Next()
			}
			s.cells.Remove(slot)
			delete(used, l)
			continue
		}
		c := s.findOrAddLocked(l.hash, req, now)
		used[l]++
		v := c.state.Take(req.Policy, state.At{Micros: now}, 1)
		if got, want := v.Binding().Remaining, 1000-used[l]; got != want {
			t.Fatalf("%v: %d left, want %d", l, got, want)
		}
		if s.cells.Len != len(used) {
			t.Fatalf("%d slots are taken by %d keys", s.cells.Len, len(used))
		}
	}
}
