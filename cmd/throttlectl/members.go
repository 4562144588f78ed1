package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/router"
)

const (
	rolePrimary  = "primary"
	roleReplica  = "replica"
	roleSentinel = "sentinel"
)

// member is a server of a topology.
type member struct {
	Group   string
	Address string
	Role    string // as the topology has it, or who knows for it; empty if nobody does
	options redis.Options
	prefix  string
}

// members finds all servers of the topology, or those given one by one: of sentinels those that they name, of a Redis Cluster
// all that it has. What can't be found out is a finding.
func (s *cluster) members(ctx context.Context, only func(group string) bool) ([]member, findings) {
	var all []member
	var f findings
	for _, opts := range s.single {
		all = append(all, member{Address: opts.Addr, options: opts, prefix: s.prefix})
	}
	type answer struct {
		found []member
		lost  findings
	}
	groups := slices.DeleteFunc(slices.Clone(s.topology.Groups), func(g router.Group) bool { return !only(g.Name) })
	for i, a := range askAll(groups, func(g router.Group) (a answer) {
		a.found, a.lost = s.groupMembers(ctx, &g)
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

func (s *cluster) groupMembers(ctx context.Context, g *router.Group) (all []member, f findings) {
	add := func(address, role string, template redis.Options) {
		all = append(all, member{g.Name, address, role, *withAddress(template, address), s.prefix})
	}
	switch {
	case len(g.Sentinels) > 0:
		for _, address := range g.Sentinels {
			add(address, roleSentinel, s.sentinel)
		}
		seen, err := s.sentinelView(ctx, g)
		if err != nil {
			f.add(critical, "sentinel", err.Error(), "Start the sentinels; routers that start now have no primary to ask.")
			return all, f
		}
		add(seen.primary, rolePrimary, s.node)
		for _, address := range seen.replicas {
			add(address, roleReplica, s.node)
		}
		return all, append(f, s.checkSentinels(ctx, g, seen)...)
	case len(g.Cluster) > 0:
		return s.clusterMembers(ctx, g)
	}
	add(g.Primary, rolePrimary, s.node)
	for _, address := range g.Replicas {
		add(address, roleReplica, s.node)
	}
	return all, nil
}

// checkSentinels looks whether all sentinels say the same.
func (s *cluster) checkSentinels(ctx context.Context, g *router.Group, newest sentinelView) (f findings) {
	type answer struct {
		sentinelView
		err error
	}
	for i, a := range askAll(g.Sentinels, func(address string) answer {
		seen, err := s.askSentinel(ctx, address, g.Master)
		return answer{seen, err}
	}) {
		var reply redis.Error
		switch one := (finding{Severity: warning, Check: "sentinel", Server: g.Sentinels[i]}); {
		case errors.As(a.err, &reply):
			one.What, one.Do = "refuses: "+reply.Error(), "Have it monitor the master by that name, and look at the credentials."
			f = append(f, one)
		case a.err != nil: // that it can't be reached is found out by itself
		case a.primary != newest.primary:
			one.What = fmt.Sprintf("names %s as primary, others name %s", a.primary, newest.primary)
			one.Do = "Look whether it is cut off from the others; SENTINEL RESET makes it look anew."
			f = append(f, one)
		}
	}
	return f
}

// clusterMembers asks any node of a Redis Cluster for all of them.
func (s *cluster) clusterMembers(ctx context.Context, g *router.Group) (all []member, f findings) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	type answer struct {
		slots []redis.ClusterSlot
		err   error
	}
	answers := askAll(g.Cluster, func(seed string) (a answer) { // all at once: one that hangs takes no time from the others
		client := redis.NewClient(withAddress(s.node, seed))
		defer client.Close()
		//lint:ignore SA1019 Redis 6.2 has no CLUSTER SHARDS, and routers ask for the slots, too
		a.slots, a.err = client.ClusterSlots(ctx).Result()
		return a
	})
	slots, err := answers[0].slots, answers[0].err
	if i := slices.IndexFunc(answers, func(a answer) bool { return a.err == nil }); i >= 0 {
		slots, err = answers[i].slots, nil
	}
	if err != nil {
		for _, seed := range g.Cluster {
			all = append(all, member{g.Name, seed, "", *withAddress(s.node, seed), s.prefix})
		}
		f.add(critical, "cluster", "no node tells where the slots are: "+err.Error(), "Start the cluster; "+
			"credentials need +cluster|slots.")
		return all, f
	}
	const slotsOfACluster = 16384
	covered, known := 0, make(map[string]bool)
	for _, r := range slots {
		covered += r.End - r.Start + 1
		for i, n := range r.Nodes {
			role := roleReplica
			if i == 0 {
				role = rolePrimary
			}
			if !known[n.Addr] {
				known[n.Addr] = true
				all = append(all, member{g.Name, n.Addr, role, *withAddress(s.node, n.Addr), s.prefix})
			}
		}
	}
	if covered < slotsOfACluster {
		f.add(critical, "cluster", fmt.Sprintf("%d of %d slots have no server: "+
			"keys there have no verdict", slotsOfACluster-covered, slotsOfACluster),
			"Bring the missing shards back (redis-cli --cluster check).")
	}
	return all, f
}

// parseInfo reads what INFO answers.
func parseInfo(text string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// primaryAddr is the address of the primary that a replica says it follows.
func primaryAddr(info map[string]string) string {
	return net.JoinHostPort(info["master_host"], info["master_port"])
}

func infoInt(info map[string]string, name string) int64 {
	n, _ := strconv.ParseInt(info[name], 10, 64)
	return n
}
