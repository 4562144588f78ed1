package otelthrottle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/throttler"
)

var errNothing = errors.New("otelthrottle: nothing to watch: nil")

// WatchLease reads a backend.Lease whenever metrics are collected. Name tells it from others:
//
//	sluice.lease.takes       by sluice.lease: spent, denied (by the local view) and passed
//	sluice.lease.efficiency  the share of takes so far that were answered without a call of their own
//	sluice.lease.fetches     batches asked for
//	sluice.lease.stranded    cost that is leased now and not spent: what others are denied
//	sluice.lease.returned    cost that went back
//	sluice.lease.lost        cost that could not be given back
//	sluice.lease.keys        of which a view is kept
func (o *Observer) WatchLease(name string, lease interface{ Stats() throttler.LeaseStats }) error {
	if lease == nil {
		return errNothing
	}
	w := watcher{meter: o.meter}
	takes := w.counter("sluice.lease.takes", "{take}", "Takes by what the lease did with them.")
	fetches := w.counter("sluice.lease.fetches", "{batch}", "Batches asked for.")
	returned := w.counter("sluice.lease.returned", "{cost}", "Cost of leases that went back.")
	lost := w.counter("sluice.lease.lost", "{cost}", "Cost of leases that could not be given back.")
	stranded := w.gauge("sluice.lease.stranded", "{cost}", "Cost that is leased now and not spent.")
	keys := w.gauge("sluice.lease.keys", "{key}", "Keys of which a view is kept.")
	efficiency := w.real("sluice.lease.efficiency", "1", "Share of takes that were answered without a call of their own.")
	of := attribute.String("sluice.backend", name)
	plain := observed(of)
	onSpent, onDenied, onPassed := use(of, "spent"), use(of, "denied"), use(of, "passed")
	return w.watch(o, func(to metric.Observer) {
		s := lease.Stats()
		to.ObserveInt64(takes, s.Leased, onSpent...)
		to.ObserveInt64(takes, s.Denied, onDenied...)
		to.ObserveInt64(takes, s.Straight, onPassed...)
		to.ObserveInt64(fetches, s.Fetches, plain...)
		to.ObserveInt64(returned, s.Returned, plain...)
		to.ObserveInt64(lost, s.Lost, plain...)
		to.ObserveInt64(stranded, s.Stranded, plain...)
		to.ObserveInt64(keys, int64(s.Keys), plain...)
		if all := s.Leased + s.Denied + s.Straight; all > 0 {
			to.ObserveFloat64(efficiency, float64(s.Leased+s.Denied)/float64(all), plain...)
		}
	})
}

// WatchDual reads a backend.Dual whenever metrics are collected. Name tells it from others:
//
//	sluice.dual.decisions  by sluice.side: old, new
//	sluice.dual.handovers  counts of a key carried over
//	sluice.dual.redirects  calls that went after a key that had moved
//	sluice.dual.bounded    decisions without the counts of a side that was out of reach
//	sluice.dual.shadows    by sluice.shadow: agreed; denied, allowed and remaining are divergences; failed, dropped
func (o *Observer) WatchDual(name string, dual interface{ Stats() throttler.DualStats }) error {
	if dual == nil {
		return errNothing
	}
	w := watcher{meter: o.meter}
	decisions := w.counter("sluice.dual.decisions", "{decision}", "Decisions by side.")
	handovers := w.counter("sluice.dual.handovers", "{handover}", "Counts of a key carried over from one side to the other.")
	redirects := w.counter("sluice.dual.redirects", "{call}", "Calls that found their key moved, and went after it.")
	bounded := w.counter("sluice.dual.bounded", "{decision}", "Decisions without the counts of a side that was out of reach.")
	shadows := w.counter("sluice.dual.shadows", "{call}", "Answers of the side that doesn't decide, against those of the other.")
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

// Node is how a node of a router is, such as its Nodes tells.
type Node struct {
	Group, Node, Role string
	Breaker           string        // "closed", "open" or "half-open"
	Readable          bool          // of a replica: whether it is fit to be read
	Age               time.Duration // of a replica: since it may not have heard of its primary
}

// breakerStates are told of as one series each, of which one is 1: a state can be summed over nodes then.
var breakerStates = [...]string{"closed", "half-open", "open"}

// WatchNodes reads the nodes of a router whenever metrics are collected:
//
//	sluice.node.breaker       1 for the state that sluice.breaker names, 0 for the others
//	sluice.replica.age        seconds since a replica may not have heard of its primary
//	sluice.replica.readable   1 or 0
//
// Each is by sluice.group, sluice.node and sluice.role. For a router.Router r:
//
//	func() []otelthrottle.Node {
//		var nodes []otelthrottle.Node
//		for _, n := range r.Nodes() {
//			nodes = append(nodes, otelthrottle.Node{
//				Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Age: n.Age,
//			})
//		}
//		return nodes
//	}
func (o *Observer) WatchNodes(nodes func() []Node) error {
	if nodes == nil {
		return errNothing
	}
	w := watcher{meter: o.meter}
	breaker := w.gauge("sluice.node.breaker", "1", "1 for the state that the node's breaker is in.")
	age := w.real("sluice.replica.age", "s", "Time since a replica may not have heard of its primary.")
	readable := w.gauge("sluice.replica.readable", "1", "1 if a replica is fit to be read.")
	return w.watch(o, func(to metric.Observer) {
		for _, n := range nodes() {
			of := []attribute.KeyValue{
				attribute.String("sluice.group", n.Group), attribute.String("sluice.node", n.Node),
				attribute.String("sluice.role", n.Role),
			}
			for _, state := range breakerStates {
				to.ObserveInt64(breaker, oneIf(n.Breaker == state),
					observed(append(of[:len(of):len(of)], attribute.String("sluice.breaker", state))...)...)
			}
			if n.Role == "replica" {
				to.ObserveFloat64(age, n.Age.Seconds(), observed(of...)...)
				to.ObserveInt64(readable, oneIf(n.Readable), observed(of...)...)
			}
		}
	})
}

func oneIf(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

func observed(attrs ...attribute.KeyValue) []metric.ObserveOption {
	return []metric.ObserveOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
}

func use(of attribute.KeyValue, lease string) []metric.ObserveOption {
	return observed(of, attribute.String("sluice.lease", lease))
}

// watcher gathers instruments that are read together.
type watcher struct {
	meter metric.Meter
	all   []metric.Observable
	errs  []error
}

func (w *watcher) counter(name, unit, description string) metric.Int64ObservableCounter {
	i, err := w.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	w.all, w.errs = append(w.all, i), append(w.errs, err)
	return i
}

func (w *watcher) gauge(name, unit, description string) metric.Int64ObservableGauge {
	i, err := w.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	w.all, w.errs = append(w.all, i), append(w.errs, err)
	return i
}

func (w *watcher) real(name, unit, description string) metric.Float64ObservableGauge {
	i, err := w.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	w.all, w.errs = append(w.all, i), append(w.errs, err)
	return i
}

func (w *watcher) watch(o *Observer, read func(metric.Observer)) error {
	if err := errors.Join(w.errs...); err != nil {
		return fmt.Errorf("otelthrottle: %w", err)
	}
	registration, err := w.meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		read(to)
		return nil
	}, w.all...)
	if err != nil {
		return fmt.Errorf("otelthrottle: %w", err)
	}
	o.mu.Lock()
	o.watched = append(o.watched, registration)
	o.mu.Unlock()
	return nil
}
