//go:build unix

package scripts_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
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

// TestTakeOneCounts: TakeOne, which compares and counts up text, does what package limit/state does wherever the number of digits
// changes.
func TestTakeOneCounts(t *testing.T) {
	t.Parallel()
	client := testserver.Redis(t).Client()
	const now = 1_767_225_600_000_000
	counts := []int64{1, 8, 9, 10, 19, 98, 99, 100, 199, 999, 123_456_789_012_349, 99_999_999_999_999, 1e15 - 1, limit.MaxCount - 2, limit.MaxCount - 1, limit.MaxCount}
	for _, used := range counts {
		for _, most := range counts {
			for _, refunded := range []int64{0, 1, 10} {
				for _, elapsed := range []int64{0, 3_599_999, 3_600_000} {
					if refunded > used {
						continue
					}
					policy := &limit.Policy{Limits: []limit.Limit{limit.Fixed(most, time.Hour)}}
					stored := fmt.Sprintf("f1h:%d,%d;", now/1000+3_600_000, used)
					if refunded > 0 {
						stored = fmt.Sprintf("f1h:%d,%d-%d;", now/1000+3_600_000, used, refunded)
					}
					at := state.At{Micros: now + elapsed*1000}
					plan := new(scripts.Plans).Find(policy.Limits)
					one := &scripts.KeyTake{Key: "k", Cost: 1}
					script := plan.ScriptFor(at.Micros, 1, one)
					if script != &scripts.TakeOne {
						t.Fatalf("a single take goes to %s", script.Name)
					}
					client.Set(t.Context(), "k", stored, time.Hour)
					var args scripts.Args
					plan.AppendArgs(&args, script, at.Micros, 1, func(int) *scripts.KeyTake { return one })
					reply, err := client.Eval(t.Context(), script.Source, []string{"k"}, args.List[1:]...).Text()
					if err != nil {
						t.Fatal(err)
					}
					charged, got, err := scripts.ParseTake(reply)
					want, _ := state.ParseState(stored)
					verdict := want.Take(policy, at, 1)
					if left := client.Get(t.Context(), "k").Val(); err != nil || charged != verdict.Allowed || got.String() != left {
						t.Errorf("%s of %d, %d ms later: %q, %v, stored is %q", stored, most, elapsed, reply, err, left)
					} else if charged && !got.Equal(&want) {
						t.Errorf("%s of %d, %d ms later: %s, want %s", stored, most, elapsed, got.String(), want.String())
					}
				}
			}
		}
	}
}

// TestTakeOneLeaves: what isn't the state of one fixed limit is left to take, unchanged.
func TestTakeOneLeaves(t *testing.T) {
	t.Parallel()
	client := testserver.Redis(t).Client()
	const now = 1_767_225_600_000_000
	at := fmt.Sprint(now/1000 + 1000)
	one := &scripts.KeyTake{Key: "k", Cost: 1}
	plan := new(scripts.Plans).Find([]limit.Limit{limit.PerHour(100)})
	var args scripts.Args
	plan.AppendArgs(&args, &scripts.TakeOne, now, 1, func(int) *scripts.KeyTake { return one })
	for _, stored := range []string{
		"f1h:" + at + ",5;f1m:" + at + ",2;", "f1h:" + at + ",5-1;f1m:" + at + ",2;", "f1m:" + at + ",5;", "f1h:" + at + ",5-1-1-1;",
		"f1h:" + at + "0,5;", "f1h:" + at + ",5", "f1h:" + at + ",-5;", "garbage", strings.Repeat("f1h:"+at+",5;", 20),
	} {
		client.Set(t.Context(), "k", stored, time.Hour)
		reply, err := client.Eval(t.Context(), scripts.TakeOne.Source, []string{"k"}, args.List[1:]...).Text()
		if left := client.Get(t.Context(), "k").Val(); err != nil || reply != "" || left != stored {
			t.Errorf("%q: %q, %v, and leaves %q", stored, reply, err, left)
		}
	}
}
