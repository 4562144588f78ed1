package router

import "sync/atomic"

// Stats is what a Router has counted since its start. All counts are of calls about keys that change their owner.
type Stats struct {
	Handovers int64 // counts of a key brought from the group that owned it to the one that owns it now
	Redirects int64 // answers that a key has moved under another epoch, which the call followed
	Bounded   int64 // decisions without the counts of a group that was unreachable
}

// counts are the running Stats.
type counts struct {
	handovers, redirects, bounded atomic.Int64
}

// Stats returns the counts so far.
func (r *Router) Stats() Stats {
	return Stats{
		Handovers: r.counts.handovers.Load(), Redirects: r.counts.redirects.Load(), Bounded: r.counts.bounded.Load(),
	}
}
