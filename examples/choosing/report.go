package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/picture"
)

// table is a table in Markdown.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| workload | way | requests | calls for 100 | Redis us a request | p50 | p99 | over | bound | denied early |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|\n")
	for i, r := range rows {
		name := r.workload
		if i > 0 && rows[i-1].workload == name {
			name = ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f | %.2f | %s | %s | %d | %d | %.2f%% |\n", name, r.way, picture.Number(float64(r.requests)), r.calls, r.cpu,
			short(r.p50), short(r.p99), max(0, r.over), r.most, 100*float64(r.early)/float64(r.requests))
	}
	return b.String()
}

// short is a duration in microseconds with the digits that say something.
func short(d time.Duration) string {
	if us := float64(d) / 1e3; us < 10 {
		return fmt.Sprintf("%.1f us", us)
	}
	return fmt.Sprintf("%d us", d.Microseconds())
}

// draw draws what a request costs Redis.
func draw(rows []row) []byte {
	bars := picture.Bars{Title: "Processor time of Redis for a request, in microseconds", Note: fmt.Sprintf("%d processes; go run ./examples/choosing", processes)}
	for _, r := range rows {
		kind, _, _ := strings.Cut(r.workload, ":")
		bars.Bars = append(bars.Bars, picture.Bar{
			Name: kind + ", " + r.way, Value: r.cpu, Label: fmt.Sprintf("%.1f", r.cpu), Highlight: r.way == "on credit",
		})
	}
	return bars.SVG()
}
