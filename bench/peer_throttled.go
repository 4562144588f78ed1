package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	goredisstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
)

// throttledPeer is throttled: GCRA in Go, over TIME and GET, and then SETNX or a script that compares and swaps, which
// is tried ten times. Callers who meet on one key go round together, and whoever loses ten times gets an error.
type throttledPeer struct {
	client  *redis.Client
	limiter *throttled.GCRARateLimiterCtx
}

func openThrottled(s Setup) (Peer, error) {
	client, q := s.client(), s.Quotas[0]
	store, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(int(q.Max), q.Window),
		MaxBurst: int(q.Max) - 1, // one more than the burst is admitted at once
	})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &throttledPeer{client: client, limiter: l}, nil
}

func (p *throttledPeer) Take(ctx context.Context, key string) (bool, error) {
	limited, _, err := p.limiter.RateLimitCtx(ctx, key, 1)
	return !limited, err
}

func (p *throttledPeer) Close() error { return p.client.Close() }
