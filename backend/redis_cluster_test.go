//go:build unix

package backend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
)

// newCluster is a Redis Cluster of two nodes that share the slots.
func newCluster(t *testing.T) [2]*testserver.Server {
	t.Helper()
	var nodes [2]*testserver.Server
	var bus string // of the last node; the default, its port and 10000, may not be a port
	for i := range nodes {
		bus = freePort(t)
		nodes[i] = testserver.Redis(t, "--cluster-enabled", "yes", "--cluster-port", bus)
		do(t, nodes[i].Client(), "CLUSTER", "ADDSLOTSRANGE", i*8192, i*8192+8191)
		do(t, nodes[i].Client(), "CLUSTER", "SET-CONFIG-EPOCH", i+1)
	}
	host, port, _ := net.SplitHostPort(nodes[1].Addr)
	do(t, nodes[0].Client(), "CLUSTER", "MEET", host, port, bus)
	for _, node := range nodes {
		await(t, "the cluster", func() bool {
			ranges, _ := node.Client().Do(t.Context(), "CLUSTER", "SLOTS").Slice()
			return len(ranges) == 2 && strings.Contains(node.Client().ClusterInfo(t.Context()).Val(), "cluster_state:ok")
		})
	}
	return nodes
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// TestRedisCluster: a cluster is a place like another, also while a slot moves from node to node.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{nodes[0].Addr, nodes[1].Addr}, MaxRedirects: -1, ContextTimeoutEnabled: true,
	})
	defer client.Close()
	b, err := backend.NewRedis(client, backend.RedisConfig{Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const keys = 50
	takes := 0
	round := func(what string) {
		t.Helper()
		takes++
		for i := range keys {
			r, err := b.Take(context.Background(), request(fmt.Sprint(i)))
			if err != nil {
				t.Errorf("%s: take of key %d: %v", what, i, err)
			} else if left := 1_000_000 - int64(takes); r.Binding().Remaining != left {
				t.Errorf("%s: key %d has %d left, want %d", what, i, r.Binding().Remaining, left)
			}
		}
	}
	round("at rest")
	round("at rest")
	held := 0
	for _, node := range nodes {
		n := int(node.Client().DBSize(t.Context()).Val())
		if n == 0 {
			t.Errorf("%s holds nothing", node.Addr)
		}
		held += n
	}
	if held != keys {
		t.Errorf("%d keys are stored, want %d", held, keys)
	}

	// A slot moves with its key, as redis-cli --cluster reshard does it.
	slot := client.ClusterKeySlot(t.Context(), stored("7")).Val()
	from, to := nodes[slot/8192], nodes[1-slot/8192]
	id := func(s *testserver.Server) string { return s.Client().Do(t.Context(), "CLUSTER", "MYID").Val().(string) }
	do(t, to.Client(), "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from))
	do(t, from.Client(), "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to))
	round("before the key has moved")
	host, port, _ := net.SplitHostPort(to.Addr)
	do(t, from.Client(), "MIGRATE", host, port, stored("7"), 0, 5000)
	round("while the key has moved and the slot has not") // the old node answers ASK
	if n := from.Client().InfoMap(t.Context(), "errorstats").Item("Errorstats", "errorstat_ASK"); n == "" {
		t.Error("no node answered ASK: the test shows nothing")
	}
	do(t, to.Client(), "CLUSTER", "SETSLOT", slot, "NODE", id(to))
	do(t, from.Client(), "CLUSTER", "SETSLOT", slot, "NODE", id(to))
	round("after the slot has moved")

	if err := b.Ping(context.Background()); err != nil {
		t.Error(err)
	}
	if h, err := b.Heartbeat(context.Background()); err != nil || !h.Primary || h.RTT <= 0 {
		t.Errorf("heartbeat %+v, %v", h, err)
	}
}

// TestRedisClusterLostReply: a cluster client that loses its connection doesn't try another node.
func TestRedisClusterLostReply(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{nodes[0].Addr, nodes[1].Addr}, MaxRedirects: -1, ContextTimeoutEnabled: true,
		ReadTimeout: 100 * time.Millisecond,
	})
	defer client.Close()
	b, err := backend.NewRedis(client, backend.RedisConfig{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	mustTake(t, b, request("7"))
	slot := client.ClusterKeySlot(t.Context(), stored("7")).Val()
	owner := nodes[slot/8192]
	owner.Pause()
	_, err = b.Take(context.Background(), request("7"))
	wantError(t, err, backend.Unavailable, true)
	owner.Resume()
	await(t, "the thaw", func() bool { return owner.Client().Ping(t.Context()).Err() == nil })
	if got := used(t, owner, "7"); got > 2 {
		t.Errorf("2 takes were counted %d times", got)
	}
	var failed *backend.Error
	if !errors.As(err, &failed) || failed.Op != "take" {
		t.Errorf("got %v", err)
	}
}
