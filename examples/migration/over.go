package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// clocks is by how much the clocks of the servers may seem to differ, although they run on one machine: a Redis router's
// lags by the time that a reply took. So close to an edge it can't be said who was right.
const clocks = 50 * time.Millisecond

// overLimit counts the admissions that were too many, by the step in which they came. It knows nothing of how the limits
// are counted, only what they promise, and trusts no place's word on what another one has admitted.
func overLimit(admitted map[string][]admission, fixed, sliding limit.Limit) map[int]int {
	over := make(map[int]int)
	for _, entries := range admitted {
		slices.SortFunc(entries, func(a, b admission) int { return cmp.Compare(a.at, b.at) })
		tooMany := make([]bool, len(entries))
		markFixed(entries, tooMany, fixed)
		markSliding(entries, tooMany, sliding)
		for i, is := range tooMany {
			if is {
				over[entries[i].step]++
			}
		}
	}
	return over
}

// markFixed marks what came after the first Max of a window. Every reply that named a window's end gives one. To it
// belongs what named the same end, and what was admitted meanwhile under another window: a key has one at a time, so a
// place that opened one before the end didn't know what was counted elsewhere.
func markFixed(entries []admission, tooMany []bool, l limit.Limit) {
	window := l.Window.Microseconds()
	seen := make(map[int64]bool)
	for _, w := range entries {
		if seen[w.reset] {
			continue
		}
		seen[w.reset] = true
		n := int64(0)
		for i, e := range entries {
			overlap := window - max(e.reset-w.reset, w.reset-e.reset)
			meanwhile := overlap > clocks.Microseconds() && w.reset-window <= e.at && e.at < w.reset
			if e.reset != w.reset && !meanwhile {
				continue
			}
			if n++; n > l.Max {
				tooMany[i] = true
			}
		}
	}
}

// markSliding marks what comes after Max others in any interval of one precision less than the window.
func markSliding(entries []admission, tooMany []bool, l limit.Limit) {
	longest := (l.Window - l.Precision - clocks).Microseconds()
	first := 0
	for i := range entries {
		for entries[i].at-entries[first].at > longest {
			first++
		}
		if int64(i-first) >= l.Max {
			tooMany[i] = true
		}
	}
}
