//go:build linux

package integration_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestServerClock steps the clock of a server forward and back under load, by a shim that the server is started with.
//
//   - A step within a window changes nothing but how long it lasts.
//   - A step forward by D ends windows up to D early, so that each has Max once more. Until the next heartbeat processes have
//     the old time, while the server has dropped what is over by its new one: for that moment those without floors begin
//     another window, which is a second Max.
//   - A step back by D keeps windows up to D longer. Nothing is admitted on account of it.
func TestServerClock(t *testing.T) {
	t.Parallel()
	const processes, key = 3, "user:1"
	l := limit.PerHour(100)
	clock := testserver.NewClock(t)
	s := ownProcess(testserver.ClockedRedis(t, clock))
	groups, _ := groupsOf(s.addr)
	open := func(prefix string, floors bool) *contender {
		cfg := router.Config{Backend: patient}
		cfg.Backend.Prefix = prefix
		return ours(t, processes, setup{groups: groups, policy: one(l), failure: throttler.FailClosed, floors: floors, router: cfg})
	}
	with, without := open("with:", true), open("without:", false)
	plain := redisRate(t, 1, s.addr, l)
	all := []*contender{with, without, plain}

	// at is the server's time, as a process has it.
	at := func(c *contender, process int) time.Time { return peek(t, c.sluiceOf(process), "another").At }
	// step lets all call while the clock is stepped, and until each knows of it and is denied again, in a new window if the step
	// renews it. It returns what each contender was admitted.
	step := func(by time.Duration, renews bool) (admitted [3]int64) {
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		var sums [3]atomic.Int64
		for i, c := range all {
			for process := range c.processes {
				running.Go(func() {
					for ctx.Err() == nil {
						if ok, _ := c.call(process, key); ok {
							sums[i].Add(1)
						}
						time.Sleep(500 * time.Microsecond)
					}
				})
			}
		}
		before := at(with, 0)
		clock.Step(t, by)
		for _, c := range all[:2] {
			for process := range processes {
				await(t, "a process has the server's new time", func() bool {
					return (at(c, process).Sub(before) - by).Abs() < by.Abs()/2
				})
			}
		}
		if renews {
			await(t, "a new window is used", func() bool { return sums[0].Load() > 0 })
		}
		time.Sleep(1500 * time.Millisecond) // a local view asks again every second
		stop()
		running.Wait()
		for i := range sums {
			admitted[i] = sums[i].Load()
		}
		return admitted
	}
	resetOf := func() time.Time {
		d := peek(t, with.sluiceOf(0), key)
		if d.Remaining < 0 || d.Remaining > l.Max {
			t.Errorf("%d left of %d", d.Remaining, l.Max)
		}
		return d.ResetAt
	}

	// Within the window, with a reservation that is given back after the step.
	for _, c := range all {
		c.take(60, key)
	}
	reset := resetOf()
	reserved, err := with.sluiceOf(0).Reserve(t.Context(), key, 30)
	if err != nil || !reserved.Decision().Allowed {
		t.Fatal(err)
	}
	first := step(50*time.Minute, false)
	if err := reserved.Cancel(t.Context()); err != nil {
		t.Error(err)
	}
	first[0] += with.take(int(l.Max), key)
	if first[0] != l.Max-60 || first[1] != l.Max-60 || !resetOf().Equal(reset) {
		t.Errorf("a step within the window: %d and %d admitted of %d left, reset moved by %v",
			first[0], first[1], l.Max-60, resetOf().Sub(reset))
	}

	var over, bound int64
	var withoutOver, plainOver int64
	for _, by := range []time.Duration{2 * time.Hour, -2 * time.Hour, time.Hour, 3 * time.Hour, -time.Minute} {
		before := resetOf()
		left := before.Sub(at(with, 0))
		admitted := step(by, by > left)
		t.Logf("step by %v with %v to the reset: %v admitted", by, left.Round(time.Second), admitted)
		over, withoutOver, plainOver = over+admitted[0], withoutOver+admitted[1], plainOver+admitted[2]
		if by > left {
			bound += l.Max
			continue
		}
		if admitted[0] > 0 || !resetOf().Equal(before) {
			t.Errorf("a step by %v within a window: %d admitted, reset moved by %v", by, admitted[0], resetOf().Sub(before))
		}
	}
	if withoutOver > 2*bound {
		t.Errorf("without floors %d are admitted above Max, the bound is %d", withoutOver, 2*bound)
	}
	shown, peer := of(with, over), of(plain, plainOver)
	shown.note = fmt.Sprintf("without floors over %d of at most %d", withoutOver, 2*bound)
	report(t, "server-clock", result{bound: bound, formula: "Max for each of 2 windows that a step ended", sluice: shown, redisRate: &peer})
}
