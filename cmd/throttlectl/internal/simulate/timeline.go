package simulate

import (
	"slices"
	"time"
)

// timeline is what was offered and admitted in slices of equal width, which grows so that there are never more than maxSlices.
type timeline struct {
	start    int64 // Unix microseconds
	step     int   // of sliceWidths
	offered  []int64
	admitted [][]int64 // by candidate
}

const maxSlices = 600

// sliceWidths are round widths, each a multiple of the one before.
var sliceWidths = []time.Duration{
	100 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour,
}

func newTimeline(contenders int) timeline {
	return timeline{admitted: make([][]int64, contenders)}
}

func (t *timeline) width() time.Duration {
	if last := len(sliceWidths) - 1; t.step > last { // doubled from then on
		return sliceWidths[last] << (t.step - last)
	}
	return sliceWidths[t.step]
}

func (t *timeline) offer(at, cost int64) {
	t.offered = t.add(t.offered, at, cost)
}

// admit follows an offer of the same time.
func (t *timeline) admit(contender int, at, cost int64) {
	t.admitted[contender] = t.add(t.admitted[contender], at, cost)
}

func (t *timeline) add(counts []int64, at, cost int64) []int64 {
	i := (at - t.start) / t.width().Microseconds()
	for i >= maxSlices {
		before := t.width()
		t.step++
		by := int(t.width() / before)
		counts = widen(counts, by)
		t.offered = widen(t.offered, by)
		for c := range t.admitted {
			t.admitted[c] = widen(t.admitted[c], by)
		}
		i = (at - t.start) / t.width().Microseconds()
	}
	for int64(len(counts)) <= i {
		counts = append(counts, 0)
	}
	counts[i] += cost
	return counts
}

// widen joins slices.
func widen(counts []int64, by int) []int64 {
	var wide []int64
	for chunk := range slices.Chunk(counts, by) {
		sum := int64(0)
		for _, n := range chunk {
			sum += n
		}
		wide = append(wide, sum)
	}
	return wide
}
