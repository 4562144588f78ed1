package simulation_test

import (
	"flag"
	"fmt"
	"strconv"
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
	sizesFlag = flag.String("sizes", "10,100,1000,3000,10000", "processes of the fleets, for -fleet: 10,000 take longer than all others")
	takeFlag  = flag.Float64("takeus", 11, "Redis CPU of a take, in microseconds, for -fleet: see TestFleetServer")
	limitFlag = flag.Float64("limitus", 5, "and for each limit beyond the first")
	backFlag  = flag.Float64("refundus", 16, "and of a refund,")
	loneFlag  = flag.Float64("chargeus", 17, "of a charge in a call of its own,")
	shareFlag = flag.Float64("sharedus", 3, "and of one that shares a call")
)

// workload is what a fleet of n processes is asked.
type workload struct {
	name  string
	keys  func(n int) int
	limit func(n int) []limit.Limit // of a key
	whole bool                      // a whole minute is counted: leases live that long
}

func perSecondAndMinute(second, minute int) []limit.Limit {
	return []limit.Limit{limit.PerSecond(int64(second)).Aligned(), limit.PerMinute(int64(minute)).Aligned()}
}

func tenants(int) int { return 100 }

func perMinute(each int) func(n int) []limit.Limit {
	return func(n int) []limit.Limit { return []limit.Limit{limit.PerMinute(int64(each * n)).Aligned()} }
}

var workloads = []workload{
	{"users", func(n int) int { return 100 * n }, func(int) []limit.Limit { return perSecondAndMinute(100, 1000) }, false},
	{"tenants", tenants, perMinute(6000), true},
	{"busy tenants", tenants, perMinute(600), true},
	{"exhausted tenants", tenants, perMinute(100), true},
	{"tenants, by the second", tenants, func(n int) []limit.Limit { return perSecondAndMinute(100*n, 6000*n) }, false},
	{"crowded tenants", tenants, func(n int) []limit.Limit { return perSecondAndMinute(10*n, 600*n) }, false},
}

// fleetOf is a fleet whose processes are each asked at a rate.
func fleetOf(w *workload, processes int, rate float64) simulation.Fleet {
	f := simulation.Fleet{
		Processes: processes, Rate: rate, Keys: w.keys(processes), Skew: 1.1,
		Policy: limit.Policy{Name: "fleet", Limits: w.limit(processes)}, Lease: lease.Config{Processes: processes},
		Trip: time.Millisecond, Warm: 6 * time.Second, Span: 3 * time.Second,
	}
	if w.whole {
		f.Start, f.Warm, f.Span = 30*time.Second, 30*time.Second, time.Minute
	}
	return f
}

// playFleet plays a fleet, and holds it to what leases promise.
func playFleet(t *testing.T, f simulation.Fleet, seed uint64) (r *simulation.FleetReport) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { r = f.Play(seed) })
	if r.Overbound != 0 {
		t.Errorf("%d times a window was above Max and the allowance of each process", r.Overbound)
	}
	if f.Lease.Slack == 0 && (r.Above != 0 || r.OnCredit != 0 || r.Charges != 0) {
		t.Errorf("without Slack %d were admitted above Max, %d on credit, and %d charges made", r.Above, r.OnCredit, r.Charges)
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
		early    float64 // most of the requests that are denied early
		stranded float64 // most of a key's Max
	}{{0, 0.15, 0.02, 1}, {1, 0.945, 0, 0.15}, {2, 0.9, 0.001, 1}, {3, 0.8, 0.002, 1}, {4, 0.3, 0.001, 1}, {5, 0.3, 0.01, 1}} {
		w := &workloads[test.workload]
		t.Run(w.name, func(t *testing.T) {
			f := fleetOf(w, 10, 50)
			if !w.whole {
				f.Rate, f.Span = 200, 8*time.Second
			}
			r := playFleet(t, f, 1)
			t.Logf("%.1f%% without a call, %+v", 100*free(r), *r)
			if got := free(r); got < test.least {
				t.Errorf("%.1f%% of the requests made no call, want %.0f%%", 100*got, 100*test.least)
			}
			if float64(r.Early) > test.early*float64(r.Requests) {
				t.Errorf("%d of %d requests were denied although there was room", r.Early, r.Requests)
			}
			if r.MostStrandedOf > test.stranded {
				t.Errorf("%.1f%% of a key's Max was leased", 100*r.MostStrandedOf)
			}
		})
	}
}

// TestFleetAcrossMinutes: the same where the longest window ends, too.
func TestFleetAcrossMinutes(t *testing.T) {
	f := fleetOf(&workloads[5], 10, 200)
	f.Warm, f.Span = 52*time.Second, 14*time.Second
	playFleet(t, f, 1)
}

// fleetFaults are what a rule that looks back can't foresee, and what goes wrong.
var fleetFaults = []struct {
	name   string
	change func(*simulation.Fleet)
}{
	{"nothing", func(*simulation.Fleet) {}},
	{"half a minute with a tenth of the requests, then all", func(f *simulation.Fleet) {
		f.Pace = func(since time.Duration) float64 {
			if (since+f.Start)%time.Minute < 30*time.Second {
				return 0.1
			}
			return 1
		}
	}},
	{"the same, then five times as many", func(f *simulation.Fleet) {
		f.Pace = func(since time.Duration) float64 {
			if (since+f.Start)%time.Minute < 30*time.Second {
				return 0.1
			}
			return 5
		}
	}},
	{"a fifth of the processes die", func(f *simulation.Fleet) { f.Deaths = 0.2 }},
	{"1 % of the replies are lost", func(f *simulation.Fleet) { f.Loses = 0.01 }},
	{"`Processes` a tenth", func(f *simulation.Fleet) { f.Lease.Processes = max(f.Processes/10, 1) }},
	{"`Processes` tenfold", func(f *simulation.Fleet) { f.Lease.Processes = 10 * f.Processes }},
}

// TestFleetFaults: whatever goes wrong, no window is above Max, what is stranded is within its bound, and all is back after
// Close but what was lost. With -fleet it prints a table of docs/capacity.md.
func TestFleetFaults(t *testing.T) {
	const processes = 10
	seeds := uint64(1)
	if *fleetFlag {
		seeds = 3
	}
	var b strings.Builder
	b.WriteString("| workload | what goes wrong | without a call | most of a key's Max | denied early |\n|---|---|---|---|---|\n")
	for _, w := range workloads[1:4] {
		for _, fault := range fleetFaults {
			least, stranded, early := 1.0, 0.0, 0.0
			for seed := range seeds {
				f := fleetOf(&w, processes, 50)
				fault.change(&f)
				r := playFleet(t, f, seed+1)
				share := float64(r.Early) / float64(r.Requests)
				least, stranded, early = min(least, free(r)), max(stranded, r.MostStrandedOf), max(early, share)
				if lossy := f.Deaths > 0 || f.Loses > 0; lossy != (r.Lost > 0) {
					t.Errorf("%s, %s: %d lost", w.name, fault.name, r.Lost)
				}
				if share > 0.02 {
					t.Errorf("%s, %s: %d of %d requests were denied although there was room", w.name, fault.name, r.Early, r.Requests)
				}
			}
			fmt.Fprintf(&b, "| %s | %s | %.1f%% | %.1f%% | %.2f%% |\n", w.name, fault.name, 100*least, 100*stranded, 100*early)
		}
	}
	t.Logf("\n\n%s", b.String())
}

// fleetSizes are the sizes that are played.
func fleetSizes(t *testing.T) (sizes []int) {
	if !*fleetFlag {
		return []int{10}
	}
	for _, n := range strings.Split(*sizesFlag, ",") {
		size, err := strconv.Atoi(n)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, size)
	}
	return sizes
}

// TestFleet prints the tables of docs/capacity.md with -fleet, and without it the rows of its smallest fleets.
func TestFleet(t *testing.T) {
	sizes := fleetSizes(t)
	t.Run("sizes", func(t *testing.T) {
		var rows []fleetRow
		for i := range workloads {
			w := &workloads[i]
			for _, n := range sizes {
				rows = append(rows, fleetRow{w.name, fleetOf(w, n, 50)})
			}
		}
		t.Logf("\n\n%s", tabulate(t, leased, rows))
	})
	if !*fleetFlag {
		return
	}
	t.Run("settings", func(t *testing.T) {
		var rows []fleetRow
		add := func(name string, change func(*simulation.Fleet)) {
			f := fleetOf(&workloads[1], 100, 50)
			change(&f)
			rows = append(rows, fleetRow{name, f})
		}
		add("defaults", func(*simulation.Fleet) {})
		add("Batch: 20", func(f *simulation.Fleet) { f.Lease.Batch = 20 })
		add("Batch: 20, Steady", func(f *simulation.Fleet) { f.Lease.Batch, f.Lease.Steady = 20, true })
		add("Processes: 10 (wrong)", func(f *simulation.Fleet) { f.Lease.Processes = 10 })
		add("Processes: 1000 (wrong)", func(f *simulation.Fleet) { f.Lease.Processes = 1000 })
		add("a tenth of the requests", func(f *simulation.Fleet) { f.Rate = 5 })
		add("ten times the keys", func(f *simulation.Fleet) { f.Keys *= 10 })
		add("a tenth of the keys", func(f *simulation.Fleet) { f.Keys /= 10 })
		t.Logf("\n\n%s", tabulate(t, leased, rows))
	})
}
