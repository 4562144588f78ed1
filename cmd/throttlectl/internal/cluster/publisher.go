package cluster

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/router"
)

// Publisher is where the topology in force is published for a group: the group's primary. Routers write it there, and read
// newer ones from there.
type Publisher struct {
	Group string
	Node  string // the address of the primary; of a Redis Cluster the nodes that the topology names
	*redisbackend.Redis
	client redis.UniversalClient // of a Redis Cluster, which the backend doesn't close
	err    error                 // why the primary can't be found

	cluster *Cluster
}

// Publishers are those of some groups.
type Publishers []*Publisher

// Close closes all.
func (all Publishers) Close() {
	for _, p := range all {
		if p.Redis != nil {
			_ = p.Redis.Close()
		}
		if p.client != nil {
			_ = p.client.Close()
		}
	}
}

// Read returns what is published by each, in their order.
func (all Publishers) Read(ctx context.Context) []Published {
	return Parallel(all, func(p *Publisher) Published { return p.published(p.Redis.Published, ctx) })
}

// Publishers finds the primaries of groups, of some by their sentinels.
func (c *Cluster) Publishers(ctx context.Context, groups []router.Group) Publishers {
	return Parallel(groups, func(g router.Group) *Publisher { return c.publisher(ctx, &g) })
}

// ReadPublished returns what is published by the groups of the cluster's topology.
func (c *Cluster) ReadPublished(ctx context.Context) []Published {
	all := c.Publishers(ctx, c.Topology.Groups)
	defer all.Close()
	return all.Read(ctx)
}

func (c *Cluster) publisher(ctx context.Context, g *router.Group) *Publisher {
	at, err := c.servers(g).primary(ctx)
	p := &Publisher{Group: g.Name, Node: at.node, err: err, cluster: c}
	switch {
	case err != nil:
	case at.cluster != nil:
		p.client = at.cluster
		p.Redis, p.err = redisbackend.New(at.cluster, c.BackendConfig())
	default:
		p.Redis, p.err = redisbackend.Open(WithAddress(c.Node, at.node), c.BackendConfig())
	}
	return p
}
