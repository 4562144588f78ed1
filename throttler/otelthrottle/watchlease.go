package otelthrottle

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/typednil"
)

// WatchLease reads a lease.Lease whenever metrics are collected, with its name as sluice.backend:
//
//	sluice.lease.takes       by sluice.lease: spent, denied (by the local view) and forwarded
//	sluice.lease.efficiency  spent and denied, as a share of these and of all calls: takes forwarded, and batches
//	sluice.lease.fetches     batches fetched
//	sluice.lease.stranded    cost that is leased now and not spent, which other processes lack
//	sluice.lease.returned    cost that was given back
//	sluice.lease.lost        cost that could not be given back
//	sluice.lease.keys        keys with a local view
func (o *Observer) WatchLease(name string, lease interface{ Stats() lease.Stats }) error {
	if typednil.Is(lease) {
		return errNothing
	}
	w := watcher{meter: o.meter}
	takes := w.counter("sluice.lease.takes", "{take}", "Takes by what the lease did with them.")
	fetches := w.counter("sluice.lease.fetches", "{batch}", "Batches fetched.")
	returned := w.counter("sluice.lease.returned", "{cost}", "Cost of leases that was given back.")
	lost := w.counter("sluice.lease.lost", "{cost}", "Cost of leases that could not be given back.")
	stranded := w.gauge("sluice.lease.stranded", "{cost}", "Cost that is leased now and not spent.")
	keys := w.gauge("sluice.lease.keys", "{key}", "Keys with a local view.")
	efficiency := w.real("sluice.lease.efficiency", "1", "Takes answered without a call, as a share of these and of all calls.")
	of := attribute.String("sluice.backend", name)
	plain := observed(of)
	onSpent, onDenied, onForwarded := use(of, "spent"), use(of, "denied"), use(of, "forwarded")
	return w.watch(o, func(to metric.Observer) {
		s := lease.Stats()
		to.ObserveInt64(takes, s.Leased, onSpent...)
		to.ObserveInt64(takes, s.Denied, onDenied...)
		to.ObserveInt64(takes, s.Forwarded, onForwarded...)
		to.ObserveInt64(fetches, s.Fetches, plain...)
		to.ObserveInt64(returned, s.Returned, plain...)
		to.ObserveInt64(lost, s.Lost, plain...)
		to.ObserveInt64(stranded, s.Stranded, plain...)
		to.ObserveInt64(keys, int64(s.Keys), plain...)
		if all := s.Leased + s.Denied + s.Forwarded + s.Fetches; all > 0 {
			to.ObserveFloat64(efficiency, float64(s.Leased+s.Denied)/float64(all), plain...)
		}
	})
}

func use(of attribute.KeyValue, lease string) []metric.ObserveOption {
	return observed(of, attribute.String("sluice.lease", lease))
}
