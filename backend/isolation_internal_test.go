package backend

import (
	"strconv"
	"testing"
)

// TestIsolations: a policy whose takes go alone has no say in nearly all others, and finding that costs nothing.
func TestIsolations(t *testing.T) {
	all := new(isolations)
	all.of("refused").refused()
	alone := 0
	for i := range 1000 {
		if all.of("tenant" + strconv.Itoa(i)).apart() {
			alone++
		}
	}
	if !all.of("refused").apart() || alone > 10 {
		t.Errorf("%d of 1,000 other policies go alone", alone)
	}
	if got := testing.AllocsPerRun(100, func() { all.of("tenant") }); got > 0 {
		t.Errorf("it costs %v allocations", got)
	}
}
