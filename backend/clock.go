package backend

import (
	"sync/atomic"
	"time"
)

// serverClock is a server's time: what the server last said, plus what has passed since by this process's
// monotonic clock. The wall clock of this host never decides (promise P8).
//
// It never runs ahead of the server, because the server reads its clock before the reply travels: it lags by at
// most the reply's travel time. A clock that lags ends windows late, by microseconds; one that ran ahead would end
// them early and admit too much.
type serverClock struct {
	last atomic.Pointer[reading]
}

type reading struct {
	micros int64     // what the server said, Unix time
	at     time.Time // when it was heard
}

func (c *serverClock) set(serverMicros int64) {
	c.last.Store(&reading{serverMicros, time.Now()})
}

const (
	clockFresh   = time.Second      // a reading older than this is renewed in the background
	clockTrusted = 30 * time.Second // and one older than this before it is used: two clocks drift apart
	clockJump    = time.Second
)

// now returns the server's time in Unix microseconds and how old the last reading is. It is not ok before the
// first, nor when the wall clock has passed another time than the monotonic one: then either this host slept,
// which no monotonic clock counts, or its wall clock was stepped. That the wall clock may say, and no more.
func (c *serverClock) now() (micros int64, age time.Duration, ok bool) {
	last := c.last.Load()
	if last == nil {
		return 0, 0, false
	}
	now := time.Now()
	age = now.Sub(last.at)
	jump := now.Round(0).Sub(last.at.Round(0)) - age
	return last.micros + age.Microseconds(), age, -clockJump < jump && jump < clockJump
}

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
