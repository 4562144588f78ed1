package router

import "sync/atomic"

// Stats is what a Router has counted since its start. Nothing is while no topology changes.
type Stats struct {
	Handovers int64 // counts of a key brought from the group that owned it to the one that owns it now
	Redirects int64 // calls that found their key moved under another epoch, and went after it
	Bounded   int64 // decisions without the counts of a group that was out of reach
}

// counts are the Stats as they grow.
type counts struct {
	handovers, redirects, bounded atomic.Int64
}

// Stats returns the counts so far.
func (r *Router) Stats() Stats {
	return Stats{
		Handovers: r.counts.handovers.Load(), Redirects: r.counts.redirects.Load(), Bounded: r.counts.bounded.Load(),
	}
}
