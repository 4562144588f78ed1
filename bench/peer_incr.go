package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// incrPeer is the floor: one INCR, without an expiry. It counts for ever, and so limits nothing in use.
type incrPeer struct {
	client *redis.Client
	max    int64
}

func openIncr(s Setup) (Peer, error) {
	return &incrPeer{client: s.client(), max: s.Quotas[0].Max}, nil
}

func (p *incrPeer) Take(ctx context.Context, key string) (bool, error) {
	n, err := p.client.Incr(ctx, "incr:"+key).Result()
	return n <= p.max, err
}

func (p *incrPeer) Close() error { return p.client.Close() }
