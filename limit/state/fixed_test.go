package state_test

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

func TestFixedFirstRequest(t *testing.T) {
	var s state.State
	play(t, &s, policyOf(limit.Fixed(3, time.Minute)), []step{
		{12345 * time.Millisecond, 1, "ok left=2 reset=1m12.345s"}, // the window starts here
		{40 * time.Second, 2, "ok left=0 reset=1m12.345s"},         // and its reset never moves
		{60 * time.Second, 1, "no left=0 reset=1m12.345s retry=12.345s"},
		{72345*time.Millisecond - 1000, 1, "no left=0 reset=1m12.345s retry=1µs"},
		{72345 * time.Millisecond, 2, "ok left=1 reset=2m12.345s"},
		{80 * time.Second, 2, "no left=1 reset=2m12.345s retry=52.345s"},
		{80 * time.Second, 1, "ok left=0 reset=2m12.345s"},
		{time.Hour + 999*time.Microsecond, 3, "ok left=0 reset=1h1m0s"}, // resets are whole milliseconds
	})
}

func TestFixedAligned(t *testing.T) {
	var s state.State
	play(t, &s, policyOf(limit.Fixed(3, time.Minute).Aligned()), []step{
		{59 * time.Second, 3, "ok left=0 reset=1m0s"},
		{60*time.Second - time.Microsecond, 1, "no left=0 reset=1m0s retry=1µs"},
		{60 * time.Second, 1, "ok left=2 reset=2m0s"},
		{5 * time.Minute, 1, "ok left=2 reset=6m0s"},
	})
}

func TestFixedStaggered(t *testing.T) {
	p := policyOf(limit.Fixed(3, time.Minute).Staggered())
	var s state.State
	for _, step := range []step{
		{0, 3, "ok left=0 reset=7.001s"}, // 7001 ms past each full minute
		{7 * time.Second, 1, "no left=0 reset=7.001s retry=1ms"},
		{7001 * time.Millisecond, 1, "ok left=2 reset=1m7.001s"},
		{3 * time.Minute, 1, "ok left=2 reset=3m7.001s"},
	} {
		now := at(step.at)
		now.Phase = 5*60_000 + 7001
		v := s.Take(p, now, step.cost)
		if got := say(&v); got != step.want {
			t.Errorf("%d at %s: got %q, want %q", step.cost, step.at, got, step.want)
		}
	}
	// Before the epoch's first reset, too.
	s = state.State{}
	v := s.Take(p, state.At{Micros: 0, Phase: 7001}, 1)
	if got := v.Binding().ResetAt.UnixMilli(); got != 7001 {
		t.Errorf("the first reset of all is %d, want 7001", got)
	}
}

// TestFixedStaggeredSpreads: hashes of keys spread the resets evenly over the window.
func TestFixedStaggeredSpreads(t *testing.T) {
	p := policyOf(limit.Fixed(1, time.Minute).Staggered())
	var tenths [10]int
	for i := range uint64(10_000) {
		now := at(0)
		now.Phase = i * 0x9e3779b97f4a7c15 // any decent hash; here the golden ratio
		var s state.State
		v := s.Take(p, now, 1)
		ahead := v.Binding().ResetAt.Sub(start)
		if ahead <= 0 || ahead > time.Minute {
			t.Fatalf("phase %d: the reset is %s ahead", now.Phase, ahead)
		}
		tenths[(ahead-1)/(6*time.Second)]++
	}
	for i, n := range tenths {
		if n < 900 || n > 1100 {
			t.Errorf("of 10000 keys %d reset in tenth %d of the window: %v", n, i, tenths)
		}
	}
}

// A clock that steps back meets the window it left: nothing is admitted beyond it, and its reset stays.
func TestFixedClockSteppingBack(t *testing.T) {
	for _, l := range []limit.Limit{limit.Fixed(3, time.Minute), limit.Fixed(3, time.Minute).Aligned()} {
		var s state.State
		play(t, &s, policyOf(l), []step{
			{60 * time.Second, 2, "ok left=1 reset=2m0s"},
			{59 * time.Second, 1, "ok left=0 reset=2m0s"},
			{0, 1, "no left=0 reset=2m0s retry=2m0s"},
			{-time.Hour, 1, "no left=0 reset=2m0s retry=1h2m0s"},
			{2 * time.Minute, 3, "ok left=0 reset=3m0s"},
		})
	}
}

// A changed Max applies at once to the running window, in both directions.
func TestFixedChangedMax(t *testing.T) {
	var s state.State
	play(t, &s, policyOf(limit.Fixed(3, time.Minute)), []step{{0, 3, "ok left=0 reset=1m0s"}, {0, 1, "no left=0 reset=1m0s retry=1m0s"}})
	play(t, &s, policyOf(limit.Fixed(5, time.Minute)), []step{{time.Second, 2, "ok left=0 reset=1m0s"}})
	play(t, &s, policyOf(limit.Fixed(4, time.Minute)), []step{{2 * time.Second, 1, "no left=0 reset=1m0s retry=58s"}})
	play(t, &s, policyOf(limit.Fixed(6, time.Minute)), []step{{3 * time.Second, 1, "ok left=0 reset=1m0s"}})
}

// What was charged never passes MaxCount, whatever was given back in between.
func TestFixedNeverOverflows(t *testing.T) {
	p := policyOf(limit.Fixed(limit.MaxCount, time.Minute))
	var s state.State
	v := s.Take(p, at(0), limit.MaxCount)
	r := v.Receipt()
	s.Refund(at(0), &r, limit.MaxCount)
	play(t, &s, p, []step{
		{time.Second, 1, "no left=9007199254740991 reset=1m0s retry=59s"},
		{time.Minute, limit.MaxCount, "ok left=0 reset=2m0s"},
	})
}
