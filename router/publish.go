package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
)

// The primaries keep the newest topology, as a notice, for those who don't know it. The former ones go along, for those who
// were not there when they were in force.

// notice is the topology as it is published. One that is signed is published as it is, which is the only one that signed keys
// let through.
func (s *routingTable) announcement() (backend.Notice, error) {
	topology := s.topology
	if len(topology.Signature) == 0 {
		topology = s.published()
	}
	text, err := json.Marshal(topology)
	return backend.Notice{Version: s.version(), Digest: s.digest, Text: string(text)}, errors.Join(err, topology.Validate())
}

// chain is the topology with the former ones, as far as they are known.
func (s *routingTable) published() Topology {
	topology := s.topology
	last := &topology
	last.Previous = nil
	told, more := 0, false
	for _, f := range s.history {
		if f.conflicting || f.version() == 0 {
			continue
		}
		if told == maxPrevious {
			more = true
			break
		}
		previous := f.topology
		previous.Previous, previous.Signature = nil, nil
		last.Previous, last.Baseline = &previous, false
		last = &previous
		told++
	}
	last.Baseline = last.Epoch > 1 && !more // what came before is over, unless it is only left out
	return topology
}

// consult compares the topology in force with the one that a node's notice has, and takes over a newer one. Where there is an
// older one or none, it leaves its own if that is wanted, unless the router was stopped because others have another topology.
func (r *Router) syncWith(ctx context.Context, n *node, leave bool) error {
	board, ok := n.backend.(backend.Poster)
	s := r.table.Load()
	if !ok || s.version() == 0 {
		return backend.ErrUnsupported
	}
	there, err := r.readAnnouncement(ctx, n, board)
	if err == nil && there.Version < s.version() && leave && s.stopped == nil && r.publish(ctx, n, board, s) {
		there, err = r.readAnnouncement(ctx, n, board)
	}
	switch {
	case err != nil:
		return err
	case there.Version < s.version():
		n.syncedEpoch.Store(0)
		return nil
	case there.Version == s.version() && there.Digest == s.digest:
		n.syncedEpoch.Store(s.version())
		return nil
	}
	topology, err := r.trustedTopology(s, there)
	switch {
	case err == nil && there.Version == s.version():
		n.syncedEpoch.Store(0)
		r.stopForConflict(s, n, topology)
		return ErrTopologyConflict
	case err == nil:
		if err = r.Update(topology); err == nil || errors.Is(err, ErrTopologyOld) {
			return nil
		}
	}
	n.reportRejection(err)
	return err
}

func (r *Router) readAnnouncement(ctx context.Context, n *node, board backend.Poster) (there backend.Notice, err error) {
	err = n.query("look", func() (err error) {
		there, err = board.Look(ctx)
		return n.typeTimeout(ctx, err)
	})
	return there, err
}

// publish leaves the topology at a node, and reports whether it was let do so. One who may not write there is no fault: then
// others publish.
func (r *Router) publish(ctx context.Context, n *node, board backend.Poster, s *routingTable) bool {
	if n.deniedEpoch.Load() == s.version() {
		return false
	}
	if len(r.cfg.TopologyKeys) > 0 && len(s.topology.Signature) == 0 {
		if n.deniedEpoch.Swap(s.version()) != s.version() {
			n.emit(Event{Kind: TopologyUnpublished, Err: &ConfigError{Field: "signature", Value: "none", Bound: fmt.Sprintf(
				"must be there with TopologyKeys for epoch %d to be published: processes that were not given it don't learn of it", s.version())}})
		}
		return false
	}
	notice, err := s.announcement()
	if err != nil {
		n.reportRejection(err)
		return false
	}
	return n.query("post", func() error {
		_, err := board.Post(ctx, notice)
		if reply := redis.Error(nil); errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "NOPERM") {
			n.deniedEpoch.Store(s.version())
			return nil
		}
		return n.typeTimeout(ctx, err)
	}) == nil && n.deniedEpoch.Load() != s.version()
}

// reject reports that a topology from a node is not taken over, once for each thing wrong.
func (n *node) reportRejection(err error) {
	if text := err.Error(); n.lastRejection.Swap(text) != text {
		n.emit(Event{Kind: TopologyRejected, Err: err})
	}
}

// conflict stops a snapshot that differs from what was published under its epoch: until there is a newer one no call is made.
func (r *Router) stopForConflict(s *routingTable, n *node, published Topology) {
	stopped := *s
	stopped.stopped = s.topology.conflictWith(published, n.title())
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.table.Load() != s || s.stopped != nil {
		return
	}
	r.events.emit(Event{Kind: TopologyRejected, Group: n.group, Node: n.name, Err: stopped.stopped})
	r.table.Store(&stopped)
}

// confer consults the primaries at the start, after each change, and now and then, until the router is closed; those of
// former topologies, too, for there may be processes that know no others. It looks at all of them before it leaves its
// notice anywhere, lest one that differs from all others wins at a server which has lost theirs.
func (r *Router) syncLoop() {
	for {
		for _, leave := range []bool{false, true} {
			var all sync.WaitGroup
			s := r.table.Load()
			for _, g := range s.allGroups() {
				if g.pending || leave && g.primary.syncedEpoch.Load() == s.version() {
					continue
				}
				all.Go(func() {
					ctx, cancel := context.WithTimeout(r.life, beatTimeout(r.cfg))
					defer cancel()
					_ = r.syncWith(ctx, g.primary, leave) // what matters is in the events, and a node that is away is asked again
				})
			}
			all.Wait()
		}
		r.dropDrained()
		pause := jitter(syncEvery)
		if r.table.Load().version() == 0 {
			pause = math.MaxInt64 // there is nothing to tell until there is a change
		}
		if !sleep(r.life, pause, r.syncSoon) {
			return
		}
	}
}

const syncEvery = 10 * time.Second

// remember adds to the former topologies a chain of those that came before, as far as they are not known. Of an epoch, the
// chain has the one that counts.
func (s *routingTable) addPrevious(m *builder, previous *Topology, now time.Time) {
	from := slices.Clone(s.history)
	for p := previous; p != nil; p = p.Previous {
		known, digest := p.Epoch >= s.topology.Epoch, p.Digest()
		for i := range from {
			if f := &from[i]; f.topology.Epoch == p.Epoch {
				f.conflicting = f.digest != digest
				known = known || !f.conflicting
			}
		}
		if !known {
			from = append(from, previousTable{routingTable: m.table(*p, nil), left: now})
		}
	}
	slices.SortStableFunc(from, func(a, b previousTable) int { return int(b.version() - a.version()) })
	for i := len(from) - 1; i > 0; i-- { // none was left after a later one
		if from[i].left.After(from[i-1].left) {
			from[i-1].left = from[i].left
		}
	}
	s.setHistory(from)
}
