package lease_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testtier"
	"github.com/sluice-go/sluice/limit"
)

// step is what happens in a small scope.
type step int

const (
	takeFirst  step = iota // a take of 2 in the first process
	takeSecond             // a take of 1 in the second
	soon                   // 5 ms: flushes leave, or replies arrive
	nextSlot               // 20 ms: another window or sub-bucket
	steps
)

// TestCreditInSmallScopes enumerates every order of a few takes in two processes, flushes, the ends of windows, and every fate of
// the first charges. No window holds more than P14 allows, and none is charged more than was admitted in it.
func TestCreditInSmallScopes(t *testing.T) {
	length, fates := testtier.Size(4, 5), testtier.Size(2, 3)
	for _, l := range []limit.Limit{
		limit.Fixed(12, 20*time.Millisecond).Aligned(), limit.Sliding(12, 40*time.Millisecond, 20*time.Millisecond), limit.Fixed(12, 30*time.Millisecond),
	} {
		scripts, most := 1, int64(0)
		for range length {
			scripts *= int(steps)
		}
		for range fates {
			scripts *= 4
		}
		synctest.Test(t, func(t *testing.T) {
			for n := range scripts {
				most = max(most, playScope(t, l, n, length, fates))
				if t.Failed() {
					return
				}
			}
		})
		t.Logf("%s: %d scripts, at most %d above Max", l, scripts, most)
		if most < 2 {
			t.Errorf("%s: at most %d above Max: the scopes show nothing", l, most)
		}
	}
}

// playScope plays one script, and returns by how much the fullest window was above Max.
func playScope(t *testing.T, l limit.Limit, n, length, fates int) (most int64) {
	time.Sleep(time.Duration(60-time.Now().UnixMilli()%60) * time.Millisecond) // a multiple of all windows
	p := &limit.Policy{Name: "p", Limits: []limit.Limit{l}}
	inner := newCreditor(4 * time.Millisecond)
	script, fated := n, make([]fate, fates)
	for i := range fated {
		fated[i], script = fate(script%4), script/4
	}
	inner.fate = func(n int) fate {
		if n < fates {
			return fated[n]
		}
		return executed
	}
	cfg := lease.Config{Slack: 0.7, Processes: 2, Batch: -1, Flush: 8 * time.Millisecond, Recheck: time.Millisecond} // allowance: 4
	processes := [2]*lease.Lease{backendtesting.NewLease(t, inner, cfg), backendtesting.NewLease(t, inner, cfg)}
	admitted := make(map[int64]int64)
	ask := func(process int, cost int64) {
		r, err := processes[process].Take(context.Background(), backend.Request{Key: "key", Policy: p, Cost: cost})
		if err == nil && r.Allowed {
			receipt := r.Receipt()
			end, _, _ := receipt.Charge(0)
			admitted[end] += cost
		}
	}
	ask(0, 6)
	ask(1, 1)
	told := ""
	for range length {
		next := step(script % int(steps))
		script /= int(steps)
		told += fmt.Sprint(next, " ")
		switch next {
		case takeFirst:
			ask(0, 2)
			ask(0, 2)
		case takeSecond:
			ask(1, 1)
			ask(1, 3)
		case soon:
			time.Sleep(5 * time.Millisecond)
		case nextSlot:
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, ls := range processes {
		_ = ls.Close()
	}
	for end := range admitted {
		held := admitted[end]
		if l.Algorithm == limit.SlidingWindow {
			held += admitted[end-l.Precision.Microseconds()]
		}
		if most = max(most, held-l.Max); held > l.Max+2*4 {
			t.Errorf("%s, steps %sfates %v: %d in a window", l, told, fated, held)
		}
		if inner.chargedTo[end] > admitted[end] {
			t.Errorf("%s, steps %sfates %v: %d charged to a window with %d", l, told, fated, inner.chargedTo[end], admitted[end])
		}
	}
	return most
}
