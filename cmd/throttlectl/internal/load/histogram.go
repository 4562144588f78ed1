package load

import (
	"math/bits"
	"time"
)

// histogram counts latencies in buckets whose width is at most 1/64 of what they hold. Its memory is fixed. The layout is
// that of HdrHistogram.
type histogram struct {
	buckets [(64 - histogramBits) << histogramBits]int64
	count   int64
	max     time.Duration
}

const histogramBits = 6

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.buckets[bucketOf(d)]++
	h.count++
	h.max = max(h.max, d)
}

func bucketOf(d time.Duration) int {
	v := uint64(d)
	if v < 1<<histogramBits {
		return int(v)
	}
	e := bits.Len64(v) - histogramBits - 1
	return e<<histogramBits + int(v>>e)
}

// top is the largest latency that a bucket holds.
func top(bucket int) time.Duration {
	if bucket < 1<<histogramBits {
		return time.Duration(bucket)
	}
	e := bucket>>histogramBits - 1
	return time.Duration(uint64(bucket-e<<histogramBits+1)<<e - 1)
}

func (h *histogram) join(o *histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.count += o.count
	h.max = max(h.max, o.max)
}

// quantile is the latency that the share q of all don't exceed; 0 of none.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(q * float64(h.count))
	for i, n := range h.buckets {
		if rank -= n; rank < 0 {
			return min(top(i), h.max)
		}
	}
	return h.max
}
