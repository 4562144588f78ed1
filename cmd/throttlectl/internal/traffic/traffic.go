// Package traffic is requests over time: made from shapes and key distributions, or read from a CSV file.
package traffic

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Request is one request.
type Request struct {
	At   int64 // Unix microseconds
	Key  string
	Cost int64
}

// Traffic yields requests in the order of time. An error is the last that it yields, about the request beside it.
type Traffic = iter.Seq2[Request, error]

// Keys draws keys by Zipf's law: the nth key 1/n^exponent times as often as the first. With exponent 0 all are equally likely.
type Keys struct {
	names []string
	sums  []float64 // of the weights up to and including each name's
}

const maxKeys = 1 << 20 // keys

func NewKeys(prefix string, keys int, exponent float64) (*Keys, error) {
	switch {
	case keys < 1 || keys > maxKeys:
		return nil, fmt.Errorf("--keys = %d: must be from 1 to %d", keys, maxKeys)
	case !(exponent >= 0 && exponent <= 10):
		return nil, fmt.Errorf("--zipf = %v: must be from 0 to 10", exponent)
	}
	p := &Keys{make([]string, keys), make([]float64, keys)}
	sum := 0.0
	for i := range keys {
		sum += math.Pow(float64(i+1), -exponent)
		p.names[i], p.sums[i] = fmt.Sprintf("%s%d", prefix, i+1), sum
	}
	return p, nil
}

func (p *Keys) Draw(random *rand.Rand) string {
	n := len(p.sums)
	if n == 1 {
		return p.names[0]
	}
	i, _ := slices.BinarySearch(p.sums, random.Float64()*p.sums[n-1])
	return p.names[min(i, n-1)]
}

// simulatedStart is when generated traffic begins, at a multiple of every window up to a day.
var simulatedStart = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Generate is the traffic of all shapes together. The same seed makes the same traffic.
func Generate(shapes []Shape, keys *Keys, seed uint64, lasts time.Duration) Traffic {
	return func(yield func(Request, error) bool) {
		random := rand.New(rand.NewPCG(seed, 0))
		for at := range merged(shapes, seed, lasts) {
			a := Request{At: simulatedStart.UnixMicro() + at.Microseconds(), Key: keys.Draw(random), Cost: 1}
			if !yield(a, nil) {
				return
			}
		}
	}
}

// merged is the times of all shapes' requests in order.
func merged(shapes []Shape, seed uint64, lasts time.Duration) iter.Seq[time.Duration] {
	type source struct {
		at   time.Duration
		next func() (time.Duration, bool)
	}
	return func(yield func(time.Duration) bool) {
		var open []source
		for i := range shapes {
			next, stop := iter.Pull(shapes[i].moments(rand.New(rand.NewPCG(seed, uint64(i)+1)), lasts))
			defer stop()
			if at, ok := next(); ok {
				open = append(open, source{at, next})
			}
		}
		for len(open) > 0 {
			first := 0
			for i := range open {
				if open[i].at < open[first].at {
					first = i
				}
			}
			if !yield(open[first].at) {
				return
			}
			at, ok := open[first].next()
			if open[first].at = at; !ok {
				open = slices.Delete(open, first, first+1)
			}
		}
	}
}
