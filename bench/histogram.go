package main

import (
	"math"
	"math/bits"
	"time"
)

// A histogram counts latencies in buckets whose width is at most 1/128 of what they hold, from 1 ns to two minutes. Its
// memory is fixed, and adding is a few instructions. The zero value is empty. The layout is that of HdrHistogram.
type histogram struct {
	buckets [buckets]uint32
	count   uint64
}

const (
	subBits = 7
	sub     = 1 << subBits // buckets for each power of two
	buckets = 31 * sub
)

func (h *histogram) add(d time.Duration) {
	h.buckets[bucketOf(d)]++
	h.count++
}

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < sub {
		return int(v)
	}
	e := bits.Len64(v) - subBits - 1
	return min(e<<subBits+int(v>>e), buckets-1)
}

// bounds of a bucket in nanoseconds: from low up to but not including low + width.
func bounds(bucket int) (low, width float64) {
	if bucket < sub {
		return float64(bucket), 1
	}
	e := bucket>>subBits - 1
	return float64((bucket - e<<subBits) << e), float64(uint64(1) << e)
}

// join adds what another has counted.
func (h *histogram) join(other *histogram) {
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
	h.count += other.count
}

// quantile is the latency in nanoseconds that the share q of all don't exceed; NaN of none. It takes a bucket's latencies
// as spread evenly over it.
func (h *histogram) quantile(q float64) float64 {
	if h.count == 0 {
		return math.NaN()
	}
	rank := min(max(math.Ceil(q*float64(h.count)), 1), float64(h.count))
	below := 0.0
	for i, n := range h.buckets {
		if at := float64(n); below+at >= rank {
			low, width := bounds(i)
			if width == 1 {
				return low
			}
			return low + width*(rank-below-0.5)/at
		}
		below += float64(n)
	}
	return math.NaN() // not reached
}
