package cluster

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/router"
)

const (
	RolePrimary  = "primary"
	RoleReplica  = "replica"
	RoleSentinel = "sentinel"
)

// Member is a server of a topology.
type Member struct {
	Group   string
	Address string
	Role    string // by the topology, the sentinels or the Redis Cluster; empty if not known
	Options redis.Options
	Prefix  string
}

// Members finds all servers of the topology, by sentinels and Redis Clusters where it has them, or those of --redis. What can't
// be found out is a finding.
func (c *Cluster) Members(ctx context.Context, only func(group string) bool) ([]Member, finding.List) {
	var all []Member
	var f finding.List
	for _, opts := range c.Single {
		all = append(all, Member{Address: opts.Addr, Options: opts, Prefix: c.Prefix})
	}
	type answer struct {
		found []Member
		lost  finding.List
	}
	groups := slices.DeleteFunc(slices.Clone(c.Topology.Groups), func(g router.Group) bool { return !only(g.Name) })
	for i, a := range Parallel(groups, func(g router.Group) (a answer) {
		a.found, a.lost = c.servers(&g).members(ctx)
		return a
	}) {
		all = append(all, a.found...)
		for _, one := range a.lost {
			one.Group = groups[i].Name
			f = append(f, one)
		}
	}
	return all, f
}

func (m *Member) Reach(ctx context.Context) error {
	if m.Role == RoleSentinel {
		client := redis.NewSentinelClient(&m.Options)
		defer client.Close()
		return client.Ping(ctx).Err()
	}
	client := redis.NewClient(&m.Options)
	defer client.Close()
	return client.Time(ctx).Err() // applications need no right to PING
}
