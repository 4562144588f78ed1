package throttler

import (
	"slices"
	"strings"
)

// keyTable finds what is said of a key: by the whole key, or else by its longest prefix. It is not changed once it is
// made, and finding allocates nothing.
type keyTable[V any] struct {
	exact    map[string]V
	prefixes []prefix[V] // in the order of their texts
}

type prefix[V any] struct {
	text  string
	outer int // the longest other prefix that text begins with; -1 for none
	value V
}

// newKeyTable is the table of entries of which those that end in * are prefixes.
func newKeyTable[V any](entries map[string]V) keyTable[V] {
	exact, prefixes := map[string]V{}, map[string]V{}
	for entry, v := range entries {
		if text, ok := strings.CutSuffix(entry, "*"); ok {
			prefixes[text] = v
		} else {
			exact[entry] = v
		}
	}
	t := keyTable[V]{exact: exact}
	for text, v := range prefixes {
		t.prefixes = append(t.prefixes, prefix[V]{text: text, value: v})
	}
	slices.SortFunc(t.prefixes, func(a, b prefix[V]) int { return strings.Compare(a.text, b.text) })
	for i := range t.prefixes {
		t.prefixes[i].outer = t.innermost(t.prefixes[i].text, i-1)
	}
	return t
}

func (t *keyTable[V]) find(key string) (v V, ok bool) {
	if v, ok = t.exact[key]; ok || len(t.prefixes) == 0 {
		return v, ok
	}
	low, high := 0, len(t.prefixes) // prefixes before low are at most key, those from high on are more
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

// innermost is the longest prefix of text, where the last one in order that is at most text is prefixes[last]. Whatever
// lies between a prefix of text and text begins with that prefix, so that all prefixes of text are last and those around it.
func (t *keyTable[V]) innermost(text string, last int) int {
	i := last
	for i >= 0 && !strings.HasPrefix(text, t.prefixes[i].text) {
		i = t.prefixes[i].outer
	}
	return i
}
