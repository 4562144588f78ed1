package simulation_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/simulation"
)

// What fleets on credit are played with. A process with 50 requests a second has less than three in the default Flush.
const (
	fleetSlack = 0.05
	fleetFlush = time.Second
)

// fleetOnCredit is a fleet on credit, and whether its limits are large enough to gain by it.
func fleetOnCredit(w *workload, processes int) (f simulation.Fleet, gains bool) {
	f = fleetOf(w, processes, 50)
	f.Lease.Slack, f.Lease.Flush = fleetSlack, fleetFlush
	return f, allows(&f)
}

// allows is whether a process may owe anything, under any limit.
func allows(f *simulation.Fleet) bool {
	bound := lease.BoundError{Slack: f.Lease.Slack, Processes: f.Lease.Processes, Least: f.Lease.Least}
	for _, l := range f.Policy.Limits {
		if bound.Above(l) == 0 {
			return false
		}
	}
	return true
}

// TestFleetOnCredit plays fleets on credit beside the same with leases only. With -fleet it prints tables of docs/capacity.md.
func TestFleetOnCredit(t *testing.T) {
	sizes := fleetSizes(t)
	t.Run("sizes", func(t *testing.T) {
		var rows []fleetRow
		var small []string
		for i := range workloads {
			w := &workloads[i]
			for _, n := range sizes {
				if f, gains := fleetOnCredit(w, n); gains {
					rows = append(rows, fleetRow{w.name + ", leased", fleetOf(w, n, 50)}, fleetRow{w.name + ", on credit", f})
				} else if n == sizes[0] {
					small = append(small, w.name)
				}
			}
		}
		t.Logf("\n\n%s\nless than Processes / Slack: %s", tabulate(t, onCredit, rows), strings.Join(small, ", "))
	})
	if !*fleetFlag {
		return
	}
	t.Run("settings", func(t *testing.T) {
		var rows []fleetRow
		add := func(w, n int, name string, change func(f *simulation.Fleet)) {
			f, _ := fleetOnCredit(&workloads[w], n)
			change(&f)
			rows = append(rows, fleetRow{workloads[w].name + ", " + name, f})
		}
		for _, w := range []int{1, 4} {
			add(w, 100, "Flush: 50ms", func(f *simulation.Fleet) { f.Lease.Flush = 50 * time.Millisecond })
			add(w, 100, "Flush: 250ms", func(f *simulation.Fleet) { f.Lease.Flush = 250 * time.Millisecond })
			add(w, 100, "Flush: 1s", func(*simulation.Fleet) {})
			add(w, 100, "Flush: 5s", func(f *simulation.Fleet) { f.Lease.Flush = 5 * time.Second })
		}
		add(1, 100, "a tenth of the requests", func(f *simulation.Fleet) { f.Rate /= 10 })
		add(1, 100, "ten times the keys", func(f *simulation.Fleet) { f.Keys *= 10 })
		add(4, 100, "Slack: 0.01", func(f *simulation.Fleet) { f.Lease.Slack = 0.01 })
		add(4, 100, "Slack: 0.2", func(f *simulation.Fleet) { f.Lease.Slack = 0.2 })
		add(0, 10, "Least: 1", func(f *simulation.Fleet) { f.Lease.Least = 1 })
		add(5, 10, "Least: 1", func(f *simulation.Fleet) { f.Lease.Least = 1 })
		t.Logf("\n\n%s", tabulate(t, onCredit, rows))
	})
}

// TestFleetCreditPromises plays small fleets: they save about what docs/capacity.md says, and no window holds more than Max and an
// allowance for each process. Where limits are too small for an allowance nothing is on credit.
func TestFleetCreditPromises(t *testing.T) {
	for _, test := range []struct {
		workload int

		// Shares of the requests: without a call, that waited for one, and that were denied early.
		least, mostWaited, early float64
	}{{0, 0.12, 0.82, 0.02}, {1, 0.92, 0.01, 0}, {2, 0.91, 0.02, 0.001}, {3, 0.84, 0.08, 0.002}, {4, 0.74, 0.1, 0.001}, {5, 0.2, 0.73, 0.01}} {
		w := &workloads[test.workload]
		t.Run(w.name, func(t *testing.T) {
			f, gains := fleetOnCredit(w, 10)
			r := playFleet(t, f, 1)
			waited := float64(r.Waited) / float64(r.Requests)
			t.Logf("%.1f%% without a call, %.1f%% waited, %+v", 100*free(r), 100*waited, *r)
			if got := free(r); got < test.least {
				t.Errorf("%.1f%% of the requests made no call, want %.0f%%", 100*got, 100*test.least)
			}
			if waited > test.mostWaited {
				t.Errorf("%.1f%% of the requests waited for a reply, want %.0f%%", 100*waited, 100*test.mostWaited)
			}
			if gains != (r.OnCredit > 0) || gains != (r.Charges > 0) {
				t.Errorf("%d on credit, %d charges", r.OnCredit, r.Charges)
			}
			if float64(r.Early) > test.early*float64(r.Requests) {
				t.Errorf("%d of %d requests were denied although there was room", r.Early, r.Requests)
			}
		})
	}
}

// TestFleetCreditBound comes close to the bound: a key gets more than its Max, and processes hear late of each other. Charges
// outlive the seconds that they are for, some processes die owing, and replies are lost.
func TestFleetCreditBound(t *testing.T) {
	for _, test := range []struct {
		name     string
		workload int
		rate     float64
		keys     int
		slack    float64
		flush    time.Duration
		trip     time.Duration
		faults   bool
	}{
		{"minutes", 3, 50, 20, fleetSlack, 10 * time.Second, time.Millisecond, false},
		{"minutes, with faults", 3, 50, 20, fleetSlack, 10 * time.Second, time.Millisecond, true},
		{"seconds", 4, 1000, 10, 0.2, time.Second, 80 * time.Millisecond, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := fleetOf(&workloads[test.workload], 10, test.rate)
			f.Keys, f.Trip, f.Lease.Slack, f.Lease.Flush = test.keys, test.trip, test.slack, test.flush
			if test.faults {
				f.Deaths, f.Loses = 0.2, 0.01
			}
			r := playFleet(t, f, 1)
			shown := fmt.Sprintf("%.1f%% above Max, may be %.1f%%", 100*r.MostAbove, 100*r.AboveBound)
			t.Logf("%s: %+v", shown, *r)
			if !test.faults && r.MostAbove < r.AboveBound/8 {
				t.Errorf("%s: the test shows little", shown)
			}
			if test.faults != (r.Uncharged > 0) {
				t.Errorf("%d were never charged", r.Uncharged)
			}
		})
	}
}
