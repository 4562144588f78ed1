//go:build unix

package scripts_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/scripts"
)

// TestPlans: equal limits have one plan, which keeps nothing of the caller's, whatever else is in use.
func TestPlans(t *testing.T) {
	all := new(scripts.Plans)
	mine := []limit.Limit{limit.PerSecond(7), limit.Sliding(7, time.Hour, time.Minute)}
	find := all.Find
	first := find(mine)
	if again := find(slices.Clone(mine)); again != first || first.Script == nil {
		t.Errorf("equal limits have plans %p and %p", first, again)
	}
	mine[0].Max++
	if other := find(mine); other == first || first.Limits[0].Max != 7 {
		t.Errorf("a plan changed with what it was made from: %v", first.Limits)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range int64(2000) { // many more than there is room for
				limits := []limit.Limit{limit.PerSecond(n*7%1000 + 1), limit.PerMinute(n + int64(i)).Named("n")}
				if p := find(limits); !p.Covers(limits) {
					t.Errorf("the plan of %v is for %v", limits, p.Limits)
				}
			}
		})
	}
	wg.Wait()
	for _, limits := range [][]limit.Limit{
		{limit.PerSecond(7).Staggered()}, {limit.PerSecond(7), limit.TokenBucket(7, time.Second, 7)},
	} {
		if p := find(limits); p.Script != nil || !p.Covers(limits) {
			t.Errorf("takes under %v go together", limits)
		}
	}
	if got := testing.AllocsPerRun(100, func() { all.Find(mine) }); got > 0 {
		t.Errorf("a plan that is known costs %v allocations", got)
	}
}
