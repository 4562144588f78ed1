package backend

import (
	"testing"
	"time"
)

// TestSpanClock: spans include those in which the host was suspended. After a step of the wall clock they may be too long, and
// are never too short.
func TestSpanClock(t *testing.T) {
	c := newSpanClock()
	var monotonic, wall time.Duration // since the start
	span := func(monotonicBy, wallBy time.Duration) time.Duration {
		at := func() time.Time { return monotonicAhead(c.start.Add(wall), monotonic-wall) }
		c.compare(at())
		before := int64(monotonic) + c.extra.Load()
		monotonic, wall = monotonic+monotonicBy, wall+wallBy
		c.compare(at())
		return time.Duration(int64(monotonic) + c.extra.Load() - before)
	}
	for i, test := range []struct{ monotonic, wall, want time.Duration }{
		{time.Second, time.Second, time.Second},
		{time.Second, time.Hour, time.Hour},                          // suspended
		{time.Second, time.Second, time.Second},                      // and only once
		{time.Second, -10 * time.Minute, time.Second},                // stepped back
		{time.Second, 5 * time.Second, 5 * time.Second},              // suspended, after such a step too
		{time.Second, time.Second - time.Microsecond, time.Second},   // read one after the other
		{10 * time.Millisecond, time.Second / 2, time.Second / 2},    // suspended, shortly
		{time.Millisecond, time.Millisecond + 400, time.Millisecond}, // jitter
		{time.Second, 24 * 365 * time.Hour, 24 * 365 * time.Hour},    // stepped forward
		{time.Second, -24 * 365 * time.Hour, time.Second},            // and back
		{time.Second, time.Second, time.Second},
	} {
		if got := span(test.monotonic, test.wall); (got - test.want).Abs() > time.Millisecond {
			t.Errorf("%d: %s by the monotonic clock, %s by the wall clock: %s, want %s", i, test.monotonic, test.wall, got, test.want)
		}
	}
	if allocs := testing.AllocsPerRun(100, func() { c.now() }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
