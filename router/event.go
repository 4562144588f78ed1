package router

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// Event is something that happened to a node or to the topology. It never holds a key.
type Event struct {
	Time  time.Time
	Group string
	Node  string // as in [NodeStatus]
	Kind  EventKind

	// From and To are the run ids for Restarted, the roles for RoleChanged, the addresses for PrimaryChanged, and the epochs for
	// TopologyChanged.
	From, To string
	Err      error // the cause of Misconfigured, TopologyRejected, TopologyUnpublished and BreakerOpened

	// Lost is how many events were dropped since the last call of OnEvent, because it was too slow. They are newer than this
	// one: what waits is kept.
	Lost uint64
}

// EventKind is what happened to a node.
type EventKind uint8

const (
	// BreakerOpened: the node is unavailable, or refuses writes; calls to it fail at once, in the latter case all but reads.
	BreakerOpened EventKind = iota + 1
	// BreakerClosed: the node answers again, or accepts writes.
	BreakerClosed
	// Restarted: another server process answers at the node's address. It may have forgotten counts.
	Restarted
	// RoleChanged: a primary has become a replica, or a replica a primary, since the last heartbeat; at the first heartbeat,
	// compared with the topology.
	RoleChanged
	// LinkDown: a replica has lost its primary and is not read.
	LinkDown
	// LinkUp: a replica hears of its primary again.
	LinkUp
	// Misconfigured: the server refuses what is sent: credentials, permissions, a foreign value at a key. A person must fix it.
	// Reported at most every ten seconds per node.
	Misconfigured
	// TopologyChanged: another topology is in force. From and To are equal if only addresses changed. It has no node.
	TopologyChanged
	// TopologyRejected: a topology from a file, or one that a node holds, was refused, see [ErrTopologyUntrusted]; or the one in
	// force has other owners than the one that a node holds under the same epoch, and all calls fail until there is a newer one.
	TopologyRejected
	// PrimaryChanged: the sentinels of a group name another primary, and calls go there. From is empty for the first one.
	PrimaryChanged
	// TopologyUnpublished: the topology in force can't be published at a node that has an older one or none, because it is not
	// signed, which [Config.TopologyKeys] demands. Processes that were not given it use the older one, and their calls about keys
	// that have moved fail. Reported once for each node and epoch.
	TopologyUnpublished
)

func (k EventKind) String() string {
	names := [...]string{
		"event?", "breaker opened", "breaker closed", "restarted", "role changed", "link down", "link up", "misconfigured",
		"topology changed", "topology rejected", "primary changed",
		"topology not published",
	}
	if int(k) < len(names) {
		return names[k]
	}
	return names[0]
}

// String is the event without its time: "eu-1/10.0.0.1:6379: role changed (primary to replica)".
func (e Event) String() string {
	var b strings.Builder
	if e.Group != "" {
		fmt.Fprintf(&b, "%s/%s: ", e.Group, e.Node)
	}
	b.WriteString(e.Kind.String())
	if e.From != "" || e.To != "" {
		fmt.Fprintf(&b, " (%s to %s)", e.From, e.To)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Lost > 0 {
		fmt.Fprintf(&b, " [%d newer events lost]", e.Lost)
	}
	return b.String()
}

// pacer says when Misconfigured is reported: at most every ten seconds. Its zero value is ready to use.
type pacer struct {
	last atomic.Pointer[time.Time]
}

func (p *pacer) due() bool {
	now, last := time.Now(), p.last.Load()
	return (last == nil || now.Sub(*last) >= 10*time.Second) && p.last.CompareAndSwap(last, &now)
}

// eventQueue is how many events wait for a slow OnEvent before others are dropped.
const eventQueue = 256

// events queues events without blocking, and calls one function with them, one at a time. A nil *events drops them.
type events struct {
	handle func(Event)
	queue  chan Event
	lost   atomic.Uint64
}

func newEvents(handle func(Event)) *events {
	if handle == nil {
		return nil
	}
	return &events{handle: handle, queue: make(chan Event, eventQueue)}
}

func (e *events) emit(event Event) {
	if e == nil {
		return
	}
	event.Time = time.Now()
	select {
	case e.queue <- event:
	default:
		e.lost.Add(1)
	}
}

// run handles events until ctx ends.
func (e *events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			event.Lost = e.lost.Swap(0)
			e.handle(event)
		}
	}
}
