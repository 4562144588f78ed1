//go:build unix

package integration_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// TestLeaseKilled lets three processes share a limit by leases of 20: one is killed, one stopped for a while, and the two
// that live close what they have.
func TestLeaseKilled(t *testing.T) {
	t.Parallel()
	const batch = 20
	l := limit.PerHour(600)
	s := startRedis(t)
	groups, _ := groupsOf(s.addr)
	j := job{Groups: groups, Limit: l.String(), Batch: batch, Among: 3, Pause: 2 * time.Millisecond}
	all := []*process{startChild(t, j), startChild(t, j), startChild(t, j)}
	total := func() (sum int64) {
		for _, p := range all {
			n, _ := p.admitted(t)
			sum += n
		}
		return sum
	}
	denied := func(p *process) func() bool {
		return func() bool { _, denials := p.admitted(t); return denials > 20 }
	}
	await(t, "all of them are admitted", func() bool {
		for _, p := range all {
			if n, _ := p.admitted(t); n < 10 {
				return false
			}
		}
		return total() >= 150
	})
	all[0].signal(syscall.SIGKILL)
	<-all[0].done
	await(t, "half is used", func() bool { return total() >= 300 })
	all[1].signal(syscall.SIGSTOP)
	await(t, "the third is denied", denied(all[2]))
	all[1].signal(syscall.SIGCONT)
	await(t, "the second is denied", denied(all[1]))
	leased := 0
	for _, p := range all[1:] {
		p.close(t)
		for _, d := range p.decisions {
			if d.source == "leased" {
				leased++
			}
		}
	}
	c := &contender{name: "Sluice"}
	stranded := c.counted(t, s.addr, "user:1", l) - total()
	if stranded > batch || stranded < 0 {
		t.Errorf("%d stranded, of one process that was killed with a lease of at most %d", stranded, batch)
	}
	if leased < 100 {
		t.Errorf("only %d were decided by leases: the test shows nothing", leased)
	}
	shown := figures{over: max(0, total()-l.Max)}
	shown.note = fmt.Sprintf("%d stranded of at most %d", stranded, batch)
	report(t, "lease-killed", result{sluice: shown})
}

// TestLeasePaused stops a process that has a lease until the lease's window is over, three times or more.
func TestLeasePaused(t *testing.T) {
	t.Parallel()
	l := limit.Fixed(200, time.Second)
	s := startRedis(t)
	groups, _ := groupsOf(s.addr)
	j := job{Groups: groups, Limit: l.String(), Batch: 30, Among: 2, Pause: time.Millisecond}
	a, b := startChild(t, j), startChild(t, j)
	var perWindow map[int64]int64
	var late, leased, full int
	count := func() {
		perWindow, late, leased, full = make(map[int64]int64), 0, 0, 0
		for _, p := range []*process{a, b} {
			p.mu.Lock()
			for _, d := range p.decisions {
				if !d.allowed {
					continue
				}
				perWindow[d.reset]++
				if d.at >= d.reset {
					late++
				}
				if d.source == "leased" {
					leased++
				}
			}
			p.mu.Unlock()
		}
		for _, n := range perWindow {
			if n >= l.Max*9/10 {
				full++
			}
		}
	}
	inLease := 0
	for round := 0; round < 3 || inLease == 0 || leased < 100 || full == 0; round++ {
		if round == 20 { // a busy machine needs more rounds until it fills a window
			t.Fatalf("paused %d times with a lease, %d decided by leases, %d full windows: the test shows nothing", inLease, leased, full)
		}
		before, _ := a.admitted(t)
		await(t, "it is admitted", func() bool { n, _ := a.admitted(t); return n > before+3 })
		a.signal(syscall.SIGSTOP)
		a.mu.Lock()
		if a.decisions[len(a.decisions)-1].source == "leased" {
			inLease++
		}
		a.mu.Unlock()
		time.Sleep(l.Window * 3 / 2) // the fault lasts
		a.signal(syscall.SIGCONT)
		count()
	}
	before, _ := a.admitted(t)
	await(t, "it is admitted again", func() bool { n, _ := a.admitted(t); return n > before })
	a.close(t)
	b.close(t)
	count()
	if late > 0 {
		t.Errorf("%d admitted after their window", late)
	}
	var over int64
	for _, n := range perWindow {
		over += max(0, n-l.Max)
	}
	shown := figures{over: over, note: fmt.Sprintf("%d windows, %d full, paused with a lease %d times", len(perWindow), full, inLease)}
	report(t, "lease-paused", result{sluice: shown})
}
