//go:build !race

package grpclimit_test

import (
	"testing"

	"github.com/sluice-go/sluice/limit"
)

// The race detector makes pools forget.
func TestUnaryAllocations(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	for most, max := range map[float64]int64{12: limit.MaxCount, 32: 1} {
		call := unary(t, max)
		if got := testing.AllocsPerRun(1000, func() { _ = call() }); got > most {
			t.Errorf("a call under %d an hour: %v allocations, want at most %v", max, got, most)
		}
	}
}
