package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	var all []time.Duration
	parts := []*histogram{new(histogram), new(histogram)}
	for i := range 20_001 {
		d := time.Duration(math.Exp(random.Float64() * 25))
		all = append(all, d)
		parts[i%2].add(d)
	}
	slices.Sort(all)
	h := parts[0]
	h.join(parts[1])
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[int(q*float64(len(all)-1))]
		if got := h.quantile(q); got < want || float64(got) > float64(want)*(1+1.0/64)+1 {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	if h.quantile(1) != all[len(all)-1] || new(histogram).quantile(0.5) != 0 {
		t.Errorf("the largest is %v, want %v", h.quantile(1), all[len(all)-1])
	}
	for _, d := range []time.Duration{-1, 0, 63, 64, 65, 127, 128, math.MaxInt64} {
		if b := bucketOf(max(d, 0)); top(b) < d || b > 0 && top(b-1) >= max(d, 0) {
			t.Errorf("%d is in bucket %d, up to %d", d, b, top(b))
		}
		new(histogram).add(d)
	}
}
