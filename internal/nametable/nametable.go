// Package nametable keeps a value for each of a bounded number of names, such as those of policies, and looks it up without a
// lock or an allocation.
package nametable

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// Other is the name of the value that all further names share once a Table is full. No policy can have it.
const Other = "_OTHER"

// Table holds the values. Make one with New.
type Table[V any] struct {
	size int
	make func(name string) V

	values atomic.Pointer[map[string]V] // replaced, never changed
	mu     sync.Mutex                   // held while it is replaced
}

// New makes a Table of size names and Other, whose values make returns.
func New[V any](size int, make func(name string) V) *Table[V] {
	t := &Table[V]{size: size, make: make}
	t.values.Store(&map[string]V{Other: make(Other)})
	return t
}

// Get returns the value of a name.
func (t *Table[V]) Get(name string) V {
	values := *t.values.Load()
	if v, ok := values[name]; ok {
		return v
	}
	if len(values) > t.size {
		return values[Other]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	values = *t.values.Load()
	if v, ok := values[name]; ok {
		return v
	}
	if len(values) > t.size {
		return values[Other]
	}
	more := maps.Clone(values) // a variable of its own: values would escape
	name = strings.Clone(name) // it may be part of something large
	more[name] = t.make(name)
	t.values.Store(&more)
	return more[name]
}

// All returns a copy of the values by name, Other among them.
func (t *Table[V]) All() map[string]V { return maps.Clone(*t.values.Load()) }
