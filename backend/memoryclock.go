package backend

import (
	"time"
)

// processClock is the time of a backend without a server: the wall clock when the process made it, plus what has
// passed since by the monotonic clock. Steps of the wall clock change nothing.
type processClock struct {
	startMicros int64
	start       time.Time
}

func newProcessClock() processClock {
	now := time.Now()
	return processClock{now.UnixMicro(), now}
}

func (c *processClock) now() int64 {
	return c.startMicros + time.Since(c.start).Microseconds()
}
