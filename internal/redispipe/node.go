package redispipe

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
)

// node is the transport to one Redis node.
type node struct {
	client    *redis.Client
	guard     *callguard.Guard
	pipeliner pipeliner
	isolated  isolations
	pool      sync.Pool // of evalCalls
	owned     bool      // whether Close closes the client
}

// NewNode makes clients of its own, from hardened options whose PoolSize is set. PoolSize bounds all connections: those
// that share round trips, of which each has a client of its own, and those for everything else.
func NewNode(opts redis.Options, cfg Config) Transport {
	if opts.PoolSize == 1 {
		n := NewShared(redis.NewClient(&opts), cfg).(*node)
		n.owned = true
		return n
	}
	open := min(cfg.Pipelines, opts.PoolSize-1)
	all := make([]*conn, open+min(maxExtraConns, (opts.PoolSize-open)/2))
	for i := range all {
		all[i] = ownConn(opts)
	}
	opts.PoolSize -= len(all)
	opts.MinIdleConns = min(opts.MinIdleConns, opts.PoolSize)
	return newNode(redis.NewClient(&opts), true, all, open, cfg)
}

// NewShared uses a client of the caller's, which stays open.
func NewShared(client *redis.Client, cfg Config) Transport {
	all, open := sharedConns(client, cfg.Pipelines)
	return newNode(client, false, all, open, cfg)
}

func newNode(client *redis.Client, owned bool, all []*conn, open int, cfg Config) *node {
	n := &node{client: client, owned: owned}
	cfg.Guard.MaxCalls = client.Options().PoolSize // a call that waits for a connection can be abandoned
	n.guard = callguard.New(cfg.Guard)
	n.pipeliner.init(&cfg, all, open)
	return n
}

func (n *node) Eval(ctx context.Context, deadline time.Time, call Call) (Reply, error) {
	e := newEvalCall(&n.pool, call)
	if e.Plan != nil {
		e.isolation = n.isolated.of(e.Policy)
	}
	text, err := n.pipeliner.run(ctx, deadline, e)
	defer e.release()
	if err != nil { // a detached call still belongs to its connection
		return Reply{}, err
	}
	return Reply{Text: text, NowMicros: e.NowMicros, Shared: e.shared, Script: e.script, Node: n.client}, nil
}

func (n *node) Get(ctx context.Context, _ time.Time, key string) (string, *redis.Client, error) {
	text, err := n.client.Get(ctx, key).Result()
	return text, n.client, err
}

func (n *node) Time(ctx context.Context) (Reading, error) {
	asked := time.Now()
	now, err := n.client.Time(ctx).Result()
	return Reading{Now: now, Asked: asked}, err
}

func (n *node) Node(string) *redis.Client { return n.client }
func (n *node) Guard() *callguard.Guard   { return n.guard }
func (n *node) Batches() bool             { return true }

func (n *node) Close() error {
	n.pipeliner.close()
	if !n.owned {
		return nil
	}
	err := n.client.Close()
	for _, c := range n.pipeliner.all {
		if c.client != nil && c.client != n.client {
			err = errors.Join(err, c.client.Close())
		}
	}
	return err
}

// Waiting tells tests how many calls wait at a node, how many connections are free, and how many are open because others
// stalled.
func Waiting(t Transport) (queued, free, extra int) {
	l := &t.(*node).pipeliner
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue), len(l.free), l.extra
}

// InterruptAlways has callers of a test make their round trips themselves, however often one was interrupted.
func InterruptAlways(t Transport) { t.(*node).pipeliner.handOffFor = 0 }
