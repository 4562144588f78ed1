package router

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// latencyDecay is the time in which a sample's weight falls to 1/e. A replica that was slow is tried again within half a
	// minute; a pause of a garbage collector changes little.
	latencyDecay = 5 * time.Second

	// latencyFloor is the least that a call is expected to take. A node without samples gets calls, but not all of them at once.
	latencyFloor = 50 * time.Microsecond

	// failureCost is the least that a failed call counts as. A node that refuses at once is quick, but costs its caller another
	// try; not all refusals open the breaker.
	failureCost = 20 * time.Millisecond
)

// latency is how long calls to a node take: a moving average that rises with a slower call at once, and falls over time, to 0
// without calls. This is the "peak EWMA" of Twitter's Finagle.
//
// The two words are not written together. A reader between the writes, or a sample lost between two writers, makes one
// choice of a replica worse and nothing else.
type latency struct {
	start time.Time     // the zero of the clock
	nanos atomic.Uint64 // the average in nanoseconds, a float64
	at    atomic.Int64  // when it was that, by the clock
}

// clock is a monotonic time in nanoseconds. It is read twice a call, and the wall clock would make that slower.
func (l *latency) clock() int64 { return int64(time.Since(l.start)) }

// observe counts a call, whatever its outcome: no sample lowers the average by more than time alone does.
func (l *latency) observe(took time.Duration, now int64) {
	average, weight := math.Float64frombits(l.nanos.Load()), l.weight(now)
	if sample := float64(took); sample > average*weight {
		average = sample
	} else {
		average = average*weight + sample*(1-weight)
	}
	l.nanos.Store(math.Float64bits(average))
	l.at.Store(now)
}

// now is the average as far as it still counts.
func (l *latency) now() time.Duration {
	return time.Duration(math.Float64frombits(l.nanos.Load()) * l.weight(l.clock()))
}

// weight is what is left at now of the last average.
func (l *latency) weight(now int64) float64 {
	return math.Exp(-float64(max(now-l.at.Load(), 0)) / float64(latencyDecay))
}
