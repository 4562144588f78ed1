package redisbackend

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redisopts"
	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit"
)

// Open makes clients of its own from a copy of opts, and closes them on Close. The copy never retries a command, because
// a retry would count twice; honours context deadlines; waits for nothing longer than cfg.Timeout; and sends nothing on
// connect that a plain server refuses. It does no network I/O; Ping does.
//
// A caller who cancels returns within 2 ms, and one whose context has a deadline by that. They cost at most one connection
// a second in each of cfg.Pipelines: the server's reply, or Timeout, ends the round trip. A call that is cancelled before
// its round trip begins is not sent.
//
// PoolSize bounds all connections: those that share round trips, of which cfg.Pipelines are in use unless some hang, and
// those for everything else. One connection can do both, but cancellations are noticed faster with more.
//
// A panic in a function of opts, such as OnConnect, is the error of the calls that need its connection.
func Open(opts *redis.Options, cfg Config) (*Redis, error) {
	if opts == nil {
		return nil, &limit.Error{Field: "redis: options", Value: "nil", Bound: "must not be nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	safe := hardened(*opts, cfg.Timeout)
	if safe.PoolSize <= 0 {
		safe.PoolSize = 10 * runtime.GOMAXPROCS(0) // the client's default
	}
	r := &Redis{reader: reader{cfg: cfg}}
	r.servers.one = newContinuity()
	safe.OnConnect = r.identifying(safe.OnConnect)
	r.transport(redispipe.NewNode(safe, r.pipeConfig(safe.Addr)), safe.Addr)
	return r, nil
}

// hardened returns options with no timeout above that of calls.
func hardened(opts redis.Options, timeout time.Duration) redis.Options {
	redisopts.Harden(&opts, timeout)
	for _, t := range []*time.Duration{&opts.DialTimeout, &opts.ReadTimeout, &opts.WriteTimeout, &opts.PoolTimeout} {
		*t = min(*t, timeout)
	}
	return opts
}

// transport makes the backend call scripts through a transport.
func (r *Redis) transport(t redispipe.Transport, node string) {
	r.pipe = t
	r.use(t, node)
	if r.servers.one != nil {
		r.servers.one.client.Store(t.Node(""))
	}
}

// New counts through the caller's own client, which Close leaves open. The client must be a *redis.Client or a
// *redis.ClusterClient with MaxRetries: -1 (a cluster client also MaxRedirects: -1) and ContextTimeoutEnabled: true, so that it
// never sends a take twice. A client that wraps these is rejected, because what it does can't be seen; add a hook to
// the client instead. A redis.Ring moves the keys of a dead node to another node; use package router.
//
// Calls end by cfg.Timeout whatever the client's own timeouts are. The client gets a hook that counts its connections: after a
// new one the server's identity is queried, over any connection of the client, before the next decision is returned. Hooks
// can't be removed, so make only one Redis of a client. A panic in a hook is the error of the calls that share its round trip.
//
// On a Redis Cluster each shard has connections of its own: one that hangs holds up its own keys only. Everything is sent
// through the clients of the nodes that the client makes; hooks belong there, by OnNewNode.
func New(client redis.UniversalClient, cfg Config) (*Redis, error) {
	cfg = cfg.withDefaults()
	errs := []error{cfg.validate()}
	refuse := func(field string, value any, bound string) {
		errs = append(errs, &limit.Error{Field: "redis client: " + field, Value: fmt.Sprint(value), Bound: bound})
	}
	var node string
	const retries = "must be off (-1): a retry of a take would count twice"
	single, _ := client.(*redis.Client)
	cluster, _ := client.(*redis.ClusterClient)
	switch {
	case single != nil:
		opts := single.Options()
		node = opts.Addr
		if opts.MaxRetries > 0 {
			refuse("MaxRetries", opts.MaxRetries, retries)
		}
		if !opts.ContextTimeoutEnabled {
			refuse("ContextTimeoutEnabled", false, deadlinesHonoured)
		}
	case cluster != nil:
		opts := cluster.Options()
		node = strings.Join(opts.Addrs, ",")
		if opts.MaxRetries > 0 {
			refuse("MaxRetries", opts.MaxRetries, retries)
		}
		if opts.MaxRedirects > 0 { // it re-sends after a lost connection, too
			refuse("MaxRedirects", opts.MaxRedirects, retries)
		}
		if opts.ReadOnly || opts.RouteByLatency || opts.RouteRandomly {
			refuse("ReadOnly", true, "must be false: what a replica says would pass for the primary's word")
		}
		if !opts.ContextTimeoutEnabled {
			refuse("ContextTimeoutEnabled", false, deadlinesHonoured)
		}
	default:
		refuse("client", fmt.Sprintf("%T", client), "must be a *redis.Client or a *redis.ClusterClient, and not nil")
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r := &Redis{reader: reader{cfg: cfg}}
	if cluster != nil {
		r.servers.cluster = true
		r.transport(redispipe.NewCluster(cluster, r.pipeConfig(node)), node)
		return r, nil
	}
	r.servers.one = newContinuity()
	r.transport(redispipe.NewShared(single, r.pipeConfig(node)), node)
	single.AddHook(dialCounter{r.servers.one})
	return r, nil
}

// OpenCluster makes the client of a Redis Cluster, hardened as those of [Open], and closes it on Close. The options
// are those of each node, without Addr and DB; nil for defaults.
func OpenCluster(addresses []string, opts *redis.Options, cfg Config) (*Redis, error) {
	client := redis.NewClusterClient(clusterOptions(addresses, opts, cfg))
	r, err := New(client, cfg)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	r.owned = client
	return r, nil
}

// OpenReplicas makes a client of a Redis Cluster that reads from replicas, and may repeat a read. The arguments are
// those of [OpenCluster].
func OpenReplicas(addresses []string, opts *redis.Options, cfg Config) (*Replicas, error) {
	options := clusterOptions(addresses, opts, cfg)
	options.ReadOnly = true
	options.MaxRedirects = 3
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	node := strings.Join(addresses, ",")
	r := &Replicas{reader: reader{cfg: cfg}, client: redis.NewClusterClient(options)}
	r.use(redispipe.NewReader(r.client, r.pipeConfig(node)), node)
	return r, nil
}

func clusterOptions(addresses []string, opts *redis.Options, cfg Config) *redis.ClusterOptions {
	cfg = cfg.withDefaults()
	node := hardened(*cmp.Or(opts, new(redis.Options)), cfg.Timeout)
	options := redisopts.Cluster(addresses, &node)
	options.ClusterStateReloadInterval = cfg.Reload
	return options
}

const deadlinesHonoured = "must be true: without it a call outlives its context"
