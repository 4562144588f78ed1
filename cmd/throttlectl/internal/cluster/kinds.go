package cluster

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/router"
)

// servers finds the servers of one group.
type servers interface {
	// primary finds the group's primary. It has a name even if there is an error.
	primary(ctx context.Context) (primary, error)

	// members finds all servers. What can't be found out is a finding.
	members(ctx context.Context) ([]Member, finding.List)
}

// primary is the primary of a group: one server, or a Redis Cluster, which has several.
type primary struct {
	node    string               // its address; of a Redis Cluster the nodes that the topology names
	cluster *redis.ClusterClient // the caller's to close; nil for one server
}

// servers returns those of a group. It is the one place in this tool that tells the kinds of groups apart.
func (c *Cluster) servers(g *router.Group) servers {
	switch {
	case len(g.Cluster) > 0:
		return clusterServers{c, g}
	case len(g.Sentinels) > 0:
		return sentinelServers{c, g}
	}
	return namedServers{c, g}
}

// namedServers are the primary and replicas that the topology names.
type namedServers struct {
	*Cluster
	*router.Group
}

func (s namedServers) primary(context.Context) (primary, error) { return primary{node: s.Primary}, nil }

func (s namedServers) members(context.Context) ([]Member, finding.List) {
	all := []Member{s.member(s.Group, s.Primary, RolePrimary)}
	for _, address := range s.Replicas {
		all = append(all, s.member(s.Group, address, RoleReplica))
	}
	return all, nil
}

// member is a node of a group.
func (c *Cluster) member(g *router.Group, address, role string) Member {
	return Member{g.Name, address, role, *WithAddress(c.Node, address), c.Prefix}
}
