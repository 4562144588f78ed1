package main

import (
	"fmt"
	"os"
	"time"

	"github.com/sluice-go/sluice/internal/picture"
)

// draw writes the picture of the release.
func (r *release) draw(file string, total outcome) error {
	return os.WriteFile(file, drawing(r.ledger.slices, r.ledger.width, r.marks, total), 0o644)
}

// drawing is the release over time: what was admitted and denied, and which share of the keys was on Redis.
func drawing(counts []pair, width time.Duration, marks []mark, total outcome) []byte {
	if n := int(total.took / width); n < len(counts) {
		counts = counts[:n] // the last one is not complete
	}
	plot := picture.Plot{Percent: &picture.Percent{Name: "keys on Redis"}}
	for _, c := range counts {
		plot.Offered = append(plot.Offered, int64(c.allowed+c.denied))
		plot.Admitted = append(plot.Admitted, int64(c.allowed))
	}
	for i, m := range marks {
		label := m.redis
		switch len(marks) - i {
		case 1:
			label = "Redis alone"
		case 2:
			label += " until nothing is carried over"
		}
		plot.Percent.Steps = append(plot.Percent.Steps, picture.Step{At: m.at, Percent: m.percent, Label: label})
	}
	p := picture.Timeline{
		Title: "From Memcached to Redis, under load", Note: fmt.Sprintf("over the limit: %d", total.over), NoteColor: picture.Green,
		Unit:    fmt.Sprintf("requests a second; %d requests, %d errors, %d handovers", total.requests, total.errors, total.handed),
		Caption: "time since the clients started", Duration: total.took, Step: width, PlotHeight: 220, Plots: []picture.Plot{plot},
	}
	if total.over > 0 {
		p.NoteColor = picture.Red
	}
	return p.SVG()
}
