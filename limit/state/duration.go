package state

import (
	"strconv"
	"time"
)

// The durations of identities are those of limits' text forms, see package limit.

var units = []struct {
	suffix string
	size   time.Duration
}{
	{"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond},
	{"ns", time.Nanosecond},
}

// appendStateDuration writes d in the largest single unit that divides it: "24h", "90s", "1500ms".
func appendDuration(b []byte, d time.Duration) []byte {
	for _, u := range units {
		if d%u.size == 0 && d != 0 {
			return append(strconv.AppendInt(b, int64(d/u.size), 10), u.suffix...)
		}
	}
	return append(b, "0s"...)
}
