package redispipe

import (
	"strconv"
	"testing"
)

// TestIsolations: a policy whose takes are sent unshared changes nothing for nearly all others, and finding it costs nothing.
func TestIsolations(t *testing.T) {
	all := new(isolations)
	all.of("refused").refused()
	alone := 0
	for i := range 1000 {
		if all.of("tenant" + strconv.Itoa(i)).unshared() {
			alone++
		}
	}
	if !all.of("refused").unshared() || alone > 10 {
		t.Errorf("%d of 1,000 other policies go alone", alone)
	}
	if got := testing.AllocsPerRun(100, func() { all.of("tenant") }); got > 0 {
		t.Errorf("it costs %v allocations", got)
	}
}
