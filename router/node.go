package router

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluice-go/sluice/backend"
)

// Role is what a node is in its group.
type Role uint8

const (
	RolePrimary Role = iota + 1 // it takes; there is one in a group
	RoleReplica                 // it is read
)

func (r Role) String() string {
	names := [...]string{"role?", "primary", "replica"}
	if int(r) < len(names) {
		return names[r]
	}
	return names[0]
}

// node is a backend with what is known of its health. Every call to the backend goes through do or guard.
type node struct {
	identity
	role    atomic.Uint32 // a Role; another one once its group has changed its primary
	backend backend.Backend
	events  *events

	breaker *breaker
	open    atomic.Bool // whether the breaker is open or half open, as it last said
	told    atomic.Bool // whether the last event said that it is open

	latency latency
	loading atomic.Int64 // loads under way

	heartbeats bool          // whether it says how it is, and is not only pinged
	watched    bool          // whether heartbeats are sent
	leave      func()        // ends them; nil before they begin
	knows      atomic.Int64  // the epoch that it was told of
	suspect    chan struct{} // asks for a heartbeat soon
	lastBeat   atomic.Pointer[beat]

	complained atomic.Int64 // when Misconfigured was last reported, Unix nanoseconds
}

// identity is what the nodes of a router are told apart by.
type identity struct {
	group, name string
	many        bool // whether it is many servers: a Redis Cluster that is found by one has that one's name
}

func newNode(id identity, role Role, b backend.Backend, cfg Config, events *events) *node {
	n := &node{
		identity: id, backend: b, events: events,
		latency: latency{start: time.Now()}, suspect: make(chan struct{}, 1),
	}
	n.play(role)
	n.breaker = newBreaker(cfg, n.open.Store)
	_, n.heartbeats = b.(backend.Heartbeater)
	_, pings := b.(backend.Pinger)
	n.watched = cfg.Heartbeat > 0 && (n.heartbeats || pings)
	return n
}

// play gives the node a role. What it was told as a primary it may have lost since, with writes of its last moments.
func (n *node) play(role Role) {
	if n.role.Swap(uint32(role)) != uint32(role) {
		n.knows.Store(0)
	}
}

func (n *node) is(role Role) bool { return n.role.Load() == uint32(role) }

// do makes a caller's call: through the breaker, measured. A call that finds the node slow or gone asks for a
// heartbeat: callers whose deadlines are shorter than the node's timeout say nothing to the breaker, heartbeats do.
func (n *node) do(op string, call func() error) error {
	began := n.latency.clock()
	var err error
	if n.many {
		err = n.pass(op, call)
	} else {
		err = n.guard(op, call)
	}
	ended := n.latency.clock()
	took := time.Duration(ended - began)
	if err == nil {
		n.latency.observe(took, ended)
		return nil
	}
	if errors.Is(err, ErrBreakerOpen) { // it was not called
		return err
	}
	kind := kindOf(err)
	if kind != 0 && kind != backend.Interrupted {
		took = max(took, failureCost)
	}
	n.latency.observe(took, ended)
	if kind == backend.Unavailable || errors.Is(err, context.DeadlineExceeded) {
		select {
		case n.suspect <- struct{}{}:
		default:
		}
	}
	return err
}

// guard makes a call through the breaker.
func (n *node) guard(op string, call func() error) error {
	_, err := n.breaker.Execute(func() (struct{}, error) { return struct{}{}, call() })
	n.tell(err)
	if refused(err) {
		return &backend.Error{Op: op, Node: n.title(), Kind: backend.Unavailable, Err: ErrBreakerOpen}
	}
	return err
}

// pass makes a caller's call to a node that is many servers. Only the heartbeat tells its breaker anything: the keys of one
// server that is away must not make the others' fail.
func (n *node) pass(op string, call func() error) error {
	if n.open.Load() {
		return &backend.Error{Op: op, Node: n.title(), Kind: backend.Unavailable, Err: ErrBreakerOpen}
	}
	err := call()
	n.tell(err)
	return err
}

// demoted reports whether the server said at the latest heartbeat that it is no primary.
func (n *node) demoted() bool {
	last := n.lastBeat.Load()
	return n.heartbeats && last != nil && !last.Primary
}

// tell reports what a call has changed or met. The breaker can't do so itself, under its lock.
func (n *node) tell(err error) {
	if open := n.open.Load(); n.told.Load() != open && n.told.CompareAndSwap(!open, open) {
		event := Event{Kind: BreakerClosed}
		if open {
			event.Kind = BreakerOpened
			if kindOf(err) == backend.Unavailable {
				event.Err = err
			}
		}
		n.emit(event)
	}
	if kindOf(err) == backend.Misconfigured {
		const pause = 10 * time.Second
		now, last := time.Now().UnixNano(), n.complained.Load()
		if now-last >= int64(pause) && n.complained.CompareAndSwap(last, now) {
			n.emit(Event{Kind: Misconfigured, Err: err})
		}
	}
}

func (n *node) emit(event Event) {
	event.Group, event.Node = n.group, n.name
	n.events.emit(event)
}

func (n *node) title() string { return n.group + "/" + n.name }

// load reads a key's state.
func (n *node) load(ctx context.Context, req backend.Request) (snapshot backend.Snapshot, err error) {
	loader, ok := n.backend.(backend.Loader)
	if !ok {
		return snapshot, backend.ErrUnsupported
	}
	n.loading.Add(1)
	defer n.loading.Add(-1)
	err = n.do("load", func() (err error) {
		snapshot, err = loader.Load(ctx, req)
		return err
	})
	return snapshot, err
}

// expected is the time that a load would take, for comparison with other nodes. The loads under way count, so that
// many callers at once don't all go to the node that was fastest a moment ago.
func (n *node) expected() time.Duration {
	return max(n.latency.now(), latencyFloor) * time.Duration(n.loading.Load()+1)
}

// readable reports whether a replica is fit to be read.
func (n *node) readable(maxLag time.Duration) bool {
	if n.open.Load() && (n.watched || n.breaker.State() != gobreaker.StateHalfOpen) {
		return false // half open: the heartbeat tries, if there is one, rather than a caller
	}
	if !n.heartbeats {
		return true
	}
	last := n.lastBeat.Load()
	return last != nil && !last.Primary && last.LinkUp && (maxLag < 0 || last.age() <= maxLag)
}
