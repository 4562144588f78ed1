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
	one := func(opts *redis.Options) {
		client := redis.NewClient(opts)
		defer client.Close()
		f(client, nil)
	}
	if len(c.Single) > 0 {
		one(&c.Single[0])
		return
	}
	Parallel(groups, func(g router.Group) (none struct{}) {
		switch {
		case len(g.Cluster) > 0:
			client := c.redisCluster(g.Cluster)
			defer client.Close()
			bounded, cancel := context.WithTimeout(ctx, 2*c.Timeout) // to find the nodes, and for f
			defer cancel()
			if err := client.ForEachMaster(bounded, func(_ context.Context, node *redis.Client) error {
				f(node, nil)
				return nil
			}); err != nil {
				f(nil, fmt.Errorf("group %s: %w", g.Name, err))
			}
		case len(g.Sentinels) > 0:
			view, err := c.sentinelView(ctx, &g)
			if err != nil {
				f(nil, fmt.Errorf("group %s: %w", g.Name, err))
				return
			}
			one(WithAddress(c.Node, view.primary))
		default:
			one(WithAddress(c.Node, g.Primary))
		}
		return
	})
}
