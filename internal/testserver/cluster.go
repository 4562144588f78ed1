//go:build unix

package testserver

import (
	"net"
	"strconv"
	"strings"
	"testing"
)

// A Shard of a Redis Cluster has a range of the slots.
type Shard struct {
	Primary  *Server
	Replicas []*Server
}

// Cluster starts a Redis Cluster whose shards have equal shares of the slots, and waits until every node says that all of it
// is there. args are further options of each server.
func Cluster(t testing.TB, shards, replicas int, args ...string) []Shard {
	t.Helper()
	const slots = 16384
	var all []*Server
	buses := make(map[*Server]string)
	add := func() *Server {
		_, bus, _ := net.SplitHostPort(reserve(t)) // the default, the port and 10000, may be none
		s := Redis(t, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "5000", "--cluster-replica-validity-factor", "0",
		}, args...)...)
		all, buses[s] = append(all, s), bus
		return s
	}
	do := func(s *Server, args ...any) string {
		t.Helper()
		reply, err := s.Client().Do(t.Context(), args...).Text()
		if err != nil {
			t.Fatalf("testserver: %v: %v", args, err)
		}
		return reply
	}
	made := make([]Shard, shards)
	for i := range made {
		s := add()
		do(s, "CLUSTER", "ADDSLOTSRANGE", i*slots/shards, (i+1)*slots/shards-1)
		do(s, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		made[i].Primary = s
		for range replicas {
			made[i].Replicas = append(made[i].Replicas, add())
		}
	}
	for _, s := range all[1:] {
		host, port, _ := net.SplitHostPort(s.Addr)
		do(all[0], "CLUSTER", "MEET", host, port, buses[s])
	}
	for _, s := range all {
		s.await("all nodes of the cluster", func() bool {
			return strings.Contains(do(s, "CLUSTER", "INFO"), "cluster_known_nodes:"+strconv.Itoa(len(all))+"\r\n")
		})
	}
	for _, shard := range made {
		id := do(shard.Primary, "CLUSTER", "MYID")
		for _, s := range shard.Replicas {
			s.await("the node to follow", func() bool { return strings.Contains(do(s, "CLUSTER", "NODES"), id) })
			do(s, "CLUSTER", "REPLICATE", id)
		}
	}
	for _, shard := range made {
		for _, s := range shard.Replicas {
			s.AwaitSync(shard.Primary)
		}
	}
	for _, s := range all {
		s.await("the whole cluster", func() bool {
			ranges, _ := s.Client().Do(t.Context(), "CLUSTER", "SLOTS").Slice()
			for _, r := range ranges { // first slot, last slot, nodes
				if r, ok := r.([]any); !ok || len(r) != 3+replicas {
					return false
				}
			}
			return len(ranges) == shards && strings.Contains(do(s, "CLUSTER", "INFO"), "cluster_state:ok")
		})
	}
	return made
}
