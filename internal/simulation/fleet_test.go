package simulation_test

import (
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/simulation"
	"github.com/sluice-go/sluice/limit"
)

var (
	fleetFlag = flag.Bool("fleet", false, "play large fleets, and print the tables of docs/capacity.md")
	takeFlag  = flag.Float64("takeus", 11, "Redis CPU of a take, in microseconds, for -fleet: see TestFleetServer")
	limitFlag = flag.Float64("limitus", 5, "and for each limit beyond the first")
	backFlag  = flag.Float64("refundus", 16, "and of a refund")
)

// workload is what a fleet of n processes is asked.
type workload struct {
	name  string
	keys  func(n int) int
	limit func(n int) []limit.Limit // of a key
	upTo  int                       // processes
}

func perSecondAndMinute(second, minute int) []limit.Limit {
	return []limit.Limit{limit.PerSecond(int64(second)).Aligned(), limit.PerMinute(int64(minute)).Aligned()}
}

var workloads = []workload{
	{"users", func(n int) int { return 100 * n }, func(int) []limit.Limit { return perSecondAndMinute(100, 1000) }, 3000},
	{"tenants", func(int) int { return 100 }, func(n int) []limit.Limit {
		return []limit.Limit{limit.PerMinute(int64(6000 * n)).Aligned()}
	}, 3000},
	{"tenants, by the second", func(int) int { return 100 }, func(n int) []limit.Limit { return perSecondAndMinute(100*n, 6000*n) }, 3000},
	{"crowded tenants", func(int) int { return 100 }, func(n int) []limit.Limit { return perSecondAndMinute(10*n, 600*n) }, 1000},
}

// fleetOf is a fleet whose processes are each asked at a rate.
func fleetOf(w *workload, processes int, rate float64) simulation.Fleet {
	return simulation.Fleet{
		Processes: processes, Rate: rate, Keys: w.keys(processes), Skew: 1.1,
		Policy: limit.Policy{Name: "fleet", Limits: w.limit(processes)}, Lease: lease.Config{Processes: processes},
		Trip: time.Millisecond, Warm: 6 * time.Second, Span: 3 * time.Second,
	}
}

// playFleet plays a fleet, and holds it to what leases promise.
func playFleet(t *testing.T, f simulation.Fleet) (r *simulation.FleetReport) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { r = f.Play(1) })
	if r.Above != 0 {
		t.Errorf("%d were admitted above Max", r.Above)
	}
	if r.Unbounded != 0 {
		t.Errorf("%d times more was stranded of a key than a batch for each process", r.Unbounded)
	}
	if r.Kept != 0 {
		t.Errorf("%d are charged after all have closed, and were not admitted", r.Kept)
	}
	if r.Requests == 0 || r.Admitted == 0 {
		t.Errorf("%+v: nothing happened", r)
	}
	return r
}

// free is the share of requests that were decided without a call, refunds being calls, too.
func free(r *simulation.FleetReport) float64 { return 1 - float64(r.Calls())/float64(r.Requests) }

// TestFleetPromises plays small fleets: no window is above Max, what is stranded is within its bound, all is back after
// Close, and calls are saved where keys are hot.
func TestFleetPromises(t *testing.T) {
	for _, test := range []struct {
		workload int
		least    float64 // share of requests without a call
	}{{0, 0.15}, {1, 0.65}, {2, 0.3}, {3, 0.3}} {
		w := &workloads[test.workload]
		t.Run(w.name, func(t *testing.T) {
			f := fleetOf(w, 10, 200)
			f.Span = 8 * time.Second
			r := playFleet(t, f)
			t.Logf("%.1f%% without a call, %+v", 100*free(r), *r)
			if got := free(r); got < test.least {
				t.Errorf("%.1f%% of the requests made no call, want %.0f%%", 100*got, 100*test.least)
			}
			if r.Early*50 > r.Requests {
				t.Errorf("%d of %d requests were denied although there was room", r.Early, r.Requests)
			}
		})
	}
}

// TestFleetAcrossMinutes: the same where the longest window ends, too.
func TestFleetAcrossMinutes(t *testing.T) {
	f := fleetOf(&workloads[3], 10, 200)
	f.Warm, f.Span = 52*time.Second, 14*time.Second
	playFleet(t, f)
}

// TestFleet prints the tables of docs/capacity.md with -fleet, and without it the rows of its smallest fleets.
func TestFleet(t *testing.T) {
	sizes := []int{10}
	if *fleetFlag {
		sizes = []int{10, 100, 1000, 3000}
	}
	t.Run("sizes", func(t *testing.T) {
		var rows []fleetRow
		for i := range workloads {
			w := &workloads[i]
			for _, n := range sizes {
				if n <= w.upTo {
					rows = append(rows, fleetRow{w.name, fleetOf(w, n, 50)})
				}
			}
		}
		t.Logf("\n\n%s", tabulate(t, rows))
	})
	if !*fleetFlag {
		return
	}
	t.Run("example", func(t *testing.T) {
		defaults := fleetOf(&workloads[1], 3000, 200)
		small := defaults
		small.Lease.Batch = 20
		t.Logf("\n\n%s", tabulate(t, []fleetRow{{"tenants", defaults}, {"tenants, Batch: 20", small}}))
	})
	t.Run("settings", func(t *testing.T) {
		var rows []fleetRow
		add := func(name string, change func(*simulation.Fleet)) {
			f := fleetOf(&workloads[1], 100, 200)
			f.Warm, f.Span = 12*time.Second, 20*time.Second
			change(&f)
			rows = append(rows, fleetRow{name, f})
		}
		add("defaults", func(*simulation.Fleet) {})
		add("Life: 2 s", func(f *simulation.Fleet) { f.Lease.Life = 2 * time.Second })
		add("Life: 20 s", func(f *simulation.Fleet) { f.Lease.Life, f.Warm = 20*time.Second, 30*time.Second })
		add("Batch: 20", func(f *simulation.Fleet) { f.Lease.Batch = 20 })
		add("Batch: 20, Steady", func(f *simulation.Fleet) { f.Lease.Batch, f.Lease.Steady = 20, true })
		add("Processes: 10 (wrong)", func(f *simulation.Fleet) { f.Lease.Processes = 10 })
		add("Processes: 1000 (wrong)", func(f *simulation.Fleet) { f.Lease.Processes = 1000 })
		add("a tenth of the requests", func(f *simulation.Fleet) { f.Rate = 20 })
		add("ten times the keys", func(f *simulation.Fleet) { f.Keys *= 10 })
		add("a tenth of the keys", func(f *simulation.Fleet) { f.Keys /= 10 })
		t.Logf("\n\n%s", tabulate(t, rows))
	})
}

// fleetRow is a row of a table.
type fleetRow struct {
	name  string
	fleet simulation.Fleet
}

// tabulate plays all rows, and makes a table of them.
func tabulate(t *testing.T, rows []fleetRow) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| workload | processes | requests/s | takes/s | refunds/s | without a call | largest batch | stranded, mean | most | " +
		"bound | most of a key's Max | denied early | Redis cores | groups |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range rows {
		f := row.fleet
		start := time.Now()
		r := playFleet(t, f)
		t.Logf("%s, %d processes: played in %s", row.name, f.Processes, time.Since(start).Round(time.Millisecond))
		second := f.Span.Seconds()
		takes, refunds := float64(r.Forwarded+r.Fetches)/second, float64(r.Refunds)/second
		take := *takeFlag + *limitFlag*float64(len(f.Policy.Limits)-1)
		cores := (takes*take + refunds**backFlag) / 1e6
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %.1f%% | %d | %s | %s | %s | %.1f%% | %.2f%% | %.2f | %d |\n", row.name, f.Processes,
			short(float64(r.Requests)/second), short(takes), short(refunds),
			100*free(r), r.LargestBatch, short(r.Stranded), short(float64(r.MostStranded)), short(float64(r.Bound)),
			100*r.MostStrandedOf, 100*float64(r.Early)/float64(r.Requests), cores, int(max(1, math.Ceil(cores/busiest))))
	}
	return b.String()
}

// busiest is how much of its core a Redis should be busy with takes, at a steady rate.
const busiest = 0.5

// short is a number with three digits that count.
func short(n float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e6, "M"}, {1e3, "k"}} {
		if n >= 10*unit.of {
			return fmt.Sprintf("%.*f%s", digits(n/unit.of), n/unit.of, unit.name)
		}
	}
	return fmt.Sprintf("%.0f", n)
}

func digits(n float64) int {
	if n < 100 {
		return 1
	}
	return 0
}
