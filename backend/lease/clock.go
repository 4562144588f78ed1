package lease

import (
	"sync"
	"sync/atomic"
	"time"
)

// spanClock measures spans of time, including those in which this host was suspended. The monotonic clock stops during a
// suspension, and the wall clock is ahead of it afterwards. A forward step of the wall clock looks the same; a backward step
// changes nothing. So spans are never too short, and too long only after a forward step.
type spanClock struct {
	start time.Time
	next  atomic.Int64 // when to compare the clocks again, on the monotonic one
	extra atomic.Int64 // sum of the forward jumps of the wall clock

	mu   sync.Mutex // guards lead
	lead int64      // of the wall clock over the monotonic one at the last comparison
}

const (
	spanCompared = int64(time.Millisecond) // interval of comparisons; a host that resumes needs longer before any process runs
	spanJitter   = int64(time.Millisecond) // longest time between the two readings, nearly always
)

func newSpanClock() *spanClock { return &spanClock{start: time.Now()} }

// now returns nanoseconds since start.
func (c *spanClock) now() int64 {
	passed := int64(time.Since(c.start)) // reading one clock takes half the time of reading both
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
