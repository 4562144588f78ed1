package main

import (
	"cmp"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/internal/picture"
)

// charts are the pictures of a row.
func charts(r *NetworkRow) (throughput, cpu picture.Bars) {
	throughput = picture.Bars{Title: "Decisions per second", Note: r.Name + ". Longer is better."}
	cpu = picture.Bars{Title: "Redis CPU for a decision", Note: r.Name + ". Shorter is better."}
	for i := range r.Peers {
		p := &r.Peers[i]
		ours := strings.HasPrefix(p.Peer, sluice)
		throughput.Bars = append(throughput.Bars, picture.Bar{
			Name: p.Peer, Value: p.Median.PerSecond, Label: picture.Number(math.Round(p.Median.PerSecond)), Highlight: ours,
		})
		cpu.Bars = append(cpu.Bars, picture.Bar{
			Name: p.Peer, Value: p.Median.RedisCPU, Label: number(p.Median.RedisCPU) + " \u00b5s", Highlight: ours,
		})
	}
	slices.SortStableFunc(throughput.Bars, func(a, b picture.Bar) int { return cmp.Compare(b.Value, a.Value) })
	slices.SortStableFunc(cpu.Bars, func(a, b picture.Bar) int { return cmp.Compare(a.Value, b.Value) })
	return throughput, cpu
}

// writeCharts writes the pictures of the row with 64 callers, if it was run.
func writeCharts(dir string, report *Report) error {
	i := slices.IndexFunc(report.Network, func(r NetworkRow) bool { return r.Row == manyCallers })
	if i < 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	throughput, cpu := charts(&report.Network[i])
	if err := os.WriteFile(filepath.Join(dir, "decisions.svg"), throughput.SVG(), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "redis-cpu.svg"), cpu.SVG(), 0o644)
}
