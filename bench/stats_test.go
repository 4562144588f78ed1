package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{nil, math.NaN()},
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 100}, 3.5},
	} {
		before := slices.Clone(tt.values)
		if got := median(tt.values); !same(got, tt.want) {
			t.Errorf("median(%v) = %v, want %v", tt.values, got, tt.want)
		}
		if !slices.Equal(before, tt.values) {
			t.Errorf("median reordered its argument: %v", tt.values)
		}
	}
}

func TestRatio(t *testing.T) {
	for _, tt := range []struct{ a, b, want float64 }{
		{6, 2, 3},
		{0, 2, 0},
		{0, 0, 1},
		{1, 0, math.NaN()},
		{1, math.NaN(), math.NaN()},
	} {
		if got := ratio(tt.a, tt.b); !same(got, tt.want) {
			t.Errorf("ratio(%v, %v) = %v, want %v", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{nil, math.NaN()},
		{[]float64{7}, 0},
		{[]float64{110, 90, 100}, 0.1},
	} {
		if got := spread(tt.values); !same(got, tt.want) {
			t.Errorf("spread(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestMedians(t *testing.T) {
	rounds := make([]Slice, 3)
	for i := range rounds {
		for j, field := range rounds[i].fields() {
			*field = float64((i*7+j)%3 + 10*j) // another round is in the middle of each field
		}
	}
	m := medians(rounds)
	for j, field := range m.fields() {
		if want := float64(1 + 10*j); *field != want {
			t.Errorf("field %d is %v, want %v", j, *field, want)
		}
	}
}

// Every latency falls into a bucket that holds it, and buckets follow each other without gaps.
func TestBuckets(t *testing.T) {
	end := 0.0
	for i := range buckets {
		low, width := bounds(i)
		if low != end {
			t.Fatalf("bucket %d begins at %v, the one before ends at %v", i, low, end)
		}
		if width > 1 && width > low/sub {
			t.Fatalf("bucket %d from %v is %v wide", i, low, width)
		}
		for _, v := range []float64{low, low + width - 1} {
			if got := bucketOf(time.Duration(v)); got != i {
				t.Fatalf("%v ns fall into bucket %d, want %d", v, got, i)
			}
		}
		end = low + width
	}
	if got := bucketOf(time.Hour); got != buckets-1 {
		t.Errorf("an hour falls into bucket %d, want the last one", got)
	}
	if got := bucketOf(-1); got != 0 {
		t.Errorf("a negative latency falls into bucket %d, want the first one", got)
	}
}

func TestQuantile(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var joined, part histogram
	var exact []float64
	for i := range 100_000 {
		v := math.Exp(random.NormFloat64() + 11) // around 60 us, with a long tail
		exact = append(exact, v)
		part.add(time.Duration(v))
		if i%1000 == 999 {
			joined.join(&part)
			part = histogram{}
		}
	}
	slices.Sort(exact)
	for _, q := range []float64{0, 0.5, 0.99, 0.999, 1} {
		want := exact[max(int(math.Ceil(q*float64(len(exact))))-1, 0)]
		if got := joined.quantile(q); math.Abs(got-want) > want/sub {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	var few histogram
	if got := few.quantile(0.5); !math.IsNaN(got) {
		t.Errorf("the median of nothing is %v", got)
	}
	few.add(5)
	few.add(9)
	if got := [2]float64{few.quantile(0.5), few.quantile(0.51)}; got != [2]float64{5, 9} {
		t.Errorf("quantiles of 5 and 9 are %v", got)
	}
}
