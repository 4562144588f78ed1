package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-go/sluice/backend"
)

// A Redis Cluster is a group of two nodes: its primaries, through a client that never sends a take twice, and its replicas,
// through one that reads. The clients know which server has a key.

// cluster makes the group of a Redis Cluster.
func (b *builder) cluster(g *Group) *group {
	id := identity{group: g.Name, name: strings.Join(g.Cluster, ","), many: true}
	primary := b.findNode(id, RolePrimary, func() (backend.Backend, error) { return b.openPrimaries(g.Cluster) })
	id.name = "replicas of " + id.name
	replicas := b.findNode(id, RoleReplica, func() (backend.Backend, error) { return b.openReplicas(g.Cluster) })
	if b.err != nil {
		return newGroup(g.Name, g.Weight, nil, nil, b.cfg)
	}
	return newGroup(g.Name, g.Weight, primary, []*node{replicas}, b.cfg)
}

// clusterOptions are for a client that sends each command once, honours deadlines and sends nothing on connect that a plain server
// refuses, as those of backend.OpenRedis are.
func (o *opener) clusterOptions(addresses []string) *redis.ClusterOptions {
	var t redis.Options
	if o.cfg.Redis != nil {
		t = *o.cfg.Redis
	}
	timeout := cmp.Or(o.cfg.Backend.Timeout, defaultReadTimeout)
	for _, bound := range []*time.Duration{&t.DialTimeout, &t.ReadTimeout, &t.WriteTimeout, &t.PoolTimeout} {
		if *bound <= 0 {
			*bound = timeout
		}
	}
	reload := o.cfg.Heartbeat // go-redis notices a failover without a redirection only at a reload, by default once a minute
	if reload < 0 {
		reload = defaultHeartbeat
	}
	return &redis.ClusterOptions{
		Addrs: addresses, MaxRedirects: -1, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig:   &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		ClusterStateReloadInterval: reload,
		DisableRoutingPolicies:     true, // none applies, and to learn them go-redis would load the server's commands

		ClientName: t.ClientName, Dialer: t.Dialer, OnConnect: t.OnConnect, Protocol: t.Protocol, TLSConfig: t.TLSConfig,
		Username: t.Username, Password: t.Password, CredentialsProvider: t.CredentialsProvider,
		CredentialsProviderContext:   t.CredentialsProviderContext,
		StreamingCredentialsProvider: t.StreamingCredentialsProvider,

		DialTimeout: t.DialTimeout, ReadTimeout: t.ReadTimeout, WriteTimeout: t.WriteTimeout,
		PoolTimeout: t.PoolTimeout, PoolFIFO: t.PoolFIFO, PoolSize: t.PoolSize, MaxConcurrentDials: t.MaxConcurrentDials,
		MinIdleConns: t.MinIdleConns, MaxIdleConns: t.MaxIdleConns, MaxActiveConns: t.MaxActiveConns,
		ConnMaxIdleTime: t.ConnMaxIdleTime, ConnMaxLifetime: t.ConnMaxLifetime, ConnMaxLifetimeJitter: t.ConnMaxLifetimeJitter,
		ReadBufferSize: cmp.Or(t.ReadBufferSize, 8<<10), WriteBufferSize: cmp.Or(t.WriteBufferSize, 8<<10),
	}
}

// clusterPrimaries are the primaries of a Redis Cluster.
type clusterPrimaries struct {
	*backend.Redis
	client *redis.ClusterClient
}

func (o *opener) openPrimaries(addresses []string) (backend.Backend, error) {
	client := redis.NewClusterClient(o.clusterOptions(addresses))
	b, err := backend.NewRedis(client, o.cfg.Backend)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return clusterPrimaries{b, client}, nil
}

// Heartbeat implements [backend.Heartbeater]: the cluster is up while one of its primaries is. It goes to those that were called, at
// once, and to a random one.
func (c clusterPrimaries) Heartbeat(ctx context.Context) (beat backend.Heartbeat, err error) {
	for range clusterTries {
		if beat, err = c.Redis.Heartbeat(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	return beat, err
}

// clusterTries makes it unlikely that a heartbeat goes only to primaries that are down, while others are up.
const clusterTries = 5

func (c clusterPrimaries) Close() error { return errors.Join(c.Redis.Close(), c.client.Close()) }

// clusterReplicas are the replicas of a Redis Cluster. If a key has none, its primary answers.
type clusterReplicas struct {
	redis  *backend.RedisReader
	client *redis.ClusterClient
}

func (o *opener) openReplicas(addresses []string) (backend.Backend, error) {
	options := o.clusterOptions(addresses)
	options.ReadOnly = true
	options.MaxRedirects = 3 // a read does no harm when it is sent twice
	client := redis.NewClusterClient(options)
	b, err := backend.NewRedisReader(client, o.cfg.Backend)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return clusterReplicas{b, client}, nil
}

// Take implements [backend.Backend]; no replica takes.
func (c clusterReplicas) Take(context.Context, backend.Request) (backend.Result, error) {
	return backend.Result{}, backend.ErrUnsupported
}

// Load implements [backend.Loader].
func (c clusterReplicas) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	return c.redis.Load(ctx, req)
}

// Ping implements [backend.Pinger].
func (c clusterReplicas) Ping(ctx context.Context) error { return c.redis.Ping(ctx) }

// Heartbeat implements [backend.Heartbeater]. The client chooses which replica is read, so the worst of them counts: the link is up if
// all links are, and the age is that of the oldest. Replicas that don't answer don't count, since the client avoids them. If there is
// none at all nothing is read here.
func (c clusterReplicas) Heartbeat(ctx context.Context) (backend.Heartbeat, error) {
	start := time.Now()
	beat := backend.Heartbeat{LinkUp: true}
	var mu sync.Mutex
	answered := 0
	err := c.client.ForEachSlave(ctx, func(ctx context.Context, replica *redis.Client) error {
		info, err := replica.InfoMap(ctx, "replication").Result()
		if err != nil {
			return err
		}
		one := info["Replication"]
		age, err := time.ParseDuration(one["master_last_io_seconds_ago"] + "s")
		mu.Lock()
		defer mu.Unlock()
		answered++
		beat.LinkUp = beat.LinkUp && one["master_link_status"] == "up" && err == nil
		beat.Age = max(beat.Age, age)
		return nil
	})
	if answered == 0 && err != nil {
		return backend.Heartbeat{}, &backend.Error{
			Op: "ping", Node: fmt.Sprint("replicas of ", strings.Join(c.client.Options().Addrs, ",")), Kind: backend.Unavailable, Err: err,
		}
	}
	beat.LinkUp = beat.LinkUp && answered > 0
	beat.RTT = time.Since(start)
	return beat, nil
}

func (c clusterReplicas) Close() error { return errors.Join(c.redis.Close(), c.client.Close()) }
