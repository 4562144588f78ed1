package backend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/limit"
)

// OpenRedis makes clients of its own from a copy of opts, and closes them on Close. The copy never retries a
// command, for a retry would count twice; honours context deadlines; waits for nothing longer than cfg.Timeout; and sends
// nothing on connect that a plain server refuses. It does no network I/O; Ping does.
//
// A caller who cancels returns within 2 ms, one whose context has a deadline by that. Neither costs the connection, but for one
// a second in each lane at most; the server's reply, or Timeout, ends the round trip. What is given up before that begins
// is not sent.
//
// PoolSize bounds the connections, those to share round trips on, of which cfg.Pipelines are in use unless some of them
// hang, and those for all else; a single one does for both, but the end of a context is noticed faster with more.
func OpenRedis(opts *redis.Options, cfg RedisConfig) (*Redis, error) {
	if opts == nil {
		return nil, &limit.Error{Field: "redis: options", Value: "nil", Bound: "must not be nil"}
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	safe := *opts
	safe.MaxRetries = -1
	safe.DialerRetries = 1
	safe.ContextTimeoutEnabled = true
	safe.DisableIdentity = true
	safe.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	safe.PipelinePoolSize = -1 // it would come on top of PoolSize
	for _, timeout := range []*time.Duration{&safe.DialTimeout, &safe.ReadTimeout, &safe.WriteTimeout, &safe.PoolTimeout} {
		if *timeout <= 0 || *timeout > cfg.Timeout { // a negative one would let a call outlive its context
			*timeout = cfg.Timeout
		}
	}
	for _, size := range []*int{&safe.ReadBufferSize, &safe.WriteBufferSize} {
		if *size == 0 {
			*size = 8 << 10 // a counter's commands and replies are short; the default is 32 KiB
		}
	}
	if safe.PoolSize <= 0 {
		safe.PoolSize = 10 * runtime.GOMAXPROCS(0) // the client's default
	}
	r := &Redis{cfg: cfg, owned: true, server: newContinuity()}
	safe.OnConnect = r.identifying(safe.OnConnect)
	if safe.PoolSize == 1 {
		client := redis.NewClient(&safe)
		r.client = client
		r.server.client.Store(client)
		r.initShared(safe.Addr, 1)
		return r, nil
	}
	open := min(cfg.Pipelines, safe.PoolSize-1)
	all := make([]*conn, open+min(maxExtraConns, (safe.PoolSize-open)/2))
	for i := range all {
		all[i] = ownConn(safe)
	}
	safe.PoolSize -= len(all)
	safe.MinIdleConns = min(safe.MinIdleConns, safe.PoolSize)
	client := redis.NewClient(&safe)
	r.client = client
	r.server.client.Store(client)
	r.init(safe.Addr, all, open)
	return r, nil
}

// ownLane makes a lane with a client of its own, which has one connection: only so is it known which connection a call
// uses.
func ownConn(opts redis.Options) *conn {
	ln := newInterrupter()
	dial := opts.Dialer
	if dial == nil {
		defaults := opts
		dial = redis.NewDialer(&defaults)
	}
	opts.Dialer = ln.dialer(dial)
	if credentials := opts.CredentialsProviderContext; credentials != nil {
		opts.CredentialsProviderContext = func(ctx context.Context) (username, password string, err error) {
			ctx, cancel := ending(ctx)
			defer cancel()
			return credentials(ctx)
		}
	}
	if connected := opts.OnConnect; connected != nil {
		opts.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
			ctx, cancel := ending(ctx)
			defer cancel()
			return connected(ctx, conn)
		}
	}
	// PoolSize stays: the lane makes one call at a time, and after PoolSize dials that fail in succession the client
	// would rest for up to a second.
	opts.MinIdleConns, opts.MaxIdleConns, opts.MaxActiveConns = 0, 1, 0
	if opts.Protocol == 0 {
		opts.Protocol = 2 // nothing is pushed, and nothing has to look for it
	}
	return &conn{opts: &opts, interrupter: ln}
}

// initShared has all lanes belong to the one client.
func (r *Redis) initShared(node string, pool int) {
	all, open := sharedConns(r.client, r.cfg.Pipelines, pool)
	r.init(node, all, open)
}

// sharedLanes makes lanes that share a client with a pool of connections, as many of them open as are wanted.
func sharedConns(client redis.UniversalClient, want, pool int) (all []*conn, open int) {
	open = min(want, pool)
	all = make([]*conn, open+min(maxExtraConns, pool-open))
	for i := range all {
		all[i] = &conn{client: client}
	}
	return all, open
}

// newClusterRedis makes a Redis of a cluster's client. The lanes belong to the clients of its nodes.
func newClusterRedis(client *redis.ClusterClient, cfg RedisConfig, node string) *Redis {
	r := &Redis{cfg: cfg, client: client}
	r.init(node, nil, 0)
	r.shards = &shards{client: client, guard: r.guard, all: make(map[*redis.Client]*shard)}
	r.shards.askRedirector.options = client.Options()
	r.shards.open = func(node *redis.Client) *shard {
		all, open := sharedConns(node, cfg.Pipelines, node.Options().PoolSize)
		made := new(shard)
		made.pipeliner.init(r.guard, r.NowMicros, cfg.Queue, all, open)
		return made
	}
	return r
}

func (r *Redis) init(node string, all []*conn, open int) {
	r.node = node
	cfg := callguard.Config{
		Timeout: r.cfg.Timeout, KeepsConn: true, IgnoresContext: r.reader, Closed: ErrClosed,
		Wrap: func(ctx context.Context, op string, err error) error {
			return WrapError(ctx, op, node, err, classifyRedis)
		},
	}
	if single, ok := r.client.(*redis.Client); ok { // a call that waits for a connection can be given up; of a cluster each node has its own
		cfg.MaxCalls = single.Options().PoolSize
	}
	r.guard = callguard.New(cfg)
	r.pipeliner.init(r.guard, r.NowMicros, r.cfg.Queue, all, open)
}

// NewRedis counts through the caller's own client, which Close leaves open. A client that would send a take twice
// is refused: set MaxRetries: -1 (of a cluster client MaxRedirects: -1), and ContextTimeoutEnabled: true. So is any other
// than a *redis.Client and a *redis.ClusterClient, also one that wraps them: what it does can't be seen. To watch or to
// change its calls add a hook. A redis.Ring gives the keys of a dead node to another; use package router.
//
// Calls end by cfg.Timeout whatever the client's own timeouts are. The client gets a hook that counts its connections: after a
// new one the server is asked who it is, over any connection of the client, before the next decision is returned. A client's
// hooks can't be removed, so Close leaves it there: make one Redis of a client, not one after another.
//
// On a Redis Cluster each shard has lanes of its own: one that hangs holds up its own keys only. Everything is sent
// through the clients of the nodes that the client makes; hooks belong there, by OnNewNode.
func NewRedis(client redis.UniversalClient, cfg RedisConfig) (*Redis, error) {
	cfg = cfg.withDefaults()
	errs := []error{cfg.validate()}
	refuse := func(field string, value any, bound string) {
		errs = append(errs, &limit.Error{Field: "redis client: " + field, Value: fmt.Sprint(value), Bound: bound})
	}
	var node string
	var pool int
	const retries = "must be off (-1): a retry of a take would count twice"
	single, _ := client.(*redis.Client)
	cluster, _ := client.(*redis.ClusterClient)
	switch {
	case single != nil:
		opts := single.Options()
		node, pool = opts.Addr, opts.PoolSize
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
	if cluster != nil {
		return newClusterRedis(cluster, cfg, node), nil
	}
	r := &Redis{cfg: cfg, client: client, server: newContinuity()}
	r.server.client.Store(single)
	single.AddHook(dialCounter{r.server})
	r.initShared(node, pool)
	return r, nil
}

const deadlinesHonoured = "must be true: without it a call outlives its context"
