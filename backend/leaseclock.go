package backend

import (
	"sync"
	"sync/atomic"
	"time"
)

// spanClock measures spans of time, those in which this host was suspended included: the monotonic clock stops meanwhile,
// and the wall clock is ahead afterwards. A wall clock that is stepped forward looks the same; backwards changes nothing. So
// spans are never too short, and too long after such a step only.
type spanClock struct {
	start time.Time
	next  atomic.Int64 // when to compare the clocks again, by the monotonic one
	extra atomic.Int64 // what the wall clock has jumped ahead so far

	mu   sync.Mutex // guards lead
	lead int64      // of the wall clock before the monotonic one, when they were compared last
}

const (
	spanCompared = int64(time.Millisecond) // how often; a host that resumes needs longer before any process runs
	spanJitter   = int64(time.Millisecond) // what passes at most between the readings of the two, nearly always
)

func newSpanClock() *spanClock { return &spanClock{start: time.Now()} }

// now is in nanoseconds.
func (c *spanClock) now() int64 {
	passed := int64(time.Since(c.start)) // half of the time that reading both clocks takes
	if passed >= c.next.Load() {
		c.compare(time.Now())
	}
	return passed + c.extra.Load()
}

func (c *spanClock) compare(now time.Time) {
	passed := int64(now.Sub(c.start))
	lead := int64(now.Round(0).Sub(c.start.Round(0))) - passed
	c.mu.Lock()
	defer c.mu.Unlock()
	if jump := lead - c.lead; jump > spanJitter {
		c.extra.Add(jump)
		c.lead = lead
	} else if jump < -spanJitter {
		c.lead = lead
	}
	c.next.Store(passed + spanCompared)
}
