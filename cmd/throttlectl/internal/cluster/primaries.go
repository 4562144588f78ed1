package cluster

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/router"
)

// EachPrimary calls f, concurrently, with each primary of some groups, or with why it can't be found. If there is no topology
// the single server is the primary.
func (c *Cluster) EachPrimary(ctx context.Context, groups []router.Group, f func(*redis.Client, error)) {
	if len(c.Single) > 0 {
		callServer(&c.Single[0], f)
		return
	}
	Parallel(groups, func(g router.Group) (none struct{}) {
		p, err := c.servers(&g).primary(ctx)
		if err == nil {
			err = c.each(ctx, p, f)
		}
		if err != nil {
			f(nil, fmt.Errorf("group %s: %w", g.Name, err))
		}
		return
	})
}

// each calls f with the servers of a primary: with one, or with all primaries of a Redis Cluster.
func (c *Cluster) each(ctx context.Context, p primary, f func(*redis.Client, error)) error {
	if p.cluster == nil {
		callServer(WithAddress(c.Node, p.node), f)
		return nil
	}
	defer p.cluster.Close()
	bounded, cancel := context.WithTimeout(ctx, 2*c.Timeout) // to find the nodes, and for f
	defer cancel()
	return p.cluster.ForEachMaster(bounded, func(_ context.Context, node *redis.Client) error {
		f(node, nil)
		return nil
	})
}

func callServer(opts *redis.Options, f func(*redis.Client, error)) {
	client := redis.NewClient(opts)
	defer client.Close()
	f(client, nil)
}
