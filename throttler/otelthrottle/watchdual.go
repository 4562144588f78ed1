package otelthrottle

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/internal/typednil"
)

// WatchDual reads a dual.Dual whenever metrics are collected, with its name as sluice.backend:
//
//	sluice.dual.decisions  by sluice.side: old, new
//	sluice.dual.handovers  handovers of a key
//	sluice.dual.redirects  calls that were redirected because the key had moved
//	sluice.dual.bounded    decisions without the counts of a side that was unreachable
//	sluice.dual.shadows    by sluice.shadow: agreed; denied, allowed and remaining are divergences; failed, dropped
func (o *Observer) WatchDual(name string, dual interface{ Stats() dual.Stats }) error {
	if typednil.Is(dual) {
		return errNothing
	}
	w := watcher{meter: o.meter}
	decisions := w.counter("sluice.dual.decisions", "{decision}", "Decisions by side.")
	handovers := w.counter("sluice.dual.handovers", "{handover}", "Handovers of a key from one side to the other.")
	redirects := w.counter("sluice.dual.redirects", "{call}", "Calls that were redirected because the key had moved.")
	bounded := w.counter("sluice.dual.bounded", "{decision}", "Decisions without the counts of a side that was unreachable.")
	shadows := w.counter("sluice.dual.shadows", "{call}", "Answers of the side that doesn't decide, compared with those of the other.")
	of := attribute.String("sluice.backend", name)
	plain := observed(of)
	onOld, onNew := observed(of, attribute.String("sluice.side", "old")), observed(of, attribute.String("sluice.side", "new"))
	kinds := [...]string{"agreed", "denied", "allowed", "remaining", "failed", "dropped"}
	var kind [len(kinds)][]metric.ObserveOption
	for i, k := range kinds {
		kind[i] = observed(of, attribute.String("sluice.shadow", k))
	}
	return w.watch(o, func(to metric.Observer) {
		s := dual.Stats()
		to.ObserveInt64(decisions, s.Old, onOld...)
		to.ObserveInt64(decisions, s.New, onNew...)
		to.ObserveInt64(handovers, s.Handovers, plain...)
		to.ObserveInt64(redirects, s.Redirects, plain...)
		to.ObserveInt64(bounded, s.Bounded, plain...)
		counts := [len(kinds)]int64{
			s.Shadow.Agreed, s.Shadow.Denied, s.Shadow.Allowed, s.Shadow.Remaining, s.Shadow.Failed, s.Shadow.Dropped,
		}
		for i, n := range counts {
			to.ObserveInt64(shadows, n, kind[i]...)
		}
	})
}
