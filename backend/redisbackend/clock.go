package redisbackend

import (
	"sync/atomic"
	"time"
)

// serverClock is a server's time: what the server last said, plus what has passed since by this process's
// monotonic clock. The wall clock of this host never decides (promise P8).
//
// It never runs ahead of the server, apart from the drift of two clocks within a second: the server reads its clock before the
// reply travels, so this clock lags by the time that the reply took. A clock that lags ends windows late; one that ran
// ahead would end them early and admit too much. A reply that took much longer than the last one is less precise, and is
// ignored for a while.
type serverClock struct {
	last atomic.Pointer[reading]
}

type reading struct {
	micros int64         // what the server said, Unix time
	at     time.Time     // when it came
	took   time.Duration // from the question to that
}

// observe takes a reading of the server's clock that was asked for at a moment. A reading that is borrowed from another server
// is ignored while there is a trusted one: the time would jump by what they differ.
func (c *serverClock) observe(serverMicros int64, asked time.Time, borrowed bool) {
	now := time.Now()
	took := now.Sub(asked)
	if last := c.last.Load(); last != nil {
		age := now.Sub(last.at)
		slow := age < clockSlow && took > 2*last.took+time.Millisecond
		if slow || borrowed && age < clockTrusted {
			if _, ok := c.now(); ok {
				return
			}
		}
	}
	c.last.Store(&reading{serverMicros, now, took})
}

const (
	clockFresh   = time.Second      // a reading older than this is renewed in the background
	clockTrusted = 30 * time.Second // and one older than this before it is used: two clocks drift apart
	clockSlow    = 10 * time.Second // and this is how long a better one is preferred to slower ones
	clockJump    = time.Second
	clockDrift   = 2000 // in that much time two clocks drift apart by 1 at most: NTP slews by up to 500 ppm
)

// serverTime is what is known of a server's time.
type serverTime struct {
	micros int64         // Unix time
	age    time.Duration // of the reading that it rests on
	behind time.Duration // by how much the server may be ahead of micros
}

// now returns the server's time. It is not ok before the first reading, nor when the wall clock and the monotonic clock
// disagree on how much time has passed: either this host was suspended, which the monotonic clock doesn't count, or its
// wall clock was stepped. The wall clock serves for nothing else.
func (c *serverClock) now() (t serverTime, ok bool) {
	last := c.last.Load()
	if last == nil {
		return serverTime{}, false
	}
	now := time.Now()
	age := now.Sub(last.at)
	jump := now.Round(0).Sub(last.at.Round(0)) - age
	return serverTime{
		micros: last.micros + age.Microseconds(), age: age, behind: last.took + age/clockDrift + max(jump, 0),
	}, -clockJump < jump && jump < clockJump
}

// ahead is how far a server's clock is ahead of this host's wall clock, if it was read halfway between question and answer.
// Nothing is decided by it.
func ahead(server, asked time.Time, took time.Duration) time.Duration {
	return server.Sub(asked.Add(took / 2).Round(0))
}
