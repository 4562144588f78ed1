package router

import (
	"time"

	"github.com/sluice-go/sluice/backend/control"
)

// NodeStatus is what is known of a node, for people and dashboards.
type NodeStatus struct {
	Group string
	Node  string // the address; for New "primary", "replica-1", "replica-2" and so on; "unknown" before a sentinel names it
	Role  Role   // as the topology or the sentinels say; Heartbeat.Primary is what the server says

	Breaker  string        // "closed", "open" or "half-open"; reads pass if a primary only refuses writes
	Readable bool          // whether it is a replica that is fit to be read
	Latency  time.Duration // a moving average over calls, not heartbeats; falls to 0 while there are none

	LastHeartbeat time.Time         // when the last answered one was sent, or zero
	Heartbeat     control.Heartbeat // its answer; zero if the node can only be pinged
	Age           time.Duration     // how long ago a replica may have last heard of its primary; 0 if it can only be pinged
}

// Nodes returns the status of every node: group by group in the order of the topology, primaries first.
func (r *Router) Nodes() []NodeStatus {
	var all []NodeStatus
	for _, g := range r.table.Load().groups {
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
		if n.heartbeats && !last.Primary {
			s.Age = last.age()
		}
	}
	return s
}
