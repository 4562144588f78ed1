package main

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A chart is a picture of bars, one for each peer, longest first or last.
type chart struct {
	title, note string
	bars        []bar
}

type bar struct {
	name  string
	value float64
	label string
	ours  bool
}

const (
	svgWidth = 760
	svgNames = 130 // of the names' column
	svgLabel = 90  // of the column of numbers
	svgBar   = 26  // the height of a bar with the gap below it
	svgTop   = 66
)

// svgStyle follows the reader's light or dark scheme; the card behind the text has its own colour in both, so that the
// picture can be read on a page that doesn't.
const svgStyle = `
	.card { fill: #ffffff; stroke: #d0d7de } text { fill: #1f2328; font: 13px system-ui, sans-serif }
	.title { font-size: 16px; font-weight: 600 } .note { fill: #59636e; font-size: 12px }
	.bar { fill: #9aa4af } .ours { fill: #0969da }
	@media (prefers-color-scheme: dark) {
		.card { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc } .note { fill: #9198a1 }
		.bar { fill: #656c76 } .ours { fill: #4493f8 }
	}
`

// svg draws the chart.
func (c *chart) svg() string {
	var b strings.Builder
	height := svgTop + svgBar*len(c.bars) + 14
	most := 0.0
	for _, bar := range c.bars {
		most = max(most, bar.value)
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">`,
		svgWidth, height)
	fmt.Fprintf(&b, "\n<title>%s</title>\n<style>%s</style>\n", escape(c.title), svgStyle)
	fmt.Fprintf(&b, "<rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", svgWidth-1, height-1)
	fmt.Fprintf(&b, "<text class=\"title\" x=\"16\" y=\"28\">%s</text>\n", escape(c.title))
	fmt.Fprintf(&b, "<text class=\"note\" x=\"16\" y=\"48\">%s</text>\n", escape(c.note))
	for i, bar := range c.bars {
		y := svgTop + i*svgBar
		length := 0.0
		if most > 0 {
			length = bar.value / most * (svgWidth - svgNames - svgLabel)
		}
		class := "bar"
		if bar.ours {
			class += " ours"
		}
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>", svgNames-8, y+14, escape(bar.name))
		fmt.Fprintf(&b, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"3\"/>",
			class, svgNames, y, max(length, 1), svgBar-6)
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", svgNames+max(length, 1)+8, y+14, escape(bar.label))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}

// charts are the pictures of a row.
func charts(r *NetworkRow) (throughput, cpu chart) {
	throughput = chart{title: "Decisions per second", note: r.Name + ". Longer is better."}
	cpu = chart{title: "Redis CPU for a decision", note: r.Name + ". Shorter is better."}
	for i := range r.Peers {
		p := &r.Peers[i]
		ours := strings.HasPrefix(p.Peer, sluice)
		throughput.bars = append(throughput.bars, bar{p.Peer, p.Median.PerSecond, number(math.Round(p.Median.PerSecond)), ours})
		cpu.bars = append(cpu.bars, bar{p.Peer, p.Median.RedisCPU, number(p.Median.RedisCPU) + " \u00b5s", ours})
	}
	slices.SortStableFunc(throughput.bars, func(a, b bar) int { return cmp.Compare(b.value, a.value) })
	slices.SortStableFunc(cpu.bars, func(a, b bar) int { return cmp.Compare(a.value, b.value) })
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
	if err := os.WriteFile(filepath.Join(dir, "decisions.svg"), []byte(throughput.svg()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "redis-cpu.svg"), []byte(cpu.svg()), 0o644)
}
