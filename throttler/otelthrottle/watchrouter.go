package otelthrottle

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// RouterStats counts what a router did while its topology changed. A router.Stats converts to it: this package doesn't link the
// router.
type RouterStats struct {
	Handovers int64 // handovers of a key to the group that owns it now
	Redirects int64 // calls that were redirected because the key had moved
	Bounded   int64 // decisions without the counts of a group that was unreachable
}

// WatchRouter reads the counts of a router whenever metrics are collected, with its name as sluice.backend:
//
//	sluice.router.handovers  handovers of a key to the group that owns it now
//	sluice.router.redirects  calls that were redirected because the key had moved
//	sluice.router.bounded    decisions without the counts of a group that was unreachable
//
// For a router.Router r:
//
//	func() otelthrottle.RouterStats { return otelthrottle.RouterStats(r.Stats()) }
func (o *Observer) WatchRouter(name string, stats func() RouterStats) error {
	if stats == nil {
		return errNothing
	}
	w := watcher{meter: o.meter}
	handovers := w.counter("sluice.router.handovers", "{handover}", "Handovers of a key to the group that owns it now.")
	redirects := w.counter("sluice.router.redirects", "{call}", "Calls that were redirected because the key had moved.")
	bounded := w.counter("sluice.router.bounded", "{decision}", "Decisions without the counts of a group that was unreachable.")
	plain := observed(attribute.String("sluice.backend", name))
	return w.watch(o, func(to metric.Observer) {
		s := stats()
		to.ObserveInt64(handovers, s.Handovers, plain...)
		to.ObserveInt64(redirects, s.Redirects, plain...)
		to.ObserveInt64(bounded, s.Bounded, plain...)
	})
}
