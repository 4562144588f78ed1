package memory

import "time"

// processClock is the time of a backend without a server: the wall clock at its creation, plus the time since by the
// monotonic clock. Steps of the wall clock don't change it.
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
