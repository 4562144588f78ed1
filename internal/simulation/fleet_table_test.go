package simulation_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/internal/simulation"
)

// fleetRow is a row of a table.
type fleetRow struct {
	name  string
	fleet simulation.Fleet
}

// fleetColumn is a column of it.
type fleetColumn struct {
	name string
	cell func(f *simulation.Fleet, r *simulation.FleetReport) string
}

var (
	asked = []fleetColumn{
		{"processes", func(f *simulation.Fleet, _ *simulation.FleetReport) string { return fmt.Sprint(f.Processes) }},
		{"requests/s", perSecond(func(r *simulation.FleetReport) int64 { return r.Requests })},
		{"takes/s", perSecond(func(r *simulation.FleetReport) int64 { return r.Forwarded + r.Fetches })},
		{"refunds/s", perSecond(func(r *simulation.FleetReport) int64 { return r.Refunds })},
	}
	charged = []fleetColumn{
		{"charges/s", perSecond(func(r *simulation.FleetReport) int64 { return r.Charges })},
		{"in calls/s", perSecond((*simulation.FleetReport).ChargeCalls)},
	}
	saved = []fleetColumn{
		{"without a call", percentage(1, free)},
	}
	atOnce = []fleetColumn{
		{"without waiting", percentage(1, func(r *simulation.FleetReport) float64 { return 1 - float64(r.Waited)/float64(r.Requests) })},
	}
	stranded = []fleetColumn{
		{"largest batch", func(_ *simulation.Fleet, r *simulation.FleetReport) string { return fmt.Sprint(r.LargestBatch) }},
		{"stranded, mean", figure(func(r *simulation.FleetReport) float64 { return r.Stranded })},
		{"most", figure(func(r *simulation.FleetReport) float64 { return float64(r.MostStranded) })},
		{"bound", figure(func(r *simulation.FleetReport) float64 { return float64(r.Bound) })},
		{"most of a key's Max", percentage(1, func(r *simulation.FleetReport) float64 { return r.MostStrandedOf })},
	}
	owed = []fleetColumn{
		{"stranded, mean", figure(func(r *simulation.FleetReport) float64 { return r.Stranded })},
		{"owed, mean", figure(func(r *simulation.FleetReport) float64 { return r.Debt })},
		{"most", figure(func(r *simulation.FleetReport) float64 { return float64(r.MostDebt) })},
		{"above Max", percentage(2, func(r *simulation.FleetReport) float64 { return r.MostAbove })},
		{"bound", percentage(1, func(r *simulation.FleetReport) float64 { return r.AboveBound })},
	}
	needed = []fleetColumn{
		{"denied early", percentage(2, func(r *simulation.FleetReport) float64 { return float64(r.Early) / float64(r.Requests) })},
		{"Redis cores", func(f *simulation.Fleet, r *simulation.FleetReport) string { return fmt.Sprintf("%.2f", cores(f, r)) }},
		{"groups", func(f *simulation.Fleet, r *simulation.FleetReport) string {
			return fmt.Sprint(max(1, math.Ceil(cores(f, r)/busiest)))
		}},
	}

	leased   = slices.Concat(asked, saved, stranded, needed)
	onCredit = slices.Concat(asked, charged, saved, atOnce, owed, needed)
)

func perSecond(of func(*simulation.FleetReport) int64) func(*simulation.Fleet, *simulation.FleetReport) string {
	return func(f *simulation.Fleet, r *simulation.FleetReport) string {
		return short(float64(of(r)) / f.Span.Seconds())
	}
}

func figure(of func(*simulation.FleetReport) float64) func(*simulation.Fleet, *simulation.FleetReport) string {
	return func(_ *simulation.Fleet, r *simulation.FleetReport) string { return short(of(r)) }
}

func percentage(digits int, of func(*simulation.FleetReport) float64) func(*simulation.Fleet, *simulation.FleetReport) string {
	return func(_ *simulation.Fleet, r *simulation.FleetReport) string {
		return fmt.Sprintf("%.*f%%", digits, 100*of(r))
	}
}

// cores is how many cores of Redis the calls take.
func cores(f *simulation.Fleet, r *simulation.FleetReport) float64 {
	more := *limitFlag * float64(len(f.Policy.Limits)-1)
	micros := float64(r.Forwarded+r.Fetches)*(*takeFlag+more) + float64(r.Refunds)**backFlag +
		float64(r.Charges-r.SharedCharges)*(*loneFlag+more) + float64(r.SharedCharges)*(*shareFlag+more)
	return micros / 1e6 / f.Span.Seconds()
}

// fleetsPlayed are the reports of fleets, which take minutes and are in two tables.
var fleetsPlayed = make(map[string]*simulation.FleetReport)

// tabulate plays rows, each in a subtest, and makes a table of them.
func tabulate(t *testing.T, columns []fleetColumn, rows []fleetRow) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| workload |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, row := range rows {
		t.Run(fmt.Sprintf("%s/%d", row.name, row.fleet.Processes), func(t *testing.T) {
			played := fmt.Sprintf("%+v", row.fleet)
			r := fleetsPlayed[played]
			if r == nil {
				r = playFleet(t, row.fleet, 1)
				fleetsPlayed[played] = r
			}
			cells := "| " + row.name + " |"
			for _, c := range columns {
				cells += " " + c.cell(&row.fleet, r) + " |"
			}
			t.Log(cells)
			b.WriteString(cells + "\n")
		})
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
