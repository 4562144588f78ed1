package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/throttlectl/internal/finding"
	"github.com/sluice-go/sluice/internal/redisopts"
	"github.com/sluice-go/sluice/router"
)

// clusterServers are the nodes of a Redis Cluster.
type clusterServers struct {
	*Cluster
	*router.Group
}

func (s clusterServers) primary(context.Context) (primary, error) {
	seeds := s.Group.Cluster
	client := redis.NewClusterClient(redisopts.Cluster(seeds, WithAddress(s.Node, "")))
	return primary{strings.Join(seeds, ","), client}, nil
}

// members asks the nodes of a Redis Cluster for all others, and takes the first reply.
func (s clusterServers) members(ctx context.Context) (all []Member, f finding.List) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	type answer struct {
		slots []redis.ClusterSlot
		err   error
	}
	answers := Parallel(s.Group.Cluster, func(seed string) (a answer) {
		client := redis.NewClient(WithAddress(s.Node, seed))
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
		for _, seed := range s.Group.Cluster {
			all = append(all, s.member(s.Group, seed, ""))
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
				all = append(all, s.member(s.Group, n.Addr, role))
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
