package router

import (
	"time"

	"github.com/sluice-go/sluice/backend"
)

// NodeStatus is what is known of a node at a moment, for people and dashboards.
type NodeStatus struct {
	Group string
	Node  string // the address; for New "primary", "replica-1", "replica-2" and so on; "unknown" before a sentinel names it
	Role  Role   // as the topology says; the server's own word is Heartbeat.Primary

	Breaker  string        // "closed", "open" or "half-open"; of a primary that answers but takes no writes it isn't for reads
	Readable bool          // of a replica: whether it is fit to be read
	Latency  time.Duration // a moving average over calls, not heartbeats; falls to 0 while there are none

	LastHeartbeat time.Time         // when the last one that was answered was sent; zero if none was
	Heartbeat     backend.Heartbeat // what it said: run id, link, offset, round trip; zero if the node can't tell
	Age           time.Duration     // of a replica: since it may not have heard of its primary; 0 if it can't tell
}

// Nodes returns the status of every node: group by group in the order of the topology, primaries first.
func (r *Router) Nodes() []NodeStatus {
	s := r.table.Load()
	var all []NodeStatus
	for _, g := range s.groups {
		all = append(all, g.primary.status(g.maxLag))
		for _, n := range g.replicas {
			all = append(all, n.status(g.maxLag))
		}
	}
	return all
}

func (n *node) status(maxLag time.Duration) NodeStatus {
	s := NodeStatus{
		Group: n.group, Node: n.name, Role: Role(n.role.Load()),
		Breaker:  n.breaker.State().String(),
		Readable: n.is(RoleReplica) && n.readable(maxLag),
		Latency:  n.latency.now(),
	}
	if last := n.lastBeat.Load(); last != nil {
		s.LastHeartbeat, s.Heartbeat = last.at, last.Heartbeat
		if _, knows := n.backend.(backend.Heartbeater); knows && !last.Primary {
			s.Age = last.age()
		}
	}
	return s
}
