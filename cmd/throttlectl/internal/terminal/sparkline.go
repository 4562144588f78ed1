package terminal

import (
	"math"
	"strings"
)

// Sparkline draws the last of the values as columns, the latest on the right, scaled to the largest of them, and padded with
// spaces to the width. Any value above 0 is higher than one of 0.
func Sparkline(values []float64, width int) string {
	values = values[max(0, len(values)-width):]
	largest := 0.0
	for _, v := range values {
		largest = max(largest, v)
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", width-len(values)))
	columns := []rune("▁▂▃▄▅▆▇█")
	for _, v := range values {
		height := 0
		if v > 0 {
			height = max(1, int(math.Ceil(v/largest*float64(len(columns)-1))))
		}
		b.WriteRune(columns[height])
	}
	return b.String()
}
