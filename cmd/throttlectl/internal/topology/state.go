package topology

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/cluster"
	"github.com/sluice-go/sluice/router"
)

// What comes before a topology that is pushed decides where processes that start look for counts. What is in force must be
// among it: its groups have the counts.

// publishState is how things are before a push.
type publishState struct {
	publishers []*cluster.Publisher
	before     []cluster.Published
}

func (c *publishState) close() {
	for _, b := range c.publishers {
		b.Close()
	}
}

// readState reads the boards of the file's groups and of the topology in force, as the file names it: what servers say leads to no
// others. Where nothing is known yet, those of the topologies that the file names are read, the newest first.
func readState(ctx context.Context, s *cluster.Cluster) *publishState {
	c, named := new(publishState), cluster.TopologyHistory(s.Topology.Previous)
	for next := s.Topology.Groups; len(next) > 0; {
		boards, _ := s.Publishers(ctx, next) // they are closed with the scene
		c.publishers, c.before = append(c.publishers, boards...), append(c.before, cluster.ReadPublished(ctx, boards)...)
		next = nil
		if newest := cluster.NewestPublished(c.before); newest.Epoch > 0 {
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
		return slices.ContainsFunc(c.publishers, func(b *cluster.Publisher) bool { return b.Group == g.Name })
	})
}

// checkContinues refuses a topology that doesn't name the one in force among those before it.
func checkContinues(file router.Topology, c *publishState) error {
	newest := cluster.NewestPublished(c.before)
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
		func(a, b router.Group) bool {
			return a.Primary == b.Primary && a.Master == b.Master && slices.Equal(a.Replicas, b.Replicas) &&
				slices.Equal(a.Sentinels, b.Sentinels) && slices.Equal(a.Cluster, b.Cluster)
		})
}
