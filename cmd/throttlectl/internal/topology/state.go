package topology

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/router"
)

// publishState is what is published before a push. A process that starts looks for counts by the "previous" of its topology, so
// the topology in force must be among those before a new one.
type publishState struct {
	publishers cluster.Publishers
	before     []cluster.Published
}

// readState reads what is published by the groups of the file, and by those of the topology in force as the file names it:
// what servers publish leads to no other servers. If nothing is published there, it reads the groups of the topologies before
// the file's, the newest first. The caller closes the publishers.
func readState(ctx context.Context, c *cluster.Cluster) *publishState {
	s, named := new(publishState), cluster.TopologyHistory(c.Topology.Previous)
	for next := c.Topology.Groups; len(next) > 0; {
		publishers := c.Publishers(ctx, next)
		s.publishers, s.before = append(s.publishers, publishers...), append(s.before, publishers.Read(ctx)...)
		next = nil
		if newest := cluster.NewestPublished(s.before); newest.Epoch > 0 {
			if i := slices.IndexFunc(named, func(t router.Topology) bool { return t.Epoch == newest.Epoch }); i >= 0 {
				next = s.unread(named[i].Groups)
			}
			continue
		}
		for len(next) == 0 && len(named) > 0 {
			next, named = s.unread(named[0].Groups), named[1:]
		}
	}
	return s
}

// unread are the groups that were not read yet.
func (s *publishState) unread(groups []router.Group) []router.Group {
	return slices.DeleteFunc(slices.Clone(groups), func(g router.Group) bool {
		return slices.ContainsFunc(s.publishers, func(p *cluster.Publisher) bool { return p.Group == g.Name })
	})
}

// checkContinues refuses a topology that doesn't name the one in force among those before it.
func checkContinues(file router.Topology, s *publishState) error {
	newest := cluster.NewestPublished(s.before)
	if newest.Epoch == 0 || newest.Epoch >= file.Epoch {
		return nil
	}
	for _, t := range cluster.TopologyHistory(file.Previous) {
		switch {
		case t.Epoch != newest.Epoch:
		case t.Digest() != newest.Digest:
			return fmt.Errorf(`refused, and nothing was published: the file's "previous" of epoch %d is not what %s has as that%s`,
				t.Epoch, newest.Node, cluster.DescribeChange(newest.Text, t))
		default:
			return nil
		}
	}
	return fmt.Errorf("refused, and nothing was published: epoch %d is in force, and the file doesn't name it: put it into the file "+
		`as "previous", so that processes that start know where keys have their counts`, newest.Epoch)
}

// describeDifference is what a published topology has that the file hasn't, although the keys have the same owners; empty if
// nothing. Layout doesn't count.
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
	case !slices.EqualFunc(cluster.TopologyHistory(there.Previous), cluster.TopologyHistory(file.Previous), func(a, b router.Topology) bool {
		return a.Digest() == b.Digest() && sameAddresses(a, b)
	}):
		return `another "previous"`
	}
	return ""
}

func sameAddresses(a, b router.Topology) bool {
	byName := func(a, b router.Group) int { return strings.Compare(a.Name, b.Name) }
	return slices.EqualFunc(slices.SortedFunc(slices.Values(a.Groups), byName), slices.SortedFunc(slices.Values(b.Groups), byName),
		func(a, b router.Group) bool { return a.String() == b.String() })
}
