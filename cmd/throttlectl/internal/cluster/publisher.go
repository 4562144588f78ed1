package cluster

import (
	"context"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/router"
)

// Running processes leave the topology that is in force as a notice on the primary of every group (package router tells
// them to). This is how the tool finds out what is in force, and how it brings something newer into force.

// Publisher is where a group's notice is.
type Publisher struct {
	Group string
	Node  string // the address of the primary; of a Redis Cluster those that the topology names
	*backend.Redis
	client redis.UniversalClient // of a Redis Cluster, which the backend doesn't close
	Err    error                 // why it can't be found

	cluster *Cluster
}

func (b *Publisher) Close() {
	if b.Redis != nil {
		_ = b.Redis.Close()
	}
	if b.client != nil {
		_ = b.client.Close()
	}
}

// Publishers finds the primaries of groups. Sentinels are asked who it is.
func (s *Cluster) Publishers(ctx context.Context, groups []router.Group) ([]*Publisher, func()) {
	all := make([]*Publisher, len(groups))
	var asked sync.WaitGroup
	for i := range groups {
		asked.Go(func() { all[i] = s.publisher(ctx, &groups[i]) })
	}
	asked.Wait()
	return all, func() {
		for _, b := range all {
			b.Close()
		}
	}
}

func (s *Cluster) publisher(ctx context.Context, g *router.Group) *Publisher {
	b := &Publisher{Group: g.Name, Node: g.Primary, cluster: s}
	cfg := backend.RedisConfig{Prefix: s.Prefix, Timeout: s.Timeout}
	switch {
	case len(g.Cluster) > 0:
		client := s.redisCluster(g.Cluster)
		b.Node, b.client = strings.Join(g.Cluster, ","), client
		b.Redis, b.Err = backend.NewRedis(client, cfg)
		return b
	case len(g.Sentinels) > 0:
		var seen sentinelView
		if seen, b.Err = s.sentinelView(ctx, g); b.Err != nil {
			b.Node = "sentinels"
			return b
		}
		b.Node = seen.primary
	}
	b.Redis, b.Err = backend.OpenRedis(WithAddress(s.Node, b.Node), cfg)
	return b
}
