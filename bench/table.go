package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// A table is text in columns, the first aligned left and the others right. A row of one cell is a heading, as wide as
// it is.
type table struct {
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer) error {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if len(row) == 1 {
				break
			}
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		for i, cell := range row {
			if len(row) == 1 {
				b.WriteString(cell)
				break
			}
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString(cell + padding)
			} else {
				b.WriteString("  " + padding + cell)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// bestFirst are the results of Sluice, and then those of the peers, the least of a measure first.
func bestFirst[R any](results []R, of func(*R) (peer string, measure float64)) []R {
	return slices.SortedStableFunc(slices.Values(results), func(a, b R) int {
		nameA, x := of(&a)
		nameB, y := of(&b)
		ours, theirs := strings.HasPrefix(nameA, sluice), strings.HasPrefix(nameB, sluice)
		switch {
		case ours && theirs:
			return 0
		case ours:
			return -1
		case theirs:
			return 1
		}
		return cmp.Compare(x, y)
	})
}

// number has three significant digits, or all before the point.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case a >= 100 || v == 0:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// rare is a number of what may happen in few decisions only.
func rare(v float64) string {
	if v > 0 && v < 0.01 {
		return fmt.Sprintf("%.5f", v)
	}
	return number(v)
}

func times(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return number(v) + "x"
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*v)
}

// write prints a row's part of the first table, and what failed below it.
func (r *NetworkRow) write(w io.Writer) error {
	var t table
	t.add(r.Name)
	t.add("", "decisions/s", "ratio", "spread", "p50 us", "p99 us", "Redis us", "ratio", "client us", "allocs",
		"commands", "bytes/key", "allowed")
	nothing := Slice{PerSecond: math.NaN(), RedisCPU: math.NaN()}
	reference := nothing
	if p := r.find(r.Reference); p != nil {
		reference = p.Median
	}
	for _, p := range bestFirst(r.Peers, func(p *NetworkResult) (string, float64) { return p.Peer, -p.Median.PerSecond }) {
		m := p.Median
		t.add("  "+p.Peer, number(m.PerSecond), times(ratio(m.PerSecond, reference.PerSecond)), percent(spread(p.perSecond())),
			number(m.P50), number(m.P99), number(m.RedisCPU), times(ratio(m.RedisCPU, reference.RedisCPU)),
			number(m.ClientCPU), number(m.Allocs), rare(m.Commands), fmt.Sprint(p.BytesPerKey), percent(m.Allowed))
	}
	if err := t.write(w); err != nil {
		return err
	}
	for _, p := range r.Peers {
		if p.Failure == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "  %s: %.3f%% of calls failed (median of rounds), for example: %s\n",
			p.Peer, 100*p.Median.Failed, p.Failure); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// writeMemory prints rows of the second table, or of that of middlewares, as ratios to a peer.
func writeMemory(w io.Writer, rows []MemoryRow, to string) error {
	var t table
	for _, r := range rows {
		reference := math.NaN()
		if p := r.find(to); p != nil {
			reference = p.Nanos
		}
		t.add("in this process, " + r.Name)
		t.add("", "ns per decision", "ratio", "spread", "allocs")
		for _, p := range bestFirst(r.Peers, func(p *MemoryResult) (string, float64) { return p.Peer, p.Nanos }) {
			t.add("  "+p.Peer, number(p.Nanos), times(ratio(p.Nanos, reference)), percent(spread(p.Rounds)), number(p.Allocs))
		}
	}
	return t.write(w)
}

func writeRings(w io.Writer, rows []RingRow) error {
	var t table
	for _, r := range rows {
		reference := math.NaN()
		if p := r.find(rendezvous); p != nil {
			reference = p.Nanos
		}
		t.add(r.name())
		t.add("", "ns per lookup", "ratio", "spread", "allocs", "max/mean", "moved/ideal")
		for _, p := range bestFirst(r.Peers, func(p *RingResult) (string, float64) { return p.Peer, p.Nanos }) {
			t.add("  "+p.Peer, number(p.Nanos), times(ratio(p.Nanos, reference)), percent(spread(p.Rounds)), number(p.Allocs),
				fmt.Sprintf("%.3f", p.MaxMean), fmt.Sprintf("%.3f", p.Moved))
		}
	}
	return t.write(w)
}
