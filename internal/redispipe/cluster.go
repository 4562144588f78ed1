package redispipe

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/deadline"
)

// cluster is the transport to a Redis Cluster. Each primary has a pipeliner of its own, so that a shard which hangs
// holds up its own keys only. A pipeline of the cluster client would go to all shards at once and last as long as
// the slowest. So the cluster client only says which node has a key, and calls go through the client of that node.
//
// A call goes to the primary that the client's map of slots names when the call joins a queue. If the slot has moved, the
// server answers MOVED, and the call joins another queue.
type cluster struct {
	client  *redis.ClusterClient
	cfg     Config
	guard   *callguard.Guard
	pool    sync.Pool // of evalCalls
	asker   askRedirector
	mapped  atomic.Bool    // whether the client has a map of the slots: to find a node costs no round trip
	running sync.WaitGroup // counts questions for the time

	mu     sync.Mutex // guards what follows
	shards map[*redis.Client]*shard
}

// shard is a primary, or another node that had to say which one is.
type shard struct {
	pipeliner pipeliner
	until     time.Time // the deadline of the call that came last; guarded by cluster.mu
}

const (
	// ShardIdle is how long after its last call a shard is dropped, when another one is added. If it is still in use, it
	// is added anew.
	ShardIdle = time.Minute

	// maxMoves is how often a call follows a slot that moves. The client looks for the new owner at most every 200 ms, and the
	// tries take 280 ms in all.
	maxMoves = 8
)

// NewCluster uses a client of the caller's, which stays open.
func NewCluster(client *redis.ClusterClient, cfg Config) Transport {
	return &cluster{
		client: client, cfg: cfg, guard: callguard.New(cfg.Guard), asker: askRedirector{options: client.Options()},
		shards: make(map[*redis.Client]*shard),
	}
}

func (c *cluster) Eval(ctx context.Context, deadline time.Time, call Call) (Reply, error) {
	var e *evalCall
	var node *redis.Client
	text, err := c.follow(ctx, deadline, func() (string, error) {
		if e == nil {
			e = newEvalCall(&c.pool, call)
		} else {
			e = e.retry()
		}
		found, by, err := c.find(ctx, deadline, call.Key)
		if err != nil {
			return "", err
		}
		node = by
		return found.run(ctx, deadline, e)
	}, func(address string) (string, error) {
		// The script's source goes along: an unknown script would need a second try. The reply counts as one of the old
		// node's: the new one has no counts yet that it could have lost.
		return c.asker.ask(ctx, deadline, endpoint(address, node), append([]any{"eval", call.Script.Source, 1, call.Key}, call.Args...)...)
	})
	defer e.release()
	if err != nil {
		return Reply{}, err
	}
	return Reply{Text: text, NowMicros: call.NowMicros, Shared: e.shared, Script: e.script, Node: node}, nil
}

func (c *cluster) Get(ctx context.Context, deadline time.Time, key string) (text string, by *redis.Client, err error) {
	text, err = c.follow(ctx, deadline, func() (string, error) {
		node, err := c.client.MasterForKey(ctx, key)
		if err != nil {
			return "", err
		}
		c.mapped.Store(true)
		by = node
		return node.Get(ctx, key).Result()
	}, func(address string) (string, error) {
		return c.asker.ask(ctx, deadline, endpoint(address, by), "get", key)
	})
	return text, by, err
}

// follow makes a call, goes where ASK says, and makes the call once more after MOVED, which did nothing.
func (c *cluster) follow(ctx context.Context, end time.Time, call func() (string, error),
	ask func(address string) (string, error)) (string, error) {
	for move := 0; ; move++ {
		reply, err := call()
		if address, asked := redis.IsAskError(err); asked {
			reply, err = ask(address)
		}
		if err == nil {
			return reply, nil
		}
		_, moved := redis.IsMovedError(err)
		if moved || redis.HasErrorPrefix(err, "READONLY") {
			c.client.ReloadState(ctx) // in the background
		}
		pause := time.Duration(move) * 10 * time.Millisecond
		if !moved || move == maxMoves || time.Until(end) <= pause || deadline.Sleep(ctx, pause) != nil {
			return reply, err
		}
	}
}

// find returns the pipeliner and the client of a key's shard.
func (c *cluster) find(ctx context.Context, deadline time.Time, key string) (*pipeliner, *redis.Client, error) {
	var node *redis.Client
	var err error
	if c.mapped.Load() {
		node, err = c.client.MasterForKey(ctx, key)
	} else {
		node, err = callguard.Do(ctx, c.guard, "ping", deadline, func(ctx context.Context) (*redis.Client, error) {
			return c.client.MasterForKey(ctx, key)
		})
	}
	if err != nil {
		return nil, nil, callguard.Unsent(err)
	}
	c.mapped.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.shards[node]
	if found == nil {
		maps.DeleteFunc(c.shards, func(_ *redis.Client, other *shard) bool { return deadline.Sub(other.until) > ShardIdle })
		found = new(shard)
		all, open := sharedConns(node, c.cfg.Pipelines)
		found.pipeliner.init(&c.cfg, all, open)
		c.shards[node] = found
	}
	found.until = deadline
	return &found.pipeliner, node, nil
}

func (c *cluster) Node(key string) *redis.Client {
	if !c.mapped.Load() {
		return nil
	}
	node, _ := c.client.MasterForKey(context.Background(), key) // nil if it fails
	return node
}

func (c *cluster) Time(ctx context.Context) (Reading, error) {
	return clusterTime(ctx, c.client, c.cfg.ClockKey, c.anyTime)
}

// anyTime is that of the shard which answers first: a shard that hangs must not hide that others answer. It asks the shards that
// were called, and a random one, for those may all be gone.
func (c *cluster) anyTime(ctx context.Context) (time.Time, error) {
	one, err := c.client.MasterForKey(ctx, strconv.Itoa(rand.Int()))
	if err != nil {
		return time.Time{}, err
	}
	c.mu.Lock()
	nodes := slices.Collect(maps.Keys(c.shards))
	c.mu.Unlock()
	if !slices.Contains(nodes, one) {
		nodes = append(nodes, one)
	}
	type answer struct {
		now time.Time
		err error
	}
	answers := make(chan answer, len(nodes))
	for _, node := range nodes {
		c.running.Go(func() {
			var got answer
			defer func() { answers <- got }()
			defer callguard.Recover(&got.err)
			got.now, got.err = node.Time(ctx).Result()
		})
	}
	var last answer
	for range nodes {
		if last = <-answers; last.err == nil {
			break
		}
	}
	return last.now, last.err
}

func (c *cluster) Guard() *callguard.Guard { return c.guard }
func (c *cluster) Batches() bool           { return false }

func (c *cluster) Close() error {
	for _, s := range c.shards {
		s.pipeliner.close()
	}
	err := c.asker.close()
	c.running.Wait()
	return err
}

// clusterTime reads the clock of a cluster: that of the primary which has the clock's key, the same for every process. The nodes'
// clocks differ, and if each could answer, a window that was opened by one would end early by another. If that
// primary doesn't answer in half of the time, the reading is borrowed from another.
func clusterTime(ctx context.Context, client *redis.ClusterClient, key string,
	other func(context.Context) (time.Time, error)) (Reading, error) {
	asked := time.Now()
	if now, err := keyTime(ctx, client, key); err == nil {
		return Reading{Now: now, Asked: asked}, nil
	}
	asked = time.Now()
	now, err := other(ctx)
	return Reading{Now: now, Asked: asked, Borrowed: true}, err
}

func keyTime(ctx context.Context, client *redis.ClusterClient, key string) (time.Time, error) {
	if end, ok := ctx.Deadline(); ok {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		ctx = half
	}
	node, err := client.MasterForKey(ctx, key)
	if err != nil {
		return time.Time{}, err
	}
	return node.Time(ctx).Result()
}

// replicas reads through a cluster's client that may ask replicas, and may repeat a read.
type replicas struct {
	client   *redis.ClusterClient
	guard    *callguard.Guard
	clockKey string
}

// NewReader uses a client of the caller's, which stays open.
func NewReader(client *redis.ClusterClient, cfg Config) Reader {
	cfg.Guard.IgnoresContext = true // the client may load the map of slots under a context of its own
	return &replicas{client, callguard.New(cfg.Guard), cfg.ClockKey}
}

func (r *replicas) Get(ctx context.Context, _ time.Time, key string) (string, *redis.Client, error) {
	text, err := r.client.Get(ctx, key).Result()
	return text, nil, err
}

func (r *replicas) Time(ctx context.Context) (Reading, error) {
	return clusterTime(ctx, r.client, r.clockKey, func(ctx context.Context) (time.Time, error) {
		return r.client.Time(ctx).Result()
	})
}

func (r *replicas) Guard() *callguard.Guard { return r.guard }
func (r *replicas) Close() error            { return nil }
