package backend

import "strings"

// table keeps a value for each key under each policy. It is found by a hash of the key, and walked over in circles, so
// that what is over can be forgotten a little at a time. The zero table is not ready: see newTable.
type table[V any] struct {
	byHash map[uint64]*keyed[V]
	cells  []*keyed[V] // every cell, in no order; what next walks over
	hand   int
}

// keyed is what is kept of one key under one policy.
type keyed[V any] struct {
	value       V
	hash        uint64
	policy, key string
	after       *keyed[V] // another key with the same hash
	slot        int       // position in cells; -1 once removed
}

func newTable[V any]() table[V] { return table[V]{byHash: make(map[uint64]*keyed[V])} }

func (t *table[V]) find(hash uint64, req *Request) *keyed[V] {
	for c := t.byHash[hash]; c != nil; c = c.after {
		if c.key == req.Key && c.policy == req.Policy.Name {
			return c
		}
	}
	return nil
}

// add makes a cell for a key that has none.
func (t *table[V]) add(hash uint64, req *Request) *keyed[V] {
	c := &keyed[V]{
		hash: hash, policy: strings.Clone(req.Policy.Name), key: strings.Clone(req.Key),
		after: t.byHash[hash], slot: len(t.cells),
	}
	t.byHash[hash] = c
	t.cells = append(t.cells, c)
	return c
}

// next moves on by one cell, and returns it; nil if there is none.
func (t *table[V]) next() *keyed[V] {
	if len(t.cells) == 0 {
		return nil
	}
	t.hand = (t.hand + 1) % len(t.cells)
	return t.cells[t.hand]
}

func (t *table[V]) remove(c *keyed[V]) {
	last := len(t.cells) - 1
	t.cells[c.slot] = t.cells[last]
	t.cells[c.slot].slot = c.slot
	t.cells[last] = nil
	t.cells = t.cells[:last]
	c.slot = -1

	if first := t.byHash[c.hash]; first != c {
		for ; first.after != c; first = first.after {
		}
		first.after = c.after
	} else if c.after != nil {
		t.byHash[c.hash] = c.after
	} else {
		delete(t.byHash, c.hash)
	}
}
