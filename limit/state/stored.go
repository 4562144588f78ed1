package state

import (
	"iter"
	"time"

	"github.com/sluice-go/sluice/limit"
)

// Stored is what a state remembers of one limit. A state has neither the name of a limit nor its Max and Burst.
type Stored struct {
	Limit    limit.Limit // algorithm, window, precision and alignment; the rest is zero
	Used     int64       // charged and not given back; 0 for a bucket, whose state is a time
	Refunded int64       // charged and given back in windows that are not over; 0 for a bucket
	ResetAt  time.Time   // when the full quota is back; zero if it is
}

// All yields what is remembered of each limit and not over at now, in the order of the encoding.
func (s *State) All(now At) iter.Seq[Stored] {
	return func(yield func(Stored) bool) {
		for i := range s.entries {
			e := &s.entries[i]
			if e.empty(now) || e.id.algorithm == fenced {
				continue
			}
			if !yield(e.stored(now)) {
				return
			}
		}
	}
}

func (e *entry) stored(now At) Stored {
	r := Stored{Limit: limit.Limit{
		Algorithm: e.id.algorithm, Alignment: e.id.alignment, Window: e.id.window, Precision: e.id.precision(),
	}}
	var reset int64
	switch e.id.algorithm {
	case limit.Bucket:
		unit := limit.Limit{Max: maxRate} // a rate tells fractions of a microsecond only
		if reset = e.fullAt(&unit, now).ceil(); reset == now.Micros {
			reset = 0
		}
	case limit.SlidingWindow:
		n, used := e.live(now)
		for _, c := range e.subs[:n] {
			r.Refunded += c.refunded
		}
		if r.Used = used; used > 0 {
			reset = e.resetSliding(now)
		}
	default:
		r.Refunded = e.count.refunded
		if r.Used = e.count.used(); r.Used > 0 {
			reset = e.end
		}
	}
	if reset > 0 {
		r.ResetAt = time.UnixMicro(reset)
	}
	return r
}
