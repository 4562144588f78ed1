//go:build unix

package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/backendtesting"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit/state"
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
		backendtesting.Await(t, "the cluster", func() bool {
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

// openCluster is a backend on a cluster of its own.
func openCluster(t *testing.T) ([2]*testserver.Server, *redis.ClusterClient, *redisbackend.Redis) {
	nodes := newCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{nodes[0].Addr, nodes[1].Addr}, MaxRedirects: -1, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	b, err := redisbackend.New(client, redisbackend.Config{Timeout: backendtesting.Patient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return nodes, client, b
}

// TestRedisCluster: a cluster is a place like another, also while a slot moves from node to node.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	nodes, client, b := openCluster(t)
	const keys = 50
	takes := 0
	round := func(what string) {
		t.Helper()
		takes++
		for i := range keys {
			r, err := b.Take(context.Background(), backendtesting.Request(fmt.Sprint(i)))
			if err == nil {
				_, err = b.Charge(context.Background(), backendtesting.Request(fmt.Sprint(i)), state.Mark{})
			}
			if err != nil {
				t.Errorf("%s: take or charge of key %d: %v", what, i, err)
			} else if left := 1_000_000 - int64(2*takes-1); r.Binding().Remaining != left {
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

	// A slot moves with its key.
	slot, from, to := moveSlot(t, client, nodes, backendtesting.Stored("7"))
	round("before the key has moved")
	moveKey(t, from, to, backendtesting.Stored("7"))
	round("while the key has moved and the slot has not") // the old node answers ASK
	if n := from.Client().InfoMap(t.Context(), "errorstats").Item("Errorstats", "errorstat_ASK"); n == "" {
		t.Error("no node answered ASK: the test shows nothing")
	}
	do(t, to.Client(), "CLUSTER", "SETSLOT", slot, "NODE", id(t, to))
	do(t, from.Client(), "CLUSTER", "SETSLOT", slot, "NODE", id(t, to))
	round("after the slot has moved")

	if err := b.Ping(context.Background()); err != nil {
		t.Error(err)
	}
	if h, err := b.Heartbeat(context.Background()); err != nil || !h.Primary || h.RTT <= 0 {
		t.Errorf("heartbeat %+v, %v", h, err)
	}
}

// TestRedisClusterPoolSize: PoolSize bounds the connections to a node, also those of pipelines.
func TestRedisClusterPoolSize(t *testing.T) {
	t.Parallel()
	node := testserver.Cluster(t, 1, 0)[0].Primary
	var mu sync.Mutex
	dials := make(map[string]int) // by address: a node alone doesn't know its own, and gets a second client
	b, err := redisbackend.OpenCluster([]string{node.Addr}, &redis.Options{
		PoolSize: 1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			dials[addr]++
			mu.Unlock()
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}, redisbackend.Config{Timeout: backendtesting.Patient})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	backendtesting.MustTake(t, b, backendtesting.Request(backendtesting.Secret)) // after a pipeline that asks who the node is
	mu.Lock()
	defer mu.Unlock()
	for addr, n := range dials {
		if n != 1 {
			t.Errorf("a PoolSize of 1 allows %d connections to %s", n, addr)
		}
	}
}

// TestRedisClusterClock: the time of a cluster is that of one of its nodes, also while that one doesn't answer.
func TestRedisClusterClock(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{nodes[0].Addr, nodes[1].Addr}, MaxRedirects: -1, ContextTimeoutEnabled: true,
	})
	defer client.Close()
	client.OnNewNode(func(node *redis.Client) {
		if node.Options().Addr == nodes[1].Addr {
			node.AddHook(fast{})
		}
	})
	b, err := redisbackend.New(client, redisbackend.Config{Timeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ahead := func() time.Duration { return time.Duration(b.NowMicros()-time.Now().UnixMicro()) * time.Microsecond }
	backendtesting.Await(t, "the time", func() bool { return b.Ping(t.Context()) == nil })
	first := ahead()
	same := func(what string) {
		t.Helper()
		if now := ahead(); (now - first).Abs() > time.Hour/2 {
			t.Fatalf("%s the cluster's time is ahead by %s, it was by %s", what, now, first)
		}
	}
	for range 40 {
		if err := b.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		same("when nothing has happened")
	}
	owner := nodes[client.ClusterKeySlot(t.Context(), "sl:topology").Val()/8192]
	defer owner.Resume()
	for range 5 { // a busy machine may need longer for the other node's answer than a reading is trusted
		owner.Pause()
		begin := time.Now()
		backendtesting.Await(t, "the other node", func() bool { return b.Ping(t.Context()) == nil })
		if time.Since(begin) < 20*time.Second {
			same("while a node is silent")
			return
		}
		owner.Resume()
		backendtesting.Await(t, "the node's own time", func() bool {
			return b.Ping(t.Context()) == nil && (ahead()-first).Abs() < time.Hour/2
		})
	}
	t.Error("the other node never answered in time")
}

// fast has a server's clock go an hour fast.
type fast struct{}

func (fast) DialHook(next redis.DialHook) redis.DialHook { return next }

func (fast) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if now, ok := cmd.(*redis.TimeCmd); ok && err == nil {
			now.SetVal(now.Val().Add(time.Hour))
		}
		return err
	}
}

func (fast) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func id(t *testing.T, s *testserver.Server) string {
	return s.Client().Do(t.Context(), "CLUSTER", "MYID").Val().(string)
}

// moveSlot lets a key's slot begin to move, as redis-cli --cluster reshard does it.
func moveSlot(t *testing.T, client *redis.ClusterClient, nodes [2]*testserver.Server, key string) (slot int64, from, to *testserver.Server) {
	slot = client.ClusterKeySlot(t.Context(), key).Val()
	from, to = nodes[slot/8192], nodes[1-slot/8192]
	do(t, to.Client(), "CLUSTER", "SETSLOT", slot, "IMPORTING", id(t, from))
	do(t, from.Client(), "CLUSTER", "SETSLOT", slot, "MIGRATING", id(t, to))
	return slot, from, to
}

func moveKey(t *testing.T, from, to *testserver.Server, key string) {
	host, port, _ := net.SplitHostPort(to.Addr)
	do(t, from.Client(), "MIGRATE", host, port, key, 0, 5000)
}

// TestRedisClusterAsks: what is not a take follows a key on its way, too, and who gives up doesn't wait.
func TestRedisClusterAsks(t *testing.T) {
	t.Parallel()
	nodes, client, b := openCluster(t)
	backendtesting.MustTake(t, b, backendtesting.Request("7"))
	_, from, to := moveSlot(t, client, nodes, backendtesting.Stored("7"))
	moveKey(t, from, to, backendtesting.Stored("7"))

	r := backendtesting.MustTake(t, b, backendtesting.Request("7"))
	if err := b.Refund(context.Background(), backendtesting.Request("7"), r.Receipt(), 1); err != nil {
		t.Errorf("refund: %v", err)
	}
	r = backendtesting.MustTake(t, b, backendtesting.Request("7"))
	if left := r.Binding().Remaining; left != 1_000_000-2 {
		t.Errorf("after 3 takes and a refund %d are left", left)
	}
	charge := backendtesting.Request("7")
	charge.Cost = 2_000_000
	if charged, err := b.Charge(context.Background(), charge, state.Mark{}); err != nil || charged.Binding().Remaining != 0 {
		t.Errorf("charge: %d left, %v", charged.Binding().Remaining, err)
	}
	if err := b.Reset(context.Background(), backendtesting.Request("7")); err != nil {
		t.Errorf("reset: %v", err)
	}
	r = backendtesting.MustTake(t, b, backendtesting.Request("7"))
	if left := r.Binding().Remaining; left != 1_000_000-1 {
		t.Errorf("after a reset and a take %d are left", left)
	}

	to.Pause()
	ctx, cancel := context.WithCancel(context.Background())
	start := time.Now()
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := b.Take(ctx, backendtesting.Request("7")); !errors.Is(err, context.Canceled) || time.Since(start) > backendtesting.Patient/2 {
		t.Errorf("cancelled after 50 ms: %v after %s", err, time.Since(start))
	}
	to.Resume()
}

// TestRedisClusterLostReply: a cluster client that loses its connection doesn't try another node.
func TestRedisClusterLostReply(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{nodes[0].Addr, nodes[1].Addr}, MaxRedirects: -1, ContextTimeoutEnabled: true,
		ReadTimeout: time.Second,
	})
	defer client.Close()
	b, err := redisbackend.New(client, redisbackend.Config{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	backendtesting.MustTake(t, b, backendtesting.Request("7"))
	slot := client.ClusterKeySlot(t.Context(), backendtesting.Stored("7")).Val()
	owner := nodes[slot/8192]
	owner.Pause()
	_, err = b.Take(context.Background(), backendtesting.Request("7"))
	backendtesting.WantError(t, err, backend.Unavailable, true)
	owner.Resume()
	backendtesting.Await(t, "the thaw", func() bool { return owner.Client().Ping(t.Context()).Err() == nil })
	if got := backendtesting.Used(t, owner, "7"); got > 2 {
		t.Errorf("2 takes were counted %d times", got)
	}
	var failed *backend.Error
	if !errors.As(err, &failed) || failed.Op != "take" {
		t.Errorf("got %v", err)
	}
}
