package cluster

import (
	"context"
	"errors"
	"fmt"
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
		a.found, a.lost = c.groupMembers(ctx, &g)
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

func (c *Cluster) groupMembers(ctx context.Context, g *router.Group) (all []Member, f finding.List) {
	add := func(address, role string, template redis.Options) {
		all = append(all, Member{g.Name, address, role, *WithAddress(template, address), c.Prefix})
	}
	switch {
	case len(g.Sentinels) > 0:
		for _, address := range g.Sentinels {
			add(address, RoleSentinel, c.Sentinel)
		}
		seen, err := c.sentinelView(ctx, g)
		if err != nil {
			f.Add(finding.Critical, "sentinel", err.Error(), "Start the sentinels; routers that start now have no primary to ask.")
			return all, f
		}
		add(seen.primary, RolePrimary, c.Node)
		for _, address := range seen.replicas {
			add(address, RoleReplica, c.Node)
		}
		return all, append(f, c.checkSentinels(ctx, g, seen)...)
	case len(g.Cluster) > 0:
		return c.clusterMembers(ctx, g)
	}
	add(g.Primary, RolePrimary, c.Node)
	for _, address := range g.Replicas {
		add(address, RoleReplica, c.Node)
	}
	return all, nil
}

// checkSentinels compares what all sentinels say.
func (c *Cluster) checkSentinels(ctx context.Context, g *router.Group, newest sentinelView) (f finding.List) {
	type answer struct {
		sentinelView
		err error
	}
	for i, a := range Parallel(g.Sentinels, func(address string) answer {
		seen, err := c.askSentinel(ctx, address, g.Master)
		return answer{seen, err}
	}) {
		var reply redis.Error
		switch one := (finding.Finding{Severity: finding.Warning, Check: "sentinel", Server: g.Sentinels[i]}); {
		case errors.As(a.err, &reply):
			one.What, one.Detail, one.Do = "refuses", reply.Error(), "Have it monitor the master by that name, and look at the credentials."
			f = append(f, one)
		case a.err != nil: // unreachable: a finding of the member itself
		case a.primary != newest.primary:
			one.What, one.Detail = "disagrees on the primary", fmt.Sprintf("names %s as primary, others name %s", a.primary, newest.primary)
			one.Do = "Look whether it is cut off from the others; SENTINEL RESET makes it look anew."
			f = append(f, one)
		}
	}
	return f
}

// clusterMembers asks the nodes of a Redis Cluster for all others, and takes the first reply.
func (c *Cluster) clusterMembers(ctx context.Context, g *router.Group) (all []Member, f finding.List) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	type answer struct {
		slots []redis.ClusterSlot
		err   error
	}
	answers := Parallel(g.Cluster, func(seed string) (a answer) {
		client := redis.NewClient(WithAddress(c.Node, seed))
		defer client.Close()
		//lint:ignore SA1019 Redis 6.2 has no CLUSTER SHARDS
		a.slots, a.err = client.ClusterSlots(ctx).Result()
		return a
	})
	slots, err := answers[0].slots, answers[0].err
	if i := slices.IndexFunc(answers, func(a answer) bool { return a.err == nil }); i >= 0 {
		slots, err = answers[i].slots, nil
	}
	if err != nil {
		for _, seed := range g.Cluster {
			all = append(all, Member{g.Name, seed, "", *WithAddress(c.Node, seed), c.Prefix})
		}
		f.Add(finding.Critical, "cluster", "no node tells where the slots are: "+err.Error(), "Start the cluster; "+
			"credentials need +cluster|slots.")
		return all, f
	}
	const slotsOfACluster = 16384
	covered, known := 0, make(map[string]bool)
	for _, r := range slots {
		covered += r.End - r.Start + 1
		for i, n := range r.Nodes {
			role := RoleReplica
			if i == 0 {
				role = RolePrimary
			}
			if !known[n.Addr] {
				known[n.Addr] = true
				all = append(all, Member{g.Name, n.Addr, role, *WithAddress(c.Node, n.Addr), c.Prefix})
			}
		}
	}
	if covered < slotsOfACluster {
		f.Add(finding.Critical, "cluster", fmt.Sprintf("%d of %d slots have no server: "+
			"keys there have no verdict", slotsOfACluster-covered, slotsOfACluster),
			"Bring the missing shards back (redis-cli --cluster check).")
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
