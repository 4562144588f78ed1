package simulation

import (
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// dice is the fate of one thing: a source that follows from the seed and what the thing is, and not from what came before
// it. So it does not matter in which order goroutines ask.
func dice(seed uint64, what ...any) *rand.Rand {
	return rand.New(rand.NewPCG(seed, fingerprint(what...)))
}

func fingerprint(what ...any) uint64 {
	h := fnv.New64a()
	var b [8]byte
	number := func(n uint64) {
		for i := range b {
			b[i] = byte(n >> (8 * i))
		}
		_, _ = h.Write(b[:])
	}
	for _, w := range what {
		switch w := w.(type) {
		case string:
			_, _ = h.Write([]byte(w))
			_, _ = h.Write([]byte{0})
		case int:
			number(uint64(w))
		case int64:
			number(uint64(w))
		case uint64:
			number(w)
		default:
			panic("simulation: no fingerprint")
		}
	}
	return h.Sum64()
}

// span is a random time between two others, odd to the nanosecond: no two things should happen at one instant, for their
// order would be the scheduler's.
func span(r *rand.Rand, from, to time.Duration) time.Duration {
	d := from + time.Duration(r.Int64N(max(1, int64((to-from)/time.Microsecond))))*time.Microsecond
	return d + time.Duration(1+r.IntN(999))
}

func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }
