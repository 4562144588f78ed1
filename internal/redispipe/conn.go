package redispipe

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// conn makes one round trip at a time.
type conn struct {
	client      *redis.Client  // nil until it is used, if it is the connection's own
	opts        *redis.Options // of that
	interrupter *interrupter   // nil: the client may have several calls under way, and none can be interrupted

	pipeline pipeline    // of the round trip under way
	batch    []*evalCall // the calls that it has for others; guarded by pipeliner.mu
	deadline time.Time   // when the last of their callers stops waiting
	past     []*evalCall // memory for another batch
}

// ownConn makes a conn with a client of its own, which has one connection, so that it is known which connection a call uses.
func ownConn(opts redis.Options) *conn {
	n := newInterrupter()
	dial := opts.Dialer
	if dial == nil {
		defaults := opts
		dial = redis.NewDialer(&defaults)
	}
	opts.Dialer = n.dialer(dial)
	if credentials := opts.CredentialsProviderContext; credentials != nil {
		opts.CredentialsProviderContext = func(ctx context.Context) (username, password string, err error) {
			ctx, cancel := withTimer(ctx)
			defer cancel()
			if username, password, err = credentials(ctx); err != nil {
				err = beforeCall(err)
			}
			return username, password, err
		}
	}
	if connected := opts.OnConnect; connected != nil {
		opts.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
			ctx, cancel := withTimer(ctx)
			defer cancel()
			if err := connected(ctx, conn); err != nil {
				return beforeCall(err)
			}
			return nil
		}
	}
	// PoolSize stays, although the conn makes one call at a time: after PoolSize dials that fail in succession the client would
	// rest for up to a second.
	opts.MinIdleConns, opts.MaxIdleConns, opts.MaxActiveConns = 0, 1, 0
	if opts.Protocol == 0 {
		opts.Protocol = 2 // nothing is pushed, and nothing has to look for it
	}
	return &conn{opts: &opts, interrupter: n, pipeline: pipeline{keepsCmd: true}}
}

// sharedConns makes conns that share a client with a pool of connections.
func sharedConns(client *redis.Client, want int) (all []*conn, open int) {
	pool := client.Options().PoolSize
	open = min(want, pool)
	all = make([]*conn, open+min(maxExtraConns, pool-open))
	for i := range all {
		all[i] = &conn{client: client}
	}
	return all, open
}

func (c *conn) addLocked(e *evalCall) {
	if len(c.batch) == 0 || e.until.After(c.deadline) {
		c.deadline = e.until
	}
	c.batch = append(c.batch, e)
}

// exchange makes a round trip, and further ones for calls whose reply shows that nothing was done: the server didn't know
// their script, or the script was not for them. Those whose callers have left by then are not made.
func (c *conn) exchange(ctx deadlineCtx, batch []*evalCall) {
	if c.client == nil {
		c.client = redis.NewClient(c.opts)
	}
	if c.interrupter == nil {
		var cancel context.CancelFunc
		ctx.Context, cancel = withTimer(ctx)
		defer cancel()
	} else {
		c.interrupter.start(ctx.deadline)
	}
	var end context.Context = ctx // converted once: each conversion allocates
	p := &c.pipeline
	for {
		for _, e := range batch {
			if !e.awaited || e.open() {
				p.add(e)
			}
		}
		if len(p.commands) == 0 {
			break
		}
		p.encode(end)
		p.exec(end, c.client)
		batch = nil
		for i := range p.commands {
			batch = p.commands[i].deliver(batch)
		}
		p.reset()
	}
	if c.interrupter != nil {
		c.interrupter.rest()
	}
}

// deadlineCtx is a context with a deadline but without a timer: the client sets the deadline on the connection. Since the
// context doesn't end by itself, a dial must be bounded otherwise: by an interrupter, or by the timer of withTimer.
type deadlineCtx struct {
	context.Context
	deadline time.Time
}

func (c deadlineCtx) Deadline() (time.Time, bool) { return c.deadline, true }

// withTimer returns a context that ends by the deadline of ctx.
func withTimer(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, end)
	}
	return context.WithCancel(ctx)
}
