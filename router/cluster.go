package router

import (
	"strings"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/sluice-go/sluice/backend"
)

// A Redis Cluster is a group of two nodes: its primaries, through a client that never sends a take twice, and its replicas,
// through one that reads. The clients know which server has a key.

// cluster makes the group of a Redis Cluster.
func (b *builder) cluster(g *Group) *group {
	id := identity{group: g.Name, name: strings.Join(g.Cluster, ","), many: true}
	primary := b.findNode(id, RolePrimary, func() (backend.Backend, error) { return b.openPrimaries(g.Cluster) })
	id.name = "replicas of " + id.name
	replicas := b.findNode(id, RoleReplica, func() (backend.Backend, error) { return b.openReplicas(g.Cluster) })
	if b.err != nil {
		return newGroup(g.Name, g.Weight, nil, nil, b.cfg)
	}
	return newGroup(g.Name, g.Weight, primary, []*node{replicas}, b.cfg)
}

// clusterConfig is that of the backends of a Redis Cluster: without a redirect their clients detect a failover as fast as
// heartbeats detect one of a node.
func (o *opener) clusterConfig() redisbackend.Config {
	cfg := o.cfg.Backend
	if cfg.Reload == 0 && o.cfg.Heartbeat > 0 {
		cfg.Reload = o.cfg.Heartbeat
	}
	return cfg
}

func (o *opener) openPrimaries(addresses []string) (backend.Backend, error) {
	return redisbackend.OpenCluster(addresses, o.cfg.Redis, o.clusterConfig())
}

func (o *opener) openReplicas(addresses []string) (backend.Backend, error) {
	return redisbackend.OpenReplicas(addresses, o.cfg.Redis, o.clusterConfig())
}
