package main

import (
	"math"
	"slices"
)

// median is the middle value, or the mean of the two in the middle; NaN of none. It leaves values as they are.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// ratio is a/b, NaN where that says nothing. Two zeros are equal.
func ratio(a, b float64) float64 {
	switch {
	case a == 0 && b == 0:
		return 1
	case b == 0:
		return math.NaN()
	}
	return a / b
}

// spread is how far values lie around their median: half of the whole range, as a share of the median.
func spread(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return ratio((slices.Max(values)-slices.Min(values))/2, median(values))
}
