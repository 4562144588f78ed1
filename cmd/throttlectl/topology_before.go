package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/router"
)

// What comes before a topology that is pushed decides where processes that start look for counts. What is in force must be
// among it: its groups have the counts.

// publishState is how things are before a push.
type publishState struct {
	publishers []*publisher
	before     []published
}

func (c *publishState) close() {
	for _, b := range c.publishers {
		b.close()
	}
}

// readState reads the boards of the file's groups and of the topology in force, as the file names it: what servers say leads to no
// others. Where nothing is known yet, those of the topologies that the file names are read, the newest first.
func readState(ctx context.Context, s *cluster) *publishState {
	c, named := new(publishState), topologyHistory(s.topology.Previous)
	for next := s.topology.Groups; len(next) > 0; {
		boards, _ := s.publishers(ctx, next) // they are closed with the scene
		c.publishers, c.before = append(c.publishers, boards...), append(c.before, readPublished(ctx, boards)...)
		next = nil
		if newest := newestPublished(c.before); newest.Epoch > 0 {
			if i := slices.IndexFunc(named, func(t router.Topology) bool { return t.Epoch == newest.Epoch }); i >= 0 {
				next = c.unread(named[i].Groups)
			}
			continue
		}
		for len(next) == 0 && len(named) > 0 {
			next, named = c.unread(named[0].Groups), named[1:]
		}
	}
	return c
}

// unread are the groups whose boards were not read yet.
func (c *publishState) unread(groups []router.Group) []router.Group {
	return slices.DeleteFunc(slices.Clone(groups), func(g router.Group) bool {
		return slices.ContainsFunc(c.publishers, func(b *publisher) bool { return b.Group == g.Name })
	})
}

// trustedTopology is the topology that a board has, if the tool may go by it: it leads to no server that the file doesn't know, unless it is
// signed or the server allowed.
func (s *cluster) trustedTopology(p published) (router.Topology, error) {
	t, err := router.ParseTopology([]byte(p.text))
	switch {
	case err != nil:
	case t.Epoch != p.Epoch:
		err = fmt.Errorf("its text has epoch %d", t.Epoch)
	default:
		err = s.trust.CheckPublished(s.topology, t)
	}
	if err != nil {
		return t, fmt.Errorf("the topology of epoch %d on %s: %w (throttlectl topology withdraw takes one away that should not be there)",
			p.Epoch, p.Node, err)
	}
	return t, nil
}

// newestPublished is the first notice of the largest epoch.
func newestPublished(all []published) (newest published) {
	for _, p := range all {
		if p.Epoch > newest.Epoch {
			newest = p
		}
	}
	return newest
}

// topologyHistory is a topology and all before it, the newest first, each without what came before it.
func topologyHistory(t *router.Topology) (all []router.Topology) {
	for ; t != nil; t = t.Previous {
		one := *t
		one.Previous = nil
		all = append(all, one)
	}
	return all
}

// checkContinues refuses a topology that doesn't name the one in force among those before it.
func checkContinues(file router.Topology, c *publishState) error {
	newest := newestPublished(c.before)
	if newest.Epoch == 0 || newest.Epoch >= file.Epoch {
		return nil
	}
	for _, t := range topologyHistory(file.Previous) {
		switch {
		case t.Epoch != newest.Epoch:
		case t.Digest() != newest.Digest:
			return fmt.Errorf(`refused, and nothing was published: the file's "previous" of epoch %d is not what %s has as that%s`,
				t.Epoch, newest.Node, describeChange(newest.text, t))
		default:
			return nil
		}
	}
	return fmt.Errorf("refused, and nothing was published: epoch %d is in force, and the file doesn't name it: put it into the file "+
		`as "previous", so that processes that start know where keys have their counts`, newest.Epoch)
}

// describeChange is what a topology changes against one that is published.
func describeChange(published string, t router.Topology) string {
	there, err := router.ParseTopology([]byte(published))
	if err != nil {
		return ""
	}
	if words := router.Changes(there, t); words != "" {
		return ": in the file " + words
	}
	return ""
}

// describeDifference says in words what a published topology has that the file hasn't, although the keys have the same owners; empty if
// nothing. How either is laid out doesn't matter.
func describeDifference(published string, file router.Topology) string {
	there, err := router.ParseTopology([]byte(published))
	switch {
	case err != nil:
		return "another text"
	case !sameAddresses(there, file):
		return "other addresses"
	case len(file.Signature) > 0 && len(there.Signature) == 0:
		return "no signature"
	case len(file.Signature) > 0 && !slices.Equal(there.Signature, file.Signature):
		return "another signature"
	case !slices.EqualFunc(topologyHistory(there.Previous), topologyHistory(file.Previous), func(a, b router.Topology) bool {
		return a.Digest() == b.Digest() && sameAddresses(a, b)
	}):
		return `another "previous"`
	}
	return ""
}

func sameAddresses(a, b router.Topology) bool {
	byName := func(a, b router.Group) int { return strings.Compare(a.Name, b.Name) }
	return slices.EqualFunc(slices.SortedFunc(slices.Values(a.Groups), byName), slices.SortedFunc(slices.Values(b.Groups), byName),
		func(a, b router.Group) bool {
			return a.Primary == b.Primary && a.Master == b.Master && slices.Equal(a.Replicas, b.Replicas) &&
				slices.Equal(a.Sentinels, b.Sentinels) && slices.Equal(a.Cluster, b.Cluster)
		})
}
