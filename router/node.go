package router

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Role is what a node is in its group.
type Role uint8

const (
	RolePrimary Role = iota + 1 // takes go here; a group has one
	RoleReplica                 // is read only
)

func (r Role) String() string {
	names := [...]string{"role?", "primary", "replica"}
	if int(r) < len(names) {
		return names[r]
	}
	return names[0]
}

// node is a backend with what is known of its health. Calls to the backend go through [node.call].
type node struct {
	identity
	role    atomic.Uint32 // a Role; another one once its group has changed its primary
	backend backend.Backend
	events  *events

	breaker        *gobreaker.CircuitBreaker[struct{}]
	open           atomic.Bool  // whether the breaker is open or half open, readable without its lock
	writeRefusedAt atomic.Int64 // when a write failed, by latency's clock, if none succeeded since; or 0

	latency latency
	loading atomic.Int64 // loads in progress

	heartbeats   bool                      // whether heartbeats tell its role and link; else it is only pinged
	watched      bool                      // whether heartbeats are sent
	stop         func()                    // ends them; nil before they begin; guarded by Router.changing
	probeNow     chan struct{}             // asks for a heartbeat soon
	lastBeat     atomic.Pointer[beat]      // the latest that was answered
	unreachable  atomic.Bool               // whether the latest heartbeat had no answer
	promotedAt   atomic.Pointer[time.Time] // when it became the primary in place of another node, which may have had more counts
	syncedEpoch  atomic.Int64              // the epoch that is announced there
	deniedEpoch  atomic.Int64              // the epoch that this process can't announce there: it has no right to, or no signature
	lastRejected atomic.Value              // string: why the topology announced there is not taken over, as last reported

	misconfigured pacer // of reports
}

// identity tells the nodes of a router apart.
type identity struct {
	group, name string
	many        bool // whether it is a Redis Cluster; a single server may have the same name
}

func newNode(id identity, role Role, b backend.Backend, cfg Config, events *events) *node {
	n := &node{
		identity: id, backend: b, events: events,
		latency: latency{start: time.Now()}, probeNow: make(chan struct{}, 1),
	}
	n.role.Store(uint32(role))
	n.breaker = newBreaker(cfg, n.breakerChanged)
	_, n.heartbeats = b.(control.Heartbeater)
	_, pings := b.(backend.Pinger)
	n.watched = cfg.Heartbeat > 0 && (n.heartbeats || pings)
	return n
}

func (n *node) is(role Role) bool { return n.role.Load() == uint32(role) }

// setRole gives the node a role. A server may lose the last writes of its time as a primary, announcements too.
func (n *node) setRole(role Role) {
	if n.role.Swap(uint32(role)) != uint32(role) {
		n.syncedEpoch.Store(0)
		n.probeSoon() // what it said of its role is old
	}
}

// probeSoon asks for a heartbeat soon.
func (n *node) probeSoon() {
	select {
	case n.probeNow <- struct{}{}:
	default:
	}
}

// demoted reports whether the server said at the latest heartbeat that it is no primary.
func (n *node) demoted() bool {
	last := n.lastBeat.Load()
	return n.heartbeats && last != nil && !last.Primary
}

// promotionDoubt is [backend.ErrCountsLost] while the primary before this one may have had more counts.
func (n *node) promotionDoubt(p *limit.Policy) error {
	if at := n.promotedAt.Load(); at != nil && time.Since(*at) < state.Horizon(p) {
		return backend.ErrCountsLost
	}
	return nil
}

func (n *node) title() string { return n.group + "/" + n.name }

func (n *node) emit(event Event) {
	event.Group, event.Node = n.group, n.name
	n.events.emit(event)
}

// load reads a key's state.
func (n *node) load(ctx context.Context, req backend.Request) (snapshot backend.Snapshot, err error) {
	loader, ok := n.backend.(backend.Loader)
	if !ok {
		return snapshot, backend.ErrUnsupported
	}
	n.loading.Add(1)
	defer n.loading.Add(-1)
	err = n.call(ctx, read, "load", func() (err error) {
		snapshot, err = loader.Load(ctx, req)
		return err
	})
	return snapshot, err
}

// expected is how long a load would take, to compare nodes. It counts the loads in progress, so that concurrent callers
// don't all choose the node that was fastest a moment ago.
func (n *node) expected() time.Duration {
	return max(n.latency.now(), latencyFloor) * time.Duration(n.loading.Load()+1)
}

// readable reports whether a replica is fit to be read.
func (n *node) readable(maxLag time.Duration) bool {
	if n.open.Load() && (n.watched || n.breaker.State() != gobreaker.StateHalfOpen) {
		return false // if half open, the heartbeat is the trial, not a caller
	}
	if !n.heartbeats {
		return true
	}
	last := n.lastBeat.Load()
	return last != nil && !last.Primary && last.LinkUp && (maxLag < 0 || last.age() <= maxLag)
}
