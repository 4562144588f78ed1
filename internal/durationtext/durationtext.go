// Package durationtext writes durations as the text forms of limits and stored states have them.
package durationtext

import (
	"strconv"
	"time"
)

// Units are in descending order.
var Units = []struct {
	Suffix string
	Size   time.Duration
}{
	{"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond},
	{"ns", time.Nanosecond},
}

// Append writes d in the largest single unit that divides it: "24h", "90s", "1500ms".
func Append(b []byte, d time.Duration) []byte {
	for _, u := range Units {
		if d%u.Size == 0 && d != 0 {
			return append(strconv.AppendInt(b, int64(d/u.Size), 10), u.Suffix...)
		}
	}
	return append(b, "0s"...)
}
