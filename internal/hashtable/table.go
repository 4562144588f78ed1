// Package hashtable is the table of keys that the backends keep in this process. It is not safe for concurrent use: each
// shard has a table and a lock of its own.
package hashtable

import (
	"iter"
	"math/bits"
	"runtime"
	"strings"
)

// Shards returns how many bits of a hash choose the shard, for tables that hold maxKeys keys together, and how many keys each
// shard holds. If maxKeys is not positive, their number is unbounded, and most is 0. Few keys get few shards, so that the bound,
// which is kept per shard, stays close.
func Shards(maxKeys int) (width, most int) {
	width = bits.Len(uint(8*runtime.GOMAXPROCS(0) - 1))
	if maxKeys <= 0 {
		return width, 0
	}
	for width > 0 && maxKeys < 64<<width {
		width--
	}
	return width, (maxKeys-1)>>width + 1
}

// Cell holds the value of one key under one policy. Keys are those of [keyhash.Kept], which bounds their length.
type Cell[V any] struct {
	Value V
	name  string // the policy's name, then, from at on, the key: a lookup reads both from one place
	at    int
}

// NewCell returns a cell with a zero Value. It copies both strings; "+" would keep the one if the other is empty.
func NewCell[V any](policy, key string) *Cell[V] {
	return &Cell[V]{name: strings.Join([]string{policy, key}, ""), at: len(policy)}
}

func (c *Cell[V]) is(policy, key string) bool {
	return len(c.name) == c.at+len(key) && c.Key() == key && c.Policy() == policy
}

// Policy returns the name of the policy.
func (c *Cell[V]) Policy() string { return c.name[:c.at] }

// Key returns the key.
func (c *Cell[V]) Key() string { return c.name[c.at:] }

// Table finds cells by hash. It is open-addressed, with the hashes beside the pointers: a lookup mostly reads one line of the
// table, and then the cell. With 10,000 keys a take needs 0.9 of the processor time that it needs with a Go map of chained
// cells. The zero Table is empty.
type Table[V any] struct {
	Len int // number of cells; read only

	slots []slot[V] // none, or a power of two, of which at most three quarters are taken
	hand  int       // the slot that Next returned last
}

type slot[V any] struct {
	hash uint64
	cell *Cell[V] // nil in a free slot
}

const minSlots = 8

// Find returns the cell of a key under a policy, or nil.
func (t *Table[V]) Find(hash uint64, policy, key string) *Cell[V] {
	if t.Len == 0 {
		return nil
	}
	for i := t.home(hash); ; i = t.after(i) {
		switch s := &t.slots[i]; {
		case s.cell == nil:
			return nil
		case s.hash == hash && s.cell.is(policy, key):
			return s.cell
		}
	}
}

// Add inserts a cell. The table must not hold its key yet.
func (t *Table[V]) Add(hash uint64, c *Cell[V]) {
	if t.Len >= len(t.slots)/4*3 {
		old := t.slots
		t.slots = make([]slot[V], max(2*len(old), minSlots))
		for _, s := range old {
			if s.cell != nil {
				t.slots[t.free(s.hash)] = s
			}
		}
	}
	t.slots[t.free(hash)] = slot[V]{hash, c}
	t.Len++
}

// free returns the slot for a hash that is added.
func (t *Table[V]) free(hash uint64) int {
	i := t.home(hash)
	for t.slots[i].cell != nil {
		i = t.after(i)
	}
	return i
}

// Remove frees a slot that Next returned. Cells behind it that a search would no longer reach move up.
func (t *Table[V]) Remove(gap int) {
	last := len(t.slots) - 1
	for i := t.after(gap); t.slots[i].cell != nil; i = t.after(i) {
		if fromHome := i - t.home(t.slots[i].hash); fromHome&last >= (i-gap)&last {
			t.slots[gap] = t.slots[i]
			gap = i
		}
	}
	t.slots[gap] = slot[V]{}
	t.Len--
}

// home returns the slot where the search for a hash begins. The hash's upper bits have chosen the shard.
func (t *Table[V]) home(hash uint64) int { return int(hash) & (len(t.slots) - 1) }

func (t *Table[V]) after(i int) int { return (i + 1) & (len(t.slots) - 1) }

// Cap returns the number of slots.
func (t *Table[V]) Cap() int { return len(t.slots) }

// Next advances by one slot, around the table, and returns the slot and its cell, nil if it is free. Cap must not be 0.
func (t *Table[V]) Next() (int, *Cell[V]) {
	t.hand = t.after(t.hand)
	return t.hand, t.slots[t.hand].cell
}

// All returns the cells, in no order. The table must not change meanwhile.
func (t *Table[V]) All() iter.Seq[*Cell[V]] {
	return func(yield func(*Cell[V]) bool) {
		for i := range t.slots {
			if c := t.slots[i].cell; c != nil && !yield(c) {
				return
			}
		}
	}
}
