package simulation

import (
	"context"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/limit/state"
)

// node is a primary and its replica. As in Redis, a command is one step, decided at the clock that the request brings, and
// the replica follows a while later.
type node struct {
	w     *world
	group string
	state map[string]*state.State // guarded by the world's mutex, like all below
	board control.Announcement

	serial  int64             // of the last charge
	charges map[string][]debt // by key
	life    int               // it grows with each loss

	replica map[string]written
	stream  []written // on its way to the replica, in order
	frozen  []period
	random  func(what ...any) time.Duration // how long the replica is behind
}

// debt is one charge.
type debt struct{ serial, cost int64 }

// written is a key's state after a command.
type written struct {
	key    string
	serial int64
	state  state.State
	lands  time.Time
}

// period is from one moment to another.
type period struct{ from, to time.Time }

func (p period) has(t time.Time) bool { return !t.Before(p.from) && t.Before(p.to) }

func newNode(w *world, group string) *node {
	return &node{
		w: w, group: group, state: make(map[string]*state.State), charges: make(map[string][]debt), replica: make(map[string]written),
		random: func(what ...any) time.Duration {
			return span(dice(w.seed, append(what, "replication", group)...), 0, 60*time.Millisecond)
		},
	}
}

// serialOf is the serial number of a key's last charge.
func (n *node) serialOf(key string) int64 {
	if all := n.charges[key]; len(all) > 0 {
		return all[len(all)-1].serial
	}
	return 0
}

// thaws is when the node answers again what reaches it now.
func (n *node) thaws(now time.Time) time.Time {
	for _, p := range n.frozen {
		if p.has(now) {
			now = p.to
		}
	}
	return now
}

func (n *node) of(key string) *state.State {
	s := n.state[key]
	if s == nil {
		s = new(state.State)
		n.state[key] = s
	}
	return s
}

// wrote sends a key's state to the replica.
func (n *node) wrote(key string) {
	now := time.Now()
	lands := now.Add(n.random(key, now.UnixNano()))
	if last := len(n.stream) - 1; last >= 0 && lands.Before(n.stream[last].lands) {
		lands = n.stream[last].lands
	}
	n.stream = append(n.stream, written{key, n.serialOf(key), n.of(key).Clone(), lands})
}

// follow brings the replica up to now.
func (n *node) follow() {
	now, i := time.Now(), 0
	for ; i < len(n.stream) && !n.stream[i].lands.After(now); i++ {
		n.replica[n.stream[i].key] = n.stream[i]
	}
	n.stream = n.stream[i:]
}

// take is a take of a trip, by an instance that knew something of the key when it sent it.
func (n *node) take(req backend.Request, at state.At, t *trip, knew []int64) (r backend.Result, err error) {
	s := n.of(req.Key)
	if adopted, sealed := s.Fence(state.Topology, at); n.w.Plant == SealIgnored && sealed > adopted {
		s.Unfence(state.Topology)
	}
	floor := req.Floor
	if n.w.Plant == FloorIgnored {
		floor = nil
	}
	if _, err := s.Arrive(req.Policy, at, req.Move, floor, true); err != nil {
		return r, err
	}
	if req.Floor != nil {
		n.w.book.covered(n, req.Key, knew)
	}
	r = backend.Result{Verdict: s.Take(req.Policy, at, req.Cost), Now: at.Micros, State: s.Clone(), Source: backend.Primary}
	if r.Allowed {
		n.serial++
		n.charges[req.Key] = append(n.charges[req.Key], debt{n.serial, req.Cost})
		n.w.book.charged(n, &req, &r, t)
	}
	n.wrote(req.Key)
	return r, nil
}

func (n *node) seed(req backend.Request, at state.At, st *state.State) error {
	if n.w.Plant == FloorIgnored {
		st = new(state.State)
	}
	_, err := n.of(req.Key).Arrive(req.Policy, at, req.Move, st, false)
	n.wrote(req.Key)
	return err
}

func (n *node) seal(req backend.Request, at state.At) (backend.Snapshot, error) {
	s := n.of(req.Key)
	if _, err := s.Seal(at, req.Move); err != nil {
		return backend.Snapshot{}, err
	}
	n.wrote(req.Key)
	return backend.Snapshot{State: s.Clone(), Now: at.Micros, Source: backend.Primary}, nil
}

// giveBack changes a state under the request's move, which has no floor to adopt with.
func (n *node) giveBack(req backend.Request, at state.At, change func(*state.State)) error {
	s, move := n.of(req.Key), req.Move
	if move.Step == state.Adopt {
		move.Step = state.Ask
	}
	if _, err := s.Enter(at, move); err != nil {
		return err
	}
	change(s)
	n.wrote(req.Key)
	return nil
}

// fail makes the replica the primary: what it had not heard of is lost.
func (n *node) fail() {
	n.follow()
	n.stream = nil
	for _, key := range n.w.keys {
		n.w.book.lost(n, key, n.replica[key].serial)
		kept := n.replica[key].state
		s := kept.Clone()
		n.state[key] = &s
	}
	n.life++
}

// flush loses everything.
func (n *node) flush() {
	n.stream, n.board = nil, control.Announcement{}
	for _, key := range n.w.keys {
		n.w.book.lost(n, key, 0)
	}
	clear(n.state)
	clear(n.replica)
	n.life++
}

func (n *node) published() control.Announcement { return n.board }

// publish keeps an announcement, as control.Publisher says.
func (n *node) publish(given control.Announcement) control.Announcement {
	if n.board.Version < given.Version {
		n.board = given
	}
	inForce := n.board
	if inForce.Version <= given.Version {
		inForce.Text = ""
	}
	return inForce
}

// The key of a context's trip.
type tripKey struct{}

func tripOf(ctx context.Context) *trip {
	t, _ := ctx.Value(tripKey{}).(*trip)
	return t
}
