package otelthrottle

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Node is the state of a node of a router, as router.Router.Nodes returns it. This package doesn't link the router.
type Node struct {
	Group, Node, Role string
	Breaker           string        // "closed", "open" or "half-open"
	Readable          bool          // of a replica: whether it is read
	Age               time.Duration // of a replica: time for which it may have had no contact with its primary

	// RTT is the round trip of the last heartbeat, and Ahead how far the node's clock was ahead of this host's. Without a
	// heartbeat both are 0.
	RTT, Ahead time.Duration
}

// breakerStates have one series each, of which one is 1, so that a state can be summed over nodes.
var breakerStates = [...]string{"closed", "half-open", "open"}

// WatchNodes reads the nodes of a router whenever metrics are collected:
//
//	sluice.node.breaker       1 for the state that sluice.breaker names, 0 for the others
//	sluice.node.rtt           seconds that its last heartbeat took
//	sluice.node.clock_offset  seconds that its clock is ahead of this host's wall clock
//	sluice.replica.age        seconds for which a replica may have had no contact with its primary
//	sluice.replica.readable   1 or 0
//
// Each is by sluice.group, sluice.node and sluice.role. For a router.Router r:
//
//	func() []otelthrottle.Node {
//		var nodes []otelthrottle.Node
//		for _, n := range r.Nodes() {
//			nodes = append(nodes, otelthrottle.Node{
//				Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Age: n.Age,
//				RTT: n.Heartbeat.RTT, Ahead: n.Heartbeat.Ahead,
//			})
//		}
//		return nodes
//	}
func (o *Observer) WatchNodes(nodes func() []Node) error {
	if nodes == nil {
		return errNothing
	}
	w := watcher{meter: o.meter}
	breaker := w.gauge("sluice.node.breaker", "{node}", "1 for the state that the node's breaker is in.")
	rtt := w.real("sluice.node.rtt", "s", "Round trip of the last heartbeat.")
	offset := w.real("sluice.node.clock_offset", "s", "How far the node's clock is ahead of this host's.")
	age := w.real("sluice.replica.age", "s", "Time for which a replica may have had no contact with its primary.")
	readable := w.gauge("sluice.replica.readable", "{node}", "1 if a replica is read.")
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
			plain := observed(of...)
			if n.RTT > 0 {
				to.ObserveFloat64(rtt, n.RTT.Seconds(), plain...)
				to.ObserveFloat64(offset, n.Ahead.Seconds(), plain...)
			}
			if n.Role == "replica" {
				to.ObserveFloat64(age, n.Age.Seconds(), plain...)
				to.ObserveInt64(readable, oneIf(n.Readable), plain...)
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
