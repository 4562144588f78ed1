package main

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

// redisRatePeer is go-redis/redis_rate: GCRA in one script. A key lives only as long as its bucket isn't full, and at
// least a second, so a key that is seldom asked for is made anew each time.
type redisRatePeer struct {
	client  *redis.Client
	limiter *redis_rate.Limiter
	limit   redis_rate.Limit
}

func openRedisRate(s Setup) (Peer, error) {
	client, q := s.client(), s.Quotas[0]
	return &redisRatePeer{
		client: client, limiter: redis_rate.NewLimiter(client),
		limit: redis_rate.Limit{Rate: int(q.Max), Burst: int(q.Max), Period: q.Window},
	}, nil
}

func (p *redisRatePeer) Take(ctx context.Context, key string) (bool, error) {
	r, err := p.limiter.Allow(ctx, key, p.limit)
	if err != nil {
		return false, err
	}
	return r.Allowed > 0, nil
}

func (p *redisRatePeer) Close() error { return p.client.Close() }
