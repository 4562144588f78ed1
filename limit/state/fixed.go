package state

import (
	"time"

	"github.com/sluice-go/sluice/limit"
)

// A fixed window is a count with a reset. The reset is chosen once, by the first admitted request, and never
// moves: every copy returns it unchanged.

// fixedEnd is the reset of a window that starts with a request at now.
func fixedEnd(id identity, now At) int64 {
	window := int64(id.window / time.Microsecond)
	switch id.alignment {
	case limit.ClockAligned:
		return floorTo(now.Micros, window) + window
	case limit.KeyStaggered:
		shift := int64(now.Phase%uint64(window/1000)) * 1000
		return floorTo(now.Micros-shift, window) + shift + window
	}
	return floorTo(now.Micros, 1000) + window
}

// floorTo is the largest multiple of step that is not above n.
func floorTo(n, step int64) int64 {
	r := n % step
	if r < 0 {
		r += step
	}
	return n - r
}

// waitFixed is how long a request of cost has to wait; 0 if it fits.
func (e *entry) waitFixed(l *limit.Limit, now At, cost int64) int64 {
	if e.empty(now) || cost <= l.Max-e.count.used() && cost <= limit.MaxCount-e.count.charged {
		return 0
	}
	return e.end - now.Micros
}

func (e *entry) chargeFixed(now At, cost int64) {
	if e.end == 0 {
		e.end = fixedEnd(e.id, now)
	}
	e.count.charged += cost
}

// joinFixed joins two windows. If one begins before the other is over, the other's count was lost where it was opened: the
// later window goes on, as if what was used in the earlier one had been charged in it; as within one window, the larger charge
// wins and refunds stay. Windows that follow each other meet, too, where a clock lags that knows the first as alive; then the
// later one alone counts.
func (e *entry) joinFixed(f *entry) bool {
	end, joined := f.end, f.count
	switch window := int64(e.id.window / time.Microsecond); {
	case f.end == e.end:
		joined = e.count.join(f.count)
	case f.end > e.end && f.end-e.end < window:
		joined = f.count.atLeast(e.count.used())
	case f.end < e.end:
		end, joined = e.end, e.count
		if e.end-f.end < window {
			joined = joined.atLeast(f.count.used())
		}
	}
	changed := joined != e.count || end != e.end
	e.end, e.count = end, joined
	return changed
}
