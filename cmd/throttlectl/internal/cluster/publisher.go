package cluster

import (
	"context"
	"strings"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

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
	p := &Publisher{Group: g.Name, Node: g.Primary, cluster: c}
	switch {
	case len(g.Cluster) > 0:
		client := c.redisCluster(g.Cluster)
		p.Node, p.client = strings.Join(g.Cluster, ","), client
		p.Redis, p.err = redisbackend.New(client, c.BackendConfig())
		return p
	case len(g.Sentinels) > 0:
		var view sentinelView
		if view, p.err = c.sentinelView(ctx, g); p.err != nil {
			p.Node = "sentinels"
			return p
		}
		p.Node = view.primary
	}
	p.Redis, p.err = redisbackend.Open(WithAddress(c.Node, p.Node), c.BackendConfig())
	return p
}
