package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

// ululePeer is ulule/limiter: a fixed window that is the key's TTL. Denied requests count, too.
type ululePeer struct {
	client  *redis.Client // nil in memory
	limiter *limiter.Limiter
}

func ululeRate(q Quota) limiter.Rate { return limiter.Rate{Period: q.Window, Limit: q.Max} }

func openUlule(s Setup) (Peer, error) {
	client := s.client()
	store, err := ululeredis.NewStore(client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &ululePeer{client: client, limiter: limiter.New(store, ululeRate(s.Quotas[0]))}, nil
}

func openUluleMemory(s Setup) (Peer, error) {
	return &ululePeer{limiter: limiter.New(memory.NewStore(), ululeRate(s.Quotas[0]))}, nil
}

func (p *ululePeer) Take(ctx context.Context, key string) (bool, error) {
	c, err := p.limiter.Get(ctx, key)
	return !c.Reached, err
}

func (p *ululePeer) Close() error {
	if p.client == nil {
		return nil
	}
	return p.client.Close()
}
