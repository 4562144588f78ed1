package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-go/sluice/router"
)

// What comes before a topology that is pushed decides where processes that start look for counts. What is in force must be
// among it, whatever the file says: its groups have the counts.

// maxPrevious is how many topologies package router looks back at.
const maxPrevious = 16

// scene is how things are before a push.
type scene struct {
	boards []*board
	before []posted
	force  *router.Topology // what is in force; nil if there is nothing, or nobody tells its text
}

func (c *scene) close() {
	for _, b := range c.boards {
		b.close()
	}
}

// survey reads the boards of the file's groups and of what is in force. Where the former know of nothing, those of the
// topologies that the file names are looked at, the newest first.
func (s *site) survey(ctx context.Context) (*scene, error) {
	c, named := new(scene), chainOf(s.topology.Previous)
	for next := s.topology.Groups; len(next) > 0; {
		boards, _ := s.boards(ctx, next) // they are closed with the scene
		c.boards, c.before = append(c.boards, boards...), append(c.before, readBoards(ctx, boards, router.Topology{})...)
		var err error
		if c.force, err = forceOf(s.topology, c.before); err != nil {
			return c, err
		}
		next = nil
		if c.force != nil {
			next = c.unasked(c.force.Groups)
			continue
		}
		for len(next) == 0 && len(named) > 0 {
			next, named = c.unasked(named[0].Groups), named[1:]
		}
	}
	return c, nil
}

// unasked are the groups whose boards were not read yet.
func (c *scene) unasked(groups []router.Group) []router.Group {
	return slices.DeleteFunc(slices.Clone(groups), func(g router.Group) bool {
		return slices.ContainsFunc(c.boards, func(b *board) bool { return b.Group == g.Name })
	})
}

// forceOf is the topology in force, nil if there is none that can be read. Of epoch 1 servers tell the digest only: then it is
// what the file says, if that has this digest.
func forceOf(file router.Topology, all []posted) (*router.Topology, error) {
	newest := newestOf(all)
	if newest.text == "" {
		for _, t := range chainOf(file.Previous) {
			if t.Epoch == newest.Epoch && t.Digest() == newest.Digest {
				return &t, nil
			}
		}
		return nil, nil
	}
	t, err := router.ParseTopology([]byte(newest.text))
	if err == nil && t.Epoch != newest.Epoch {
		err = fmt.Errorf("its text has epoch %d", t.Epoch)
	}
	if err != nil {
		return nil, fmt.Errorf("the topology of epoch %d on %s: %w", newest.Epoch, newest.Node, err)
	}
	return &t, nil
}

// newestOf is the first notice of the largest epoch.
func newestOf(all []posted) (newest posted) {
	for _, p := range all {
		if p.Epoch > newest.Epoch {
			newest = p
		}
	}
	return newest
}

// chainOf is a topology and all before it, the newest first, each without what came before it.
func chainOf(t *router.Topology) (all []router.Topology) {
	for ; t != nil; t = t.Previous {
		one := *t
		one.Previous = nil
		all = append(all, one)
	}
	return all
}

// formerOf is what came before the file's topology: what it names, and what is in force and came before that where the file
// doesn't name it. What the file does name is taken to be all that still matters: it may leave out what is over.
func formerOf(file router.Topology, force *router.Topology) ([]router.Topology, error) {
	all := chainOf(file.Previous)
	var known []router.Topology
	switch {
	case force == nil || force.Epoch > file.Epoch:
	case force.Epoch == file.Epoch: // the rest of a push that was partial
		known = chainOf(force.Previous)
	case !slices.ContainsFunc(all, func(t router.Topology) bool { return t.Digest() == force.Digest() }): // which has the epoch in it
		known = chainOf(force)
	}
	for _, t := range known {
		i, named := slices.BinarySearchFunc(all, t.Epoch, func(a router.Topology, epoch uint64) int {
			return cmp.Compare(epoch, a.Epoch) // the newest is first
		})
		switch {
		case !named:
			all = slices.Insert(all, i, t)
		case all[i].Digest() != t.Digest():
			return nil, notPrevious(t.Epoch, all[i].Digest(), t.Digest())
		}
	}
	if len(all) <= maxPrevious {
		return all, nil
	}
	if len(known) > 0 && all[maxPrevious-1].Epoch > known[0].Epoch {
		return nil, fmt.Errorf(`refused, and nothing was published: the file's "previous" leaves no room for epoch %d `+
			"that is in force: at most %d topologies are looked back at", known[0].Epoch, maxPrevious)
	}
	return all[:maxPrevious], nil // as routers do: the oldest are over first
}

// continues refuses a topology that doesn't come after what is in force: where servers tell the digest of that only, the file
// must have it among what it names.
func continues(file router.Topology, c *scene) error {
	newest := newestOf(c.before)
	if newest.Epoch == 0 || newest.Epoch >= file.Epoch || c.force != nil {
		return nil
	}
	for _, t := range chainOf(file.Previous) {
		if t.Epoch == newest.Epoch {
			return notPrevious(t.Epoch, t.Digest(), newest.Digest)
		}
	}
	return fmt.Errorf(`refused, and nothing was published: epoch %d is in force, and the file doesn't name it as "previous": `+
		"processes that start would not know where keys have their counts", newest.Epoch)
}

func notPrevious(epoch uint64, digest, there string) error {
	return fmt.Errorf(`refused, and nothing was published: the file's "previous" is not the topology of epoch %d `+
		"that is in force, or was: digest %s, there %s", epoch, digest, there)
}

// linked is the file's topology with what came before it.
func linked(file router.Topology, force *router.Topology) (router.Topology, error) {
	former, err := formerOf(file, force)
	file.Previous = nil
	for i := range slices.Backward(former) {
		former[i].Previous = file.Previous
		file.Previous = &former[i]
	}
	return file, errors.Join(err, file.Validate())
}
