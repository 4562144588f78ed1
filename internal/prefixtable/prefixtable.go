// Package prefixtable finds what is said of a key: by the whole key, or else by its longest prefix.
package prefixtable

import (
	"iter"
	"slices"
	"strings"
)

// Table holds values by key and by prefix. It never changes, and Find allocates nothing. The zero value is empty.
type Table[V any] struct {
	exact    map[string]V
	prefixes []prefix[V] // in the order of their texts
}

type prefix[V any] struct {
	text  string
	outer int // index of the longest other prefix that text begins with; -1 if there is none
	value V
}

// New makes a Table. An entry that ends in * stands for all keys with that prefix.
func New[V any](entries map[string]V) Table[V] {
	exact, prefixes := map[string]V{}, map[string]V{}
	for entry, v := range entries {
		if text, ok := strings.CutSuffix(entry, "*"); ok {
			prefixes[text] = v
		} else {
			exact[entry] = v
		}
	}
	t := Table[V]{exact: exact}
	for text, v := range prefixes {
		t.prefixes = append(t.prefixes, prefix[V]{text: text, value: v})
	}
	slices.SortFunc(t.prefixes, func(a, b prefix[V]) int { return strings.Compare(a.text, b.text) })
	for i := range t.prefixes {
		t.prefixes[i].outer = t.innermost(t.prefixes[i].text, i-1)
	}
	return t
}

// Find returns the value of the key, or that of its longest prefix.
func (t *Table[V]) Find(key string) (v V, ok bool) {
	if v, ok = t.exact[key]; ok || len(t.prefixes) == 0 {
		return v, ok
	}
	low, high := 0, len(t.prefixes) // texts before low are at most key, texts from high on are above it
	for low < high {
		if middle := (low + high) / 2; t.prefixes[middle].text <= key {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if i := t.innermost(key, low-1); i >= 0 {
		return t.prefixes[i].value, true
	}
	return v, false
}

// innermost returns the longest prefix of text, or -1. The last prefix that sorts at or before text must be prefixes[last].
// Whatever sorts between text and one of its prefixes begins with that prefix, so the outer links from last on lead to it.
func (t *Table[V]) innermost(text string, last int) int {
	i := last
	for i >= 0 && !strings.HasPrefix(text, t.prefixes[i].text) {
		i = t.prefixes[i].outer
	}
	return i
}

// All yields the value of each entry.
func (t *Table[V]) All() iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range t.exact {
			if !yield(v) {
				return
			}
		}
		for i := range t.prefixes {
			if !yield(t.prefixes[i].value) {
				return
			}
		}
	}
}

// Set is a Table of entries without values. The zero value is empty.
type Set struct{ table Table[struct{}] }

// NewSet makes a Set. An entry that ends in * stands for all keys with that prefix.
func NewSet(entries []string) Set {
	all := make(map[string]struct{}, len(entries))
	for _, entry := range entries {
		all[entry] = struct{}{}
	}
	return Set{New(all)}
}

// Has reports whether the key, or a prefix of it, is an entry.
func (s *Set) Has(key string) bool {
	_, ok := s.table.Find(key)
	return ok
}
