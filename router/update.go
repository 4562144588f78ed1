package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend"
)

// ErrTopologyOld is in the chain of an error about a topology that other processes have replaced by a newer one.
var ErrTopologyOld = errors.New("a newer topology is in force")

// ErrTopologyConflict is in the chain of an error about two different topologies with one epoch: processes that differ in
// who owns a key must not run together. A topology with a larger epoch settles it.
var ErrTopologyConflict = errors.New("another topology of the same epoch is in force")

// Update puts a newer topology in force, at once and for every call that begins from then on. Its epoch must be larger
// than that of the one in force; a topology that is in force already changes nothing. It does no network I/O.
//
// Keys that change their owner take their counts along (promise P9): the first take of each seals it at the old owner
// and brings what was counted there, which costs two calls more, once. That goes on for the longest window of a policy
// and [Config.Settle]. Until then old groups must stay up; the router keeps its connections to them for Config.Drain.
//
// Processes may be told at different times. The new topology is posted at the primaries, so that a process that meets a
// key which has moved on learns of it there, and so does one that starts. Where an old owner is out of reach, a key starts
// without its counts, and decisions say so: Bounded, with the cause backend.ErrNotHandedOver.
func (r *Router) Update(topology Topology) error {
	if err := errors.Join(topology.Validate(), topology.suits(r.cfg)); err != nil {
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	return r.updateLocked(topology)
}

func (r *Router) updateLocked(topology Topology) error {
	s := r.snapshot.Load()
	refuse := func(err error) error {
		return &ConfigError{
			Field: "epoch", Value: strconv.FormatUint(topology.Epoch, 10),
			Bound: fmt.Sprintf("must be above %d, which is in force", s.topology.Epoch), Err: err,
		}
	}
	digest := topology.Digest()
	switch {
	case r.closed.Load():
		return backend.ErrClosed
	case r.opener == nil:
		return &ConfigError{Field: "topology", Value: strconv.FormatUint(topology.Epoch, 10),
			Bound: "must be given to Open: a router made by New keeps its nodes", Err: ErrNotSupported}
	case topology.Epoch == s.topology.Epoch && digest == s.digest:
		return nil
	case topology.Epoch == s.topology.Epoch:
		return refuse(ErrTopologyConflict)
	case topology.Epoch < s.topology.Epoch:
		return refuse(ErrTopologyOld)
	}
	now := time.Now()
	from := []former{{s, now}}
	for _, f := range s.from {
		if now.Sub(f.left) < r.cfg.Drain {
			from = append(from, former{f.snapshot.alone(), f.left})
		}
	}
	from[0].snapshot = s.alone()
	m := r.opener.maker(s)
	next := m.snapshot(topology, from)
	if err := m.end(); err != nil {
		return err
	}
	r.enforce(next)
	r.retire(s, next)
	r.events.emit(Event{Kind: TopologyChanged, From: strconv.FormatUint(s.topology.Epoch, 10), To: strconv.FormatUint(topology.Epoch, 10)})
	r.spread()
	return nil
}

// spread has the primaries consulted soon.
func (r *Router) spread() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// alone is a snapshot without its own past, so that pasts don't pile up.
func (s *snapshot) alone() *snapshot {
	c := *s
	c.from = nil
	return &c
}

// retire closes the nodes that no snapshot needs any more, and ends the followers. Calls that began before may still be on
// their way to a node, so it is closed after a while.
func (r *Router) retire(before, now *snapshot) {
	followed := now.followers()
	for _, f := range before.followers() {
		if !slices.Contains(followed, f) && f.leave != nil {
			f.leave()
		}
	}
	kept := now.nodes()
	for _, n := range before.nodes() {
		if slices.Contains(kept, n) {
			continue
		}
		if n.leave != nil {
			n.leave()
		}
		r.running.Go(func() {
			sleep(r.life, retireAfter+4*r.cfg.Backend.Timeout, nil)
			_ = n.backend.Close()
		})
	}
}

const retireAfter = 5 * time.Second // longer than a call goes by a snapshot that was replaced

// drain forgets former snapshots whose windows are over. It is called now and then.
func (r *Router) drain() {
	r.changing.Lock()
	defer r.changing.Unlock()
	s := r.snapshot.Load()
	if len(s.from) == 0 || time.Since(s.from[len(s.from)-1].left) < r.cfg.Drain || r.closed.Load() {
		return
	}
	next := *s
	next.from = nil
	for _, f := range s.from {
		if time.Since(f.left) < r.cfg.Drain {
			next.from = append(next.from, f)
		}
	}
	r.snapshot.Store(&next)
	r.retire(s, &next)
}

// Posting: the primaries keep the newest topology for those who don't know it.

// notice is the topology as it is posted. Its former ones go along, for those who learn of it but have not seen them.
func (s *snapshot) notice() (backend.Notice, error) {
	topology := s.topology
	last := &topology
	for _, f := range s.from {
		if len(s.from) > maxPrevious {
			break
		}
		previous := f.topology
		previous.Previous = nil
		last.Previous = &previous
		last = &previous
	}
	text, err := json.Marshal(topology)
	return backend.Notice{Version: s.version(), Digest: s.digest, Text: string(text)}, err
}

// consult compares the topology in force with what a node's notice says, and takes over a newer one.
func (r *Router) consult(ctx context.Context, n *node) error {
	poster, ok := n.backend.(backend.Poster)
	s := r.snapshot.Load()
	if !ok || s.version() == 0 {
		return backend.ErrUnsupported
	}
	mine, err := s.notice()
	if err != nil {
		return err
	}
	text := mine.Text
	mine.Text = ""
	var there backend.Notice
	ask := func() (err error) {
		there, err = poster.Post(ctx, mine)
		return err
	}
	if err = n.guard("post", ask); err == nil && there.Version < mine.Version {
		mine.Text = text
		err = n.guard("post", ask)
	}
	switch {
	case err != nil:
		return err
	case there.Version == mine.Version && there.Digest != mine.Digest:
		r.conflict(s, n, there.Digest)
		return ErrTopologyConflict
	case there.Version == mine.Version:
		n.knows.Store(mine.Version)
	case there.Version > mine.Version:
		topology, err := ParseTopology([]byte(there.Text))
		if err == nil {
			err = r.Update(topology)
		}
		if err != nil && !errors.Is(err, ErrTopologyOld) {
			r.events.emit(Event{Kind: TopologyRejected, Group: n.group, Node: n.name, Err: err})
			return err
		}
	}
	return nil
}

// conflict stops a snapshot that differs from what was posted under its epoch: until there is a newer one no call is made.
func (r *Router) conflict(s *snapshot, n *node, digest string) {
	stopped := *s
	stopped.refused = &ConfigError{
		Field: "topology", Value: s.digest, Bound: fmt.Sprintf("must be %s, which %s has as epoch %d", digest, n.title(), s.topology.Epoch),
		Err: ErrTopologyConflict,
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	if r.snapshot.Load() != s {
		return
	}
	r.snapshot.Store(&stopped)
	r.events.emit(Event{Kind: TopologyRejected, Group: n.group, Node: n.name, Err: stopped.refused})
}

// confer consults the primaries at the start, after each change, and now and then, until the router is closed.
func (r *Router) confer() {
	for {
		var all sync.WaitGroup
		for _, g := range r.snapshot.Load().groups {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(r.life, beatTimeout(r.cfg))
				defer cancel()
				_ = r.consult(ctx, g.primary) // what matters is in the events, and a node that is away is asked again
			})
		}
		all.Wait()
		r.drain()
		if !sleep(r.life, jitter(conferEvery), r.news) {
			return
		}
	}
}

const conferEvery = 10 * time.Second

// recall adds the former topologies that a node's notice names to those that keys may come from.
func (r *Router) recall(ctx context.Context, n *node) {
	poster, ok := n.backend.(backend.Poster)
	s := r.snapshot.Load()
	if !ok || s.version() < 2 {
		return
	}
	var there backend.Notice
	err := n.guard("post", func() (err error) { // what is newer than the epoch before comes with its text
		there, err = poster.Post(ctx, backend.Notice{Version: s.version() - 1, Digest: s.digest})
		return err
	})
	topology, bad := ParseTopology([]byte(there.Text))
	if err != nil || bad != nil {
		return
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	if s = r.snapshot.Load(); r.closed.Load() {
		return
	}
	next, m := *s, r.opener.maker(s)
	for p := topology.Previous; p != nil; p = p.Previous {
		if p.Epoch >= s.topology.Epoch || next.remembers(int64(p.Epoch)) {
			continue
		}
		next.from = append(slices.Clip(next.from), former{m.snapshot(*p, nil), time.Now()})
	}
	if m.end() == nil {
		slices.SortFunc(next.from, func(a, b former) int { return b.left.Compare(a.left) })
		r.enforce(&next)
	}
}

// WatchFile reads the topology from a file again whenever it changes, and puts it in force, until Close. A file that can't
// be read, or holds what [Router.Update] refuses, changes nothing and is reported as an event, once for each content.
func (r *Router) WatchFile(path string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	switch {
	case r.closed.Load():
		return backend.ErrClosed
	case r.opener == nil:
		return &ConfigError{Field: "file", Value: strconv.Quote(path), Bound: "must be for a router made by Open", Err: ErrNotSupported}
	}
	r.running.Go(func() {
		var last []byte
		for sleep(r.life, fileEvery, nil) {
			data, err := os.ReadFile(path)
			if err == nil && bytes.Equal(data, last) {
				continue
			}
			if err == nil {
				last = data
				var topology Topology
				if topology, err = ParseTopology(data); err == nil {
					err = r.Update(topology)
				}
			} else if last == nil {
				continue // it was reported
			} else {
				last = nil
			}
			if err != nil && !errors.Is(err, ErrTopologyOld) {
				r.events.emit(Event{Kind: TopologyRejected, Err: err})
			}
		}
	})
	return nil
}

const fileEvery = time.Second // is how often a topology file is looked at
