package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend"
)

// The primaries keep the newest topology, as a notice, for those who don't know it. The former ones go along, for those who
// were not there when they were in force.

// text is the topology as it is posted.
func (s *snapshot) text() (string, error) {
	topology := s.topology
	last := &topology
	last.Previous = nil
	told := 0
	for _, f := range s.from {
		if f.stray || told == maxPrevious {
			continue
		}
		previous := f.topology
		previous.Previous = nil
		last.Previous = &previous
		last = &previous
		told++
	}
	text, err := json.Marshal(topology)
	return string(text), errors.Join(err, topology.Validate())
}

// consult compares the topology in force with what a node's notice says, and takes over a newer one. Where there is an older
// one or none, it leaves its own if that is wanted, unless the router was stopped because others have another topology.
func (r *Router) consult(ctx context.Context, n *node, leave bool) error {
	poster, ok := n.backend.(backend.Poster)
	s := r.snapshot.Load()
	if !ok || s.version() == 0 {
		return backend.ErrUnsupported
	}
	mine := backend.Notice{Version: s.version(), Digest: s.digest}
	var there backend.Notice
	ask := func() (err error) {
		there, err = poster.Post(ctx, mine)
		return err
	}
	err := n.guard("post", ask)
	if err == nil && there.Version < mine.Version && leave && s.refused == nil {
		if mine.Text, err = s.text(); err == nil {
			err = n.guard("post", ask)
		}
	}
	switch {
	case err != nil:
		return err
	case there.Version < mine.Version:
		n.knows.Store(0)
	case there.Version == mine.Version && there.Digest != mine.Digest:
		n.knows.Store(0)
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
	if r.snapshot.Load() != s || s.refused != nil {
		return
	}
	r.events.emit(Event{Kind: TopologyRejected, Group: n.group, Node: n.name, Err: stopped.refused})
	r.snapshot.Store(&stopped)
}

// confer consults the primaries at the start, after each change, and now and then, until the router is closed; those of
// former topologies, too, for there may be processes that know no others. It looks at all of them before it leaves its
// notice anywhere, lest one that differs from all others wins at a server which has lost theirs.
func (r *Router) confer() {
	for {
		for _, leave := range []bool{false, true} {
			var all sync.WaitGroup
			s := r.snapshot.Load()
			for _, g := range s.all() {
				if g.pending || leave && g.primary.knows.Load() == s.version() {
					continue
				}
				all.Go(func() {
					ctx, cancel := context.WithTimeout(r.life, beatTimeout(r.cfg))
					defer cancel()
					if s.gap && !leave && s.byName[g.name] != nil {
						r.recall(ctx, g.primary)
					}
					_ = r.consult(ctx, g.primary, leave) // what matters is in the events, and a node that is away is asked again
				})
			}
			all.Wait()
		}
		r.drain()
		pause := jitter(conferEvery)
		if r.snapshot.Load().version() == 0 {
			pause = math.MaxInt64 // there is nothing to tell until there is a change
		}
		if !sleep(r.life, pause, r.news) {
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
	if err != nil || bad != nil || topology.Digest() != s.digest {
		return
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	if s = r.snapshot.Load(); r.closed.Load() || topology.Epoch != s.topology.Epoch {
		return
	}
	next, m := *s, r.opener.maker(s)
	next.remember(m, topology.Previous, time.Now())
	if m.end() == nil {
		r.enforceLocked(&next)
	}
}

// remember adds to the former topologies a chain of those that came before, as far as they are not known. Of an epoch, the
// chain has the one that counts.
func (s *snapshot) remember(m *maker, previous *Topology, now time.Time) {
	from := slices.Clone(s.from)
	for p := previous; p != nil; p = p.Previous {
		s.gap = false
		known, digest := p.Epoch >= s.topology.Epoch, p.Digest()
		for i := range from {
			if f := &from[i]; f.topology.Epoch == p.Epoch {
				f.stray = f.digest != digest
				known = known || !f.stray
			}
		}
		if !known {
			from = append(from, former{snapshot: m.snapshot(*p, nil), left: now})
		}
	}
	slices.SortStableFunc(from, func(a, b former) int { return int(b.version() - a.version()) })
	for i := len(from) - 1; i > 0; i-- { // none was left after a later one
		if from[i].left.After(from[i-1].left) {
			from[i-1].left = from[i].left
		}
	}
	s.succeed(from)
}
