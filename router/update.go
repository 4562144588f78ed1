package router

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/backend"
)

// ErrTopologyOld is in the chain of an error about a topology that other processes have replaced by a newer one.
var ErrTopologyOld = errors.New("a newer topology is in force")

// ErrTopologyConflict is in the chain of an error about two different topologies with one epoch: processes that differ in the
// owner of a key must not run together. A topology with a larger epoch resolves the conflict.
var ErrTopologyConflict = errors.New("another topology of the same epoch is in force")

// Update puts a newer topology in force at once, for every call that begins from then on. It does no network I/O, and keeps
// a copy of the topology.
//
// Where keys change their owner, the epoch must be larger than that of the one in force, by at most [MaxEpochJump]. Under the
// same epoch only addresses may differ: they are put in force, too, and no key is handed over. If the epoch is larger by more
// than 1, Previous must name the topologies between, since keys may have counts under them. Groups that only a Previous names are
// where the latest of those says.
//
// Keys that change their owner take their counts along (promise P9): the first take of each seals it at the previous owner and
// brings its counts, which costs two more calls, once, or three if the take has a floor, as those of a lease.Lease have.
// Handovers last for the longest window of a policy and [Config.Settle]. Until then previous groups must stay up; the router
// keeps its connections to them that long, and for [Config.Drain] at least.
//
// Processes may be updated at different times. The new topology is published at the primaries: a process that finds a key moved
// on learns of it there, and so does one that starts. Where a previous owner is unreachable, a key starts without its counts,
// and decisions say so: Bounded, with the cause backend.ErrNotHandedOver.
//
// A primary with another address than its group had before, under any topology that is known here, may be another server: its
// decisions are Bounded, with the cause backend.ErrCountsLost, until the windows from before are over.
func (r *Router) Update(topology Topology) error {
	topology = topology.clone()
	if err := errors.Join(topology.Validate(), topology.checkConfig(r.cfg)); err != nil {
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	return r.updateLocked(topology)
}

func (r *Router) updateLocked(topology Topology) error {
	t := r.table.Load()
	digest := topology.Digest()
	switch {
	case r.closed.Load():
		return backend.ErrClosed
	case r.opener == nil:
		return &ConfigError{Field: "topology", Value: strconv.FormatUint(topology.Epoch, 10),
			Bound: "must be given to Open: a router made by New keeps its nodes", Err: ErrNotSupported}
	case topology.Epoch == t.topology.Epoch && digest == t.digest:
		return r.updateAddressesLocked(t, topology)
	case topology.Epoch == t.topology.Epoch:
		return topology.conflictWith(t.topology, "this process")
	case topology.Epoch < t.topology.Epoch:
		return &ConfigError{Field: "epoch", Value: strconv.FormatUint(topology.Epoch, 10), Err: ErrTopologyOld, Bound: fmt.Sprintf(
			"must be above %d, which is in force: to go back, publish it as epoch %d with epoch %d as its \"previous\"",
			t.topology.Epoch, t.topology.Epoch+1, t.topology.Epoch)}
	}
	if err := errors.Join(checkJump(t, &topology), topology.history(t.topology.Epoch)); err != nil {
		return err
	}
	b := r.opener.builder(t)
	was, now := b.relocate(t, &topology), time.Now()
	known := append([]previousPlacement{{was.placement, now, t.stopped != nil}}, r.undrained(was)...)
	next := &routingTable{placement: b.placement(topology)}
	next.history = b.history(next.placement, known, topology.Previous, now)
	if err := b.finish(); err != nil {
		return err
	}
	r.installLocked(next)
	r.closeUnused(t, next)
	r.events.emit(Event{Kind: TopologyChanged, From: strconv.FormatUint(t.topology.Epoch, 10), To: strconv.FormatUint(topology.Epoch, 10)})
	r.wakeSync()
	return nil
}

// updateAddressesLocked puts in force the addresses of a topology under which all keys have the same owners, those of groups that
// only its Previous have included. The history stays, and what is new in its Previous is added.
func (r *Router) updateAddressesLocked(t *routingTable, topology Topology) error {
	if reflect.DeepEqual(topology, t.topology) {
		return nil
	}
	b := r.opener.builder(t)
	next := b.relocate(t, &topology)
	if !sameHistory(&topology, &t.topology) {
		next.history = b.history(next.placement, next.history.all, topology.Previous, time.Now())
	}
	if err := b.finish(); err != nil {
		return err
	}
	for _, n := range next.nodes() {
		n.deniedEpoch.Store(0) // it may be signed now
	}
	r.installLocked(next)
	r.closeUnused(t, next)
	if !slices.Equal(topology.endpoints(), t.topology.endpoints()) {
		epoch := strconv.FormatUint(topology.Epoch, 10)
		r.events.emit(Event{Kind: TopologyChanged, From: epoch, To: epoch})
	}
	r.wakeSync()
	return nil
}

// relocate returns the table with its groups at the addresses that a topology or, for those that it doesn't have, one of its
// previous ones gives them. What is published of those topologies has the new addresses, too.
func (b *builder) relocate(t *routingTable, topology *Topology) *routingTable {
	groups := make(map[string]*Group, len(topology.Groups)) // by the latest topology that names it
	for p := topology; p != nil; p = p.Previous {
		for i := range p.Groups {
			if g := &p.Groups[i]; groups[g.Name] == nil {
				groups[g.Name] = g
			}
		}
	}
	next := t.withGroups(func(g *group) *group {
		if groups[g.name] == nil {
			return nil
		}
		now := *groups[g.name]
		now.Weight = g.weight
		return b.group(&now)
	})
	for p := topology; p != nil; p = p.Previous {
		for _, known := range next.placements() {
			if known.topology.Epoch == p.Epoch && known.digest == p.Digest() {
				known.topology = *p
			}
		}
	}
	return next
}

// closeUnused ends the watchers and closes the nodes that a table no longer has. Calls that began before may still use such a
// node, so it is closed after a while.
func (r *Router) closeUnused(before, now *routingTable) {
	watchers := now.watchers()
	for _, w := range before.watchers() {
		if !slices.Contains(watchers, w) && w.stop != nil {
			w.stop()
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

const closeAfter = 5 * time.Second // longer than a call uses a table that was replaced
