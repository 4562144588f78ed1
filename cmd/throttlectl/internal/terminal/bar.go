package terminal

import (
	"math"
	"strings"
)

// Bar draws a part, from 0 to 1, as block characters in eighths of a cell, padded with spaces to the width. Any part above 0
// is visible.
func Bar(part float64, width int) string {
	if math.IsNaN(part) || part <= 0 {
		return strings.Repeat(" ", width)
	}
	eighths := int(math.Round(min(part, 1) * float64(width) * 8))
	eighths = max(eighths, min(1, width))
	full, rest := eighths/8, eighths%8
	cells := full
	var b strings.Builder
	b.WriteString(strings.Repeat("█", full))
	if rest > 0 {
		b.WriteRune([]rune(" ▏▎▍▌▋▊▉")[rest])
		cells++
	}
	b.WriteString(strings.Repeat(" ", width-cells))
	return b.String()
}

// BarWidth is the width of the largest bar in a table.
const BarWidth = 32
