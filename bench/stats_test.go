package main

import (
	"math"
	"slices"
	"testing"
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

func TestBestFirst(t *testing.T) {
	results := []MemoryResult{{Peer: "slow", Nanos: 9}, {Peer: sluice, Nanos: 12}, {Peer: "fast", Nanos: 3}, {Peer: sluiceBackend, Nanos: 1}}
	var got []string
	for _, r := range bestFirst(results, func(r *MemoryResult) (string, float64) { return r.Peer, r.Nanos }) {
		got = append(got, r.Peer)
	}
	if want := []string{sluice, sluiceBackend, "fast", "slow"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
