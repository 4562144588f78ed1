package router

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// ErrTopologyOld is in the chain of an error about a topology that other processes have replaced by a newer one.
var ErrTopologyOld = errors.New("a newer topology is in force")

// ErrTopologyConflict is in the chain of an error about two different topologies with one epoch: processes that differ in
// who owns a key must not run together. A topology with a larger epoch settles it.
var ErrTopologyConflict = errors.New("another topology of the same epoch is in force")

// Update puts a newer topology in force, at once and for every call that begins from then on. It does no network I/O.
//
// Where keys change their owner, the epoch must be larger than that of the one in force, by at most [MaxEpochJump]. Under the
// same epoch only addresses may differ: they are put in force, too, and no key is handed over for it. If the epoch is larger
// by more than 1, the topologies between must be named by Previous, since keys may have counts under them.
//
// Keys that change their owner take their counts along (promise P9): the first take of each seals it at the old owner
// and brings what was counted there, which costs two calls more, once. That goes on for the longest window of a policy
// and [Config.Settle]. Until then old groups must stay up; the router keeps its connections to them for that long, and for
// [Config.Drain] at least.
//
// Processes may be told at different times. The new topology is posted at the primaries, so that a process that meets a
// key which has moved on learns of it there, and so does one that starts. Where an old owner is out of reach, a key starts
// without its counts, and decisions say so: Bounded, with the cause backend.ErrNotHandedOver.
func (r *Router) Update(topology Topology) error {
	if err := errors.Join(topology.Validate(), topology.checkConfig(r.cfg)); err != nil {
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	return r.updateLocked(topology)
}

func (r *Router) updateLocked(topology Topology) error {
	s := r.table.Load()
	digest := topology.Digest()
	switch {
	case r.closed.Load():
		return backend.ErrClosed
	case r.opener == nil:
		return &ConfigError{Field: "topology", Value: strconv.FormatUint(topology.Epoch, 10),
			Bound: "must be given to Open: a router made by New keeps its nodes", Err: ErrNotSupported}
	case topology.Epoch == s.topology.Epoch && digest == s.digest:
		return r.updateAddressesLocked(s, topology)
	case topology.Epoch == s.topology.Epoch:
		return topology.conflictWith(s.topology, "this process")
	case topology.Epoch < s.topology.Epoch:
		return &ConfigError{Field: "epoch", Value: strconv.FormatUint(topology.Epoch, 10), Err: ErrTopologyOld, Bound: fmt.Sprintf(
			"must be above %d, which is in force: to go back, publish it as epoch %d with epoch %d as its \"previous\"",
			s.topology.Epoch, s.topology.Epoch+1, s.topology.Epoch)}
	}
	if err := errors.Join(checkJump(s, &topology), topology.history(s.topology.Epoch)); err != nil {
		return err
	}
	now := time.Now()
	from := append([]previousTable{{s.withoutHistory(), now, s.stopped != nil}}, r.keepUndrained(s.history)...)
	m := r.opener.builder(s)
	next := m.table(topology, from)
	next.addPrevious(m, topology.Previous, now)
	if err := m.finish(); err != nil {
		return err
	}
	r.installLocked(next)
	r.closeUnused(s, next)
	r.events.emit(Event{Kind: TopologyChanged, From: strconv.FormatUint(s.topology.Epoch, 10), To: strconv.FormatUint(topology.Epoch, 10)})
	r.wakeSync()
	return nil
}

// readdressLocked puts the addresses of a topology in force whose keys have the same owners, those of groups that only its Previous
// have included. What is known of former topologies otherwise stays, and a Previous that is new is added.
func (r *Router) updateAddressesLocked(s *routingTable, topology Topology) error {
	if reflect.DeepEqual(topology, s.topology) {
		return nil
	}
	groups := make(map[string]*Group, len(topology.Groups)) // a group is where the latest says that has it
	for p := &topology; p != nil; p = p.Previous {
		for i := range p.Groups {
			if g := &p.Groups[i]; groups[g.Name] == nil {
				groups[g.Name] = g
			}
		}
	}
	m := r.opener.builder(s)
	next := s.withGroups(func(g *group) *group {
		if groups[g.name] == nil {
			return nil
		}
		now := *groups[g.name]
		now.Weight = g.weight
		return m.group(&now)
	})
	next.topology = topology
	for p := topology.Previous; p != nil; p = p.Previous {
		for _, f := range next.history { // what is published of it has the new addresses, too
			if f.topology.Epoch == p.Epoch && f.digest == p.Digest() {
				f.topology = *p
			}
		}
	}
	if !sameHistory(&topology, &s.topology) {
		next.addPrevious(m, topology.Previous, time.Now())
	}
	if err := m.finish(); err != nil {
		return err
	}
	for _, n := range next.nodes() {
		n.deniedEpoch.Store(0) // it may be signed now
	}
	r.installLocked(next)
	r.closeUnused(s, next)
	if !slices.Equal(topology.endpoints(), s.topology.endpoints()) {
		epoch := strconv.FormatUint(topology.Epoch, 10)
		r.events.emit(Event{Kind: TopologyChanged, From: epoch, To: epoch})
	}
	r.wakeSync()
	return nil
}

// spread has the primaries consulted soon.
func (r *Router) wakeSync() {
	select {
	case r.syncSoon <- struct{}{}:
	default:
	}
}

// alone is a snapshot without its own past, so that pasts don't pile up.
func (s *routingTable) withoutHistory() *routingTable {
	c := *s
	c.setHistory(nil)
	return &c
}

// retire closes the nodes that no snapshot needs any more, and ends the followers. Calls that began before may still be on
// their way to a node, so it is closed after a while.
func (r *Router) closeUnused(before, now *routingTable) {
	followed := now.watchers()
	for _, f := range before.watchers() {
		if !slices.Contains(followed, f) && f.stop != nil {
			f.stop()
		}
	}
	kept := now.nodes()
	for _, n := range before.nodes() {
		if slices.Contains(kept, n) {
			continue
		}
		if n.stop != nil {
			n.stop()
		}
		r.running.Go(func() {
			sleep(r.life, closeAfter+4*r.cfg.Backend.Timeout, nil)
			_ = n.backend.Close()
		})
	}
}

const closeAfter = 5 * time.Second // longer than a call goes by a snapshot that was replaced

// drain forgets former snapshots whose windows are over. It is called now and then.
func (r *Router) dropDrained() {
	r.changing.Lock()
	defer r.changing.Unlock()
	s := r.table.Load()
	kept := r.keepUndrained(s.history)
	if len(kept) == len(s.history) || r.closed.Load() {
		return
	}
	next := *s
	next.setHistory(kept)
	r.table.Store(&next)
	r.closeUnused(s, &next)
}

// undrained is those of former snapshots that keys may still come from: Drain is for the windows of policies that this router
// hasn't met.
func (r *Router) keepUndrained(from []previousTable) []previousTable {
	keep := max(r.cfg.Drain, time.Duration(r.longest.Load()))
	ring := r.table.Load().ring
	return slices.DeleteFunc(slices.Clone(from), func(f previousTable) bool {
		over := time.Since(f.left) >= keep
		if last := r.lastDrained.Load(); over && f.ring != ring && (last == nil || last.Before(f.left)) {
			r.lastDrained.Store(&f.left)
		}
		return over
	})
}

// lacks says why counts under a policy may be missing, whatever the key: its windows are longer than former topologies were kept.
func (r *Router) drainedCause(p *limit.Policy) error {
	if left := r.lastDrained.Load(); left != nil && time.Since(*left) < r.hold(p) {
		return errors.Join(backend.ErrNotHandedOver, errDrained)
	}
	return nil
}

var errDrained = errors.New("Config.Drain is shorter than the policy's windows and Settle, and the policy was not used before")
