package otelthrottle

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// RouterStats is what a router has counted while its topology changed, such as its Stats tells: a router.Stats converts to
// it.
type RouterStats struct {
	Handovers int64 // counts of a key brought from the group that owned it to the one that owns it now
	Redirects int64 // calls that found their key moved, and went after it
	Bounded   int64 // decisions without the counts of a group that was out of reach
}

// WatchRouter reads the counts of a router whenever metrics are collected. Name tells it from others:
//
//	sluice.router.handovers  counts of a key brought to the group that owns it now
//	sluice.router.redirects  calls that went after a key that had moved
//	sluice.router.bounded    decisions without the counts of a group that was out of reach
//
// For a router.Router r:
//
//	func() otelthrottle.RouterStats { return otelthrottle.RouterStats(r.Stats()) }
func (o *Observer) WatchRouter(name string, stats func() RouterStats) error {
	if stats == nil {
		return errNothing
	}
	w := watcher{meter: o.meter}
	handovers := w.counter("sluice.router.handovers", "{handover}", "Counts of a key brought to the group that owns it now.")
	redirects := w.counter("sluice.router.redirects", "{call}", "Calls that found their key moved, and went after it.")
	bounded := w.counter("sluice.router.bounded", "{decision}", "Decisions without the counts of a group that was out of reach.")
	plain := observed(attribute.String("sluice.backend", name))
	return w.watch(o, func(to metric.Observer) {
		s := stats()
		to.ObserveInt64(handovers, s.Handovers, plain...)
		to.ObserveInt64(redirects, s.Redirects, plain...)
		to.ObserveInt64(bounded, s.Bounded, plain...)
	})
}
