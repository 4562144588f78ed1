package main

import (
	"context"

	"github.com/gomodule/redigo/redis"
	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-redisstore"
)

// redisstorePeer is sethvargo/go-redisstore: a window that starts with the key, in a hash of five fields.
//
// Its own New makes a pool that keeps no idle connection (MaxIdle is left 0), so that each take dials, and that fails
// past 100 callers; here it gets the pool that the others have. Wait makes callers queue for it as go-redis does.
type redisstorePeer struct {
	store limiter.Store
}

func openRedisstore(s Setup) (Peer, error) {
	q := s.Quotas[0]
	store, err := redisstore.NewWithPool(
		&redisstore.Config{Tokens: uint64(q.Max), Interval: q.Window},
		&redis.Pool{
			MaxIdle: s.Conns, MaxActive: s.Conns, Wait: true,
			Dial: func() (redis.Conn, error) { return redis.Dial("tcp", s.Addr) },
		},
	)
	if err != nil {
		return nil, err
	}
	return &redisstorePeer{store: store}, nil
}

func (p *redisstorePeer) Take(ctx context.Context, key string) (bool, error) {
	_, _, _, ok, err := p.store.Take(ctx, "redisstore:"+key)
	return ok, err
}

func (p *redisstorePeer) Close() error { return p.store.Close(context.Background()) }
