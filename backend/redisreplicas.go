package backend

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisReplicas reads the counts of a Redis Cluster, as a [Redis] stores them, from replicas where there are any. What it says may
// lag behind. It never takes.
type RedisReplicas struct {
	reader
	client *redis.ClusterClient
}

var (
	_ Backend     = (*RedisReplicas)(nil)
	_ Loader      = (*RedisReplicas)(nil)
	_ Pinger      = (*RedisReplicas)(nil)
	_ Heartbeater = (*RedisReplicas)(nil)
)

// Take implements [Backend]; no replica takes.
func (r *RedisReplicas) Take(context.Context, Request) (Result, error) {
	return Result{}, ErrUnsupported
}

// Load implements [Loader]. Its source is [Replica], also where a primary may have answered.
func (r *RedisReplicas) Load(ctx context.Context, req Request) (Snapshot, error) {
	snapshot, _, _, err := r.load(ctx, &req)
	if err == nil {
		snapshot.Source = Replica
	}
	return snapshot, err
}

// Heartbeat implements [Heartbeater]. Any replica may be read, so the worst counts: the link is up if all links are, and the age
// is that of the oldest. The client goes round replicas that don't answer, so they don't count. A cluster without
// replicas is never up here.
func (r *RedisReplicas) Heartbeat(ctx context.Context) (Heartbeat, error) {
	start := time.Now()
	beat := Heartbeat{LinkUp: true}
	var mu sync.Mutex
	answered := 0
	err := r.client.ForEachSlave(ctx, func(ctx context.Context, replica *redis.Client) error {
		text, err := replica.Info(ctx, "replication").Result()
		if err != nil {
			return err
		}
		one := parseInfo(text).heartbeat()
		mu.Lock()
		defer mu.Unlock()
		answered++
		beat.LinkUp = beat.LinkUp && one.LinkUp
		beat.Age = max(beat.Age, one.Age)
		return nil
	})
	if answered == 0 && err != nil {
		return Heartbeat{}, &Error{Op: "ping", Node: "replicas of " + r.node, Kind: Unavailable, Err: err}
	}
	beat.LinkUp = beat.LinkUp && answered > 0
	beat.RTT = time.Since(start)
	return beat, nil
}

// Close waits for the calls under way, and closes the client.
func (r *RedisReplicas) Close() error {
	if !r.guard.Close() {
		return nil
	}
	return errors.Join(r.source.Close(), r.client.Close())
}
