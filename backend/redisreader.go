package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/limit"
)

// RedisReader reads the counts of a Redis Cluster, as a [Redis] stores them, through a client that may ask replicas and may
// send a read more than once: neither is for one that takes, so [NewRedis] refuses it. What it says may lag behind.
type RedisReader struct{ redis *Redis }

var (
	_ Loader = (*RedisReader)(nil)
	_ Pinger = (*RedisReader)(nil)
)

// NewRedisReader reads through the caller's own client, which Close leaves open. It needs ContextTimeoutEnabled: true; with
// ReadOnly: true, replicas are asked. The client asks for the servers' commands before its first call, for up to five
// seconds, for which Close may wait; DisableRoutingPolicies: true spares that. The rest is said at [NewRedis].
func NewRedisReader(client *redis.ClusterClient, cfg RedisConfig) (*RedisReader, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if client == nil {
		return nil, errors.Join(err, &limit.Error{Field: "redis client: client", Value: "nil", Bound: "must not be nil"})
	}
	opts := client.Options()
	if !opts.ContextTimeoutEnabled {
		err = errors.Join(err, &limit.Error{
			Field: "redis client: ContextTimeoutEnabled", Value: fmt.Sprint(false), Bound: deadlinesHonoured,
		})
	}
	if err != nil {
		return nil, err
	}
	r := &Redis{cfg: cfg, client: client, reader: true}
	r.initShared(strings.Join(opts.Addrs, ","), opts.PoolSize)
	return &RedisReader{r}, nil
}

// Load implements [Loader]. Its source is [Replica], for nobody knows who answered.
func (r *RedisReader) Load(ctx context.Context, req Request) (Snapshot, error) {
	snapshot, err := r.redis.Load(ctx, req)
	if err == nil {
		snapshot.Source = Replica
	}
	return snapshot, err
}

// Ping implements [Pinger].
func (r *RedisReader) Ping(ctx context.Context) error { return r.redis.Ping(ctx) }

// Close waits for the calls under way.
func (r *RedisReader) Close() error { return r.redis.Close() }
