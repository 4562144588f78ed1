package main

import (
	"context"
	"errors"

	"github.com/mennanov/limiters"
	"github.com/redis/go-redis/v9"
)

// limitersPeer is mennanov/limiters: a sliding window that weighs the previous window's count and the present one's,
// two keys, in a pipeline of INCR, PEXPIRE and GET. Denied requests count, too. It makes a limiter for each key; they
// hold no state of their own, so this makes one for each take, which is cheaper than its Registry and its lock.
type limitersPeer struct {
	client *redis.Client
	clock  limiters.Clock
	quota  Quota
}

func openLimiters(s Setup) (Peer, error) {
	return &limitersPeer{client: s.client(), clock: limiters.NewSystemClock(), quota: s.Quotas[0]}, nil
}

// epsilon is how far past Max a weighted count may be; the value is that of the module's own tests.
const epsilon = 1e-9

func (p *limitersPeer) Take(ctx context.Context, key string) (bool, error) {
	window := limiters.NewSlidingWindow(p.quota.Max, p.quota.Window,
		limiters.NewSlidingWindowRedis(p.client, "limiters:"+key), p.clock, epsilon)
	_, err := window.Limit(ctx)
	if errors.Is(err, limiters.ErrLimitExhausted) {
		return false, nil
	}
	return err == nil, err
}

func (p *limitersPeer) Close() error { return p.client.Close() }
