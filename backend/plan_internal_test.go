package backend

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// TestPlans: equal limits have one plan, which keeps nothing of the caller's, whatever else is in use.
func TestPlans(t *testing.T) {
	all := new(plans)
	mine := []limit.Limit{limit.PerSecond(7), limit.Sliding(7, time.Hour, time.Minute)}
	find := all.find
	first := find(mine)
	if retry := find(slices.Clone(mine)); retry != first || first.script == nil {
		t.Errorf("equal limits have plans %p and %p", first, retry)
	}
	mine[0].Max++
	if other := find(mine); other == first || first.limits[0].Max != 7 {
		t.Errorf("a plan changed with what it was made from: %v", first.limits)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range int64(2000) { // many more than there is room for
				limits := []limit.Limit{limit.PerSecond(n*7%1000 + 1), limit.PerMinute(n + int64(i)).Named("n")}
				if p := find(limits); !p.of(limits) {
					t.Errorf("the plan of %v is for %v", limits, p.limits)
				}
			}
		})
	}
	wg.Wait()
	for _, limits := range [][]limit.Limit{
		{limit.PerSecond(7).Staggered()}, {limit.PerSecond(7), limit.TokenBucket(7, time.Second, 7)},
	} {
		if p := find(limits); p.script != nil || !p.of(limits) {
			t.Errorf("takes under %v go together", limits)
		}
	}
	if got := testing.AllocsPerRun(100, func() { all.find(mine) }); got > 0 {
		t.Errorf("a plan that is known costs %v allocations", got)
	}
}

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
