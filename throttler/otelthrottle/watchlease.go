package otelthrottle

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/typednil"
)

// WatchLease reads a lease.Lease whenever metrics are collected, with its name as sluice.backend:
//
//	sluice.lease.takes       by sluice.lease: spent, owed (on credit), denied (by the local view) and forwarded
//	sluice.lease.efficiency  all but forwarded, as a share of these and of all calls: takes forwarded, batches and charges
//	sluice.lease.fetches     batches fetched
//	sluice.lease.stranded    cost that is leased now and not spent, which other processes lack
//	sluice.lease.returned    cost that was given back
//	sluice.lease.lost        cost that could not be given back
//	sluice.lease.keys        keys with a local view
//
// With lease.Config.Slack these are more than zero:
//
//	sluice.lease.charges       charges sent
//	sluice.lease.debt          cost admitted on credit and not known to be charged
//	sluice.lease.debt.age      how long the oldest of it has waited
//	sluice.lease.charges.lost  cost admitted on credit that may never have been charged
//	sluice.lease.overshoot     the most by which a reply has shown a limit above its Max
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
	charges := w.counter("sluice.lease.charges", "{charge}", "Charges of what was admitted on credit.")
	debt := w.gauge("sluice.lease.debt", "{cost}", "Cost that is admitted on credit and not known to be charged.")
	age := w.real("sluice.lease.debt.age", "s", "How long the oldest debt has waited.")
	unpaid := w.counter("sluice.lease.charges.lost", "{cost}", "Cost admitted on credit that may never have been charged.")
	overshoot := w.gauge("sluice.lease.overshoot", "{cost}", "The most by which a reply has shown a limit above its Max.")
	of := attribute.String("sluice.backend", name)
	plain := observed(of)
	onSpent, onDenied, onForwarded, onOwed := use(of, "spent"), use(of, "denied"), use(of, "forwarded"), use(of, "owed")
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
		local := s.Leased + s.Denied + s.OnCredit
		if all := local + s.Forwarded + s.Fetches + s.Flushes; all > 0 {
			to.ObserveFloat64(efficiency, float64(local)/float64(all), plain...)
		}
		to.ObserveInt64(takes, s.OnCredit, onOwed...)
		to.ObserveInt64(charges, s.Flushes, plain...)
		to.ObserveInt64(debt, s.Debt, plain...)
		to.ObserveFloat64(age, s.DebtAge.Seconds(), plain...)
		to.ObserveInt64(unpaid, s.LostCharges, plain...)
		to.ObserveInt64(overshoot, s.Overshoot, plain...)
	})
}

func use(of attribute.KeyValue, lease string) []metric.ObserveOption {
	return observed(of, attribute.String("sluice.lease", lease))
}
