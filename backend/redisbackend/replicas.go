package redisbackend

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"

	"github.com/redis/go-redis/v9"
)

// Replicas reads the counts of a Redis Cluster, as a [Redis] stores them, from replicas where there are any. What it says may
// lag behind. It never takes.
type Replicas struct {
	reader
	client *redis.ClusterClient
}

var (
	_ backend.Backend     = (*Replicas)(nil)
	_ backend.Loader      = (*Replicas)(nil)
	_ backend.Pinger      = (*Replicas)(nil)
	_ control.Heartbeater = (*Replicas)(nil)
)

// Take implements [backend.Backend]; no replica takes.
func (r *Replicas) Take(context.Context, backend.Request) (backend.Result, error) {
	return backend.Result{}, backend.ErrUnsupported
}

// Load implements [backend.Loader]. Its source is [backend.Replica], also where a primary may have answered.
func (r *Replicas) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	snapshot, _, _, err := r.load(ctx, &req)
	if err == nil {
		snapshot.Source = backend.Replica
	}
	return snapshot, err
}

// Heartbeat implements [control.Heartbeater]. Any replica may be read, so the worst counts: the link is up if all links are,
// and the age is that of the oldest. The client goes round replicas that don't answer, so they don't count. A cluster without
// replicas is never up here.
func (r *Replicas) Heartbeat(ctx context.Context) (control.Heartbeat, error) {
	start := time.Now()
	beat := control.Heartbeat{LinkUp: true}
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
		return control.Heartbeat{}, &backend.Error{Op: "ping", Node: "replicas of " + r.node, Kind: backend.Unavailable, Err: err}
	}
	beat.LinkUp = beat.LinkUp && answered > 0
	beat.RTT = time.Since(start)
	return beat, nil
}

// Close waits for the calls under way, and closes the client.
func (r *Replicas) Close() error {
	if !r.guard.Close() {
		return nil
	}
	return errors.Join(r.source.Close(), r.client.Close())
}
