package router

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
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

// node is a backend with what is known of its health. Every call to the backend goes through do, read or guard.
type node struct {
	identity
	role    atomic.Uint32 // a Role; another one once its group has changed its primary
	backend backend.Backend
	events  *events

	breaker  *breaker
	open     atomic.Bool // whether the breaker is open or half open, as it last said
	reported atomic.Bool // whether the last event said that it is open

	latency latency
	loading atomic.Int64 // loads under way

	heartbeats     bool          // whether it says how it is, and is not only pinged
	watched        bool          // whether heartbeats are sent
	stop           func()        // ends them; nil before they begin
	syncedEpoch    atomic.Int64  // the epoch that it was told of
	deniedEpoch    atomic.Int64  // the epoch that this process can't publish there: no right to, or no signature
	lastRejection  atomic.Value  // string: why the topology that it holds is not taken over, as last reported
	probeNow       chan struct{} // asks for a heartbeat soon
	lastBeat       atomic.Pointer[beat]
	unreachable    atomic.Bool               // whether the latest heartbeat had no answer
	promotedAt     atomic.Pointer[time.Time] // when it became the primary in place of another one, which may have had more counts
	writeRefusedAt atomic.Int64              // when a change failed, by latency's clock, and none got through since; or 0

	misconfiguredAt atomic.Int64 // when Misconfigured was last reported, Unix nanoseconds
}

// identity is what the nodes of a router are told apart by.
type identity struct {
	group, name string
	many        bool // whether it is many servers: a Redis Cluster that is found by one has that one's name
}

func newNode(id identity, role Role, b backend.Backend, cfg Config, events *events) *node {
	n := &node{
		identity: id, backend: b, events: events,
		latency: latency{start: time.Now()}, probeNow: make(chan struct{}, 1),
	}
	n.role.Store(uint32(role))
	n.breaker = newBreaker(cfg, n.open.Store)
	_, n.heartbeats = b.(backend.Heartbeater)
	_, pings := b.(backend.Pinger)
	n.watched = cfg.Heartbeat > 0 && (n.heartbeats || pings)
	return n
}

// play gives the node a role. What it was told as a primary it may have lost since, with writes of its last moments.
func (n *node) setRole(role Role) {
	if n.role.Swap(uint32(role)) != uint32(role) {
		n.syncedEpoch.Store(0)
		n.probeSoon() // what it said of its role is old
	}
}

// hasten asks for a heartbeat soon.
func (n *node) probeSoon() {
	select {
	case n.probeNow <- struct{}{}:
	default:
	}
}

// doubt says why the node may lack counts because it has taken over from another one.
func (n *node) doubt(p *limit.Policy) error {
	if since := n.promotedAt.Load(); since != nil && time.Since(*since) < p.Horizon() {
		return backend.ErrCountsLost
	}
	return nil
}

func (n *node) is(role Role) bool { return n.role.Load() == uint32(role) }

// do makes a caller's call that changes what the node holds: through the breaker, measured.
func (n *node) write(op string, call func() error) error {
	began := n.latency.clock()
	if n.many {
		return n.measure(began, n.callMany(op, call))
	}
	err := n.throughBreaker(op, call)
	switch {
	case err == nil && n.writeRefusedAt.Load() != 0:
		n.writeRefusedAt.Store(0)
	case kindOf(err) == backend.Unavailable && !errors.Is(err, ErrBreakerOpen):
		n.writeRefusedAt.Store(max(began, 1))
	}
	return n.measure(began, err)
}

// callerKey has the context of the caller in one that ends sooner for the router's own reasons.
type callerKey struct{}

// overdue types the end of the router's time for a call, which a node takes for the caller's, before the breaker hears of it. Where
// there are heartbeats they find a node that hangs; without them nobody else does.
func (n *node) typeTimeout(ctx context.Context, err error) error {
	if err == nil || n.watched {
		return err
	}
	if caller, ok := ctx.Value(callerKey{}).(context.Context); ok {
		return asTimeout(caller, err)
	}
	return err
}

// read makes a caller's call that changes nothing, measured.
func (n *node) read(op string, call func() error) error {
	began := n.latency.clock()
	if n.many {
		return n.measure(began, n.callMany(op, call))
	}
	return n.measure(began, n.query(op, call))
}

// measure takes note of what a call met. One that finds the node slow or gone asks for a heartbeat: callers whose deadlines
// are shorter than the node's timeout say nothing to the breaker, heartbeats do.
func (n *node) measure(began int64, err error) error {
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
		n.probeSoon()
	}
	return err
}

// guard makes a call that changes nothing: through the breaker, unless that is about changes only.
func (n *node) query(op string, call func() error) error {
	if n.refusesWrites() {
		return n.bypassBreaker(call)
	}
	return n.throughBreaker(op, call)
}

// through makes a call through the breaker.
func (n *node) throughBreaker(op string, call func() error) error {
	var err error
	_, verdict := n.breaker.Execute(func() (struct{}, error) {
		if err = call(); err != nil && kindOf(err) != backend.Unavailable && n.writesBlocked() {
			return struct{}{}, errUnchanged
		}
		return struct{}{}, err
	})
	n.report(err)
	if breakerRefused(verdict) {
		return n.openError(op)
	}
	return err
}

// past makes a call that says nothing to the breaker.
func (n *node) bypassBreaker(call func() error) error {
	err := call()
	n.report(err)
	return err
}

// pass makes a caller's call to a node that is many servers. Only the heartbeat tells its breaker anything: the keys of one
// server that is away must not make the others' fail.
func (n *node) callMany(op string, call func() error) error {
	if n.open.Load() {
		return n.openError(op)
	}
	return n.bypassBreaker(call)
}

func (n *node) openError(op string) error {
	return &backend.Error{Op: op, Node: n.title(), Kind: backend.Unavailable, Err: ErrBreakerOpen}
}

// refusing reports whether a primary answers, but takes no changes, as far as is known: a replica does so, and a server that
// is out of memory or of replicas, or can't save. Its breaker is about changes then. No other answer says anything of them:
// heartbeats and reads go past it, and nothing but a change closes it.
func (n *node) refusesWrites() bool {
	if !n.watched || n.unreachable.Load() || !n.is(RolePrimary) {
		return false
	}
	if n.demoted() {
		return true
	}
	refused := n.writeRefusedAt.Load()
	return refused != 0 && n.latency.clock()-refused < int64(breakerWindow) // what is older counts for nothing in a breaker
}

// barred reports whether the breaker keeps changes from a node that refuses them.
func (n *node) writesBlocked() bool { return n.open.Load() && n.refusesWrites() }

// demoted reports whether the server said at the latest heartbeat that it is no primary.
func (n *node) demoted() bool {
	last := n.lastBeat.Load()
	return n.heartbeats && last != nil && !last.Primary
}

// errUnchanged ends a call that got an answer without a change, such as a denial, where only changes count.
var errUnchanged = errors.New("nothing was changed")

// tell reports what a call has changed or met. The breaker can't do so itself, under its lock.
func (n *node) report(err error) {
	if open := n.open.Load(); n.reported.Load() != open && n.reported.CompareAndSwap(!open, open) {
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
		now, last := time.Now().UnixNano(), n.misconfiguredAt.Load()
		if now-last >= int64(pause) && n.misconfiguredAt.CompareAndSwap(last, now) {
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
	err = n.read("load", func() (err error) {
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
