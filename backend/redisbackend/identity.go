package redisbackend

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit"
)

// info is what INFO says of a server.
type info struct {
	runID    string
	primary  bool
	linkUp   bool          // of a replica
	age      time.Duration // of a replica: since it last heard of its primary
	offset   int64
	replID   string // of its replication
	before   string // of the replication that it was promoted from
	evicted  int64  // keys
	used     int64  // bytes
	most     int64  // bytes; 0 for no bound
	evicting string // the policy
}

func parseInfo(text string) info {
	var i info
	number := func(value string) int64 { n, _ := strconv.ParseInt(value, 10, 64); return n }
	for line := range strings.SplitSeq(text, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "run_id":
			i.runID = value
		case "role":
			i.primary = value == "master"
		case "master_link_status":
			i.linkUp = value == "up"
		case "master_last_io_seconds_ago", "master_link_down_since_seconds": // the latter follows, where the former is -1
			i.age = time.Duration(max(number(value), 0)) * time.Second
		case "master_repl_offset":
			i.offset = number(value)
		case "master_replid":
			i.replID = value
		case "master_replid2":
			if strings.Trim(value, "0") != "" {
				i.before = value
			}
		case "evicted_keys":
			i.evicted = number(value)
		case "used_memory":
			i.used = number(value)
		case "maxmemory":
			i.most = number(value)
		case "maxmemory_policy":
			i.evicting = value
		}
	}
	return i
}

func (i info) heartbeat() control.Heartbeat {
	return control.Heartbeat{RunID: i.runID, Primary: i.primary, LinkUp: i.linkUp, Age: i.age, Offset: i.offset}
}

// identity is what a server says of itself, and the marker on it.
type identity struct {
	info
	nowMicros int64
	id        string // the process and how many keys it has evicted; empty if it doesn't say

	marks bool   // whether this login may read the marker
	mark  marker // zero if there is none
	knew  string // the nonce of the marker that was known to be there before the question; empty if none was
}

// evicts reports whether the server may evict keys, and how many bytes are left before it does.
func (i *identity) evicts() (room int64, may bool) {
	return max(i.most-i.used, 0), i.most > 0 && i.evicting != "noeviction"
}

// identityQuery queries the identity of a server.
type identityQuery struct {
	time    *redis.TimeCmd
	info    []*redis.StringCmd
	mark    *redis.StringCmd // nil in a cluster, where no name belongs to one node
	process string           // the server process, if that was known
	knew    string           // see identity
}

// sections of INFO that a server is asked for, each by itself: several at once need Redis 7. The first says which process it is.
var sections = [...]string{"server", "replication", "stats", "memory"}

// askIdentity queues the questions who a server is, also for its process if that may have changed.
func (r *Redis) askIdentity(ctx context.Context, pipe redis.Pipeliner, c *continuity, another bool) identityQuery {
	q := identityQuery{time: pipe.Time(ctx)}
	q.process, q.knew = c.knows()
	asked := sections[:]
	if !another && q.process != "" {
		asked = asked[1:]
	}
	for _, section := range asked {
		q.info = append(q.info, pipe.Info(ctx, section))
	}
	if !r.servers.cluster {
		q.mark = pipe.Get(ctx, r.cfg.Prefix+markerName)
	}
	return q
}

// exec asks. It fails if there was no connection; otherwise each command has an error of its own.
func (q *identityQuery) exec(ctx context.Context, pipe redis.Pipeliner) error {
	_, err := pipe.Exec(ctx)
	if q.time.Err() == nil && q.time.Val().IsZero() {
		return err
	}
	return nil
}

// text is the reply to INFO; empty if this login may not ask.
func (q *identityQuery) text() (string, error) {
	var b strings.Builder
	for _, section := range q.info {
		switch text, err := section.Result(); {
		case err == nil:
			b.WriteString(text)
		case !redispipe.IsReply(err) || redispipe.IsUnavailable(err):
			return "", err
		}
	}
	return b.String(), nil
}

// identity is the answer.
func (q *identityQuery) identity(nowMicros int64) (*identity, error) {
	says := &identity{nowMicros: nowMicros, knew: q.knew}
	if nowMicros == 0 {
		now, err := q.time.Result()
		switch {
		case err == nil:
			says.nowMicros = now.UnixMicro()
		case redispipe.IsReply(err) && !redispipe.IsUnavailable(err):
			return says, nil // a login that may not ask for the time decides nothing; it may still publish
		default:
			return nil, err
		}
	}
	text, err := q.text()
	if err != nil {
		return nil, err
	}
	says.info = parseInfo(text)
	if process := cmp.Or(says.runID, q.process); process != "" { // INFO may not have been asked for it
		says.id = process + ":" + strconv.FormatInt(says.evicted, 10)
	}
	if q.mark == nil {
		return says, nil
	}
	mark, err := q.mark.Result()
	switch {
	case err == nil:
		says.marks, says.mark = true, parseMarker(mark)
	case errors.Is(err, redis.Nil):
		says.marks = true
	case !redispipe.IsReply(err) || says.primary && redispipe.IsUnavailable(err):
		return nil, err
	}
	return says, nil
}

// pipelined is a client, or one connection of it.
type pipelined interface{ Pipeline() redis.Pipeliner }

// identify queries the identity of a server and takes it in.
func (r *Redis) identify(ctx context.Context, server pipelined, c *continuity, another bool) error {
	dialled := c.dialled.Load()
	pipe := server.Pipeline()
	q := r.askIdentity(ctx, pipe, c, another)
	if err := q.exec(ctx, pipe); err != nil {
		return err
	}
	says, err := q.identity(r.nowMicros())
	if err != nil {
		return err
	}
	r.servers.observe(c, says)
	c.asked.Store(dialled)
	return nil
}

// mark writes the marker, if it has to change. Only takes call it: a peek changes nothing. If it fails, the next question leads to
// it again. The take waits for it, so that processes which start after a decision know what led to it, except after
// evictions, which those processes know by their number.
func (r *Redis) mark(ctx context.Context, deadline time.Time, c *continuity) {
	w := c.unwritten.Load()
	if w == nil || !c.unwritten.CompareAndSwap(w, nil) {
		return
	}
	if evicted(w.id) {
		go r.write(context.Background(), r.guard.Deadline(), c, w)
		return
	}
	r.write(ctx, deadline, c, w)
}

func (r *Redis) write(ctx context.Context, deadline time.Time, c *continuity, w *write) {
	name := r.cfg.Prefix + markerName
	args := []any{"set", name, w.String()}
	if w.absent {
		args = append(args, "nx")
	}
	there, err := callguard.Do(ctx, r.guard, "ping", deadline, func(ctx context.Context) (string, error) {
		pipe := c.client.Load().Pipeline()
		pipe.Do(ctx, args...)
		there := pipe.Get(ctx, name) // another process may have been faster
		_, _ = pipe.Exec(ctx)
		return there.Result()
	})
	if err == nil {
		c.found(parseMarker(there))
	}
}

// identifying makes a connection query the identity of its server before anything else is sent.
func (r *Redis) identifying(next func(context.Context, *redis.Conn) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, conn *redis.Conn) error {
		if next != nil {
			if err := next(ctx, conn); err != nil {
				return err
			}
		}
		if err := r.identify(ctx, conn, r.servers.one, true); err != nil {
			return callguard.Unsent(callguard.Unsent(err)) // the client unwraps it once
		}
		return nil
	}
}

// dialCounter counts the connections of a client that the caller made.
type dialCounter struct{ *continuity }

func (d dialCounter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err == nil {
			d.dialled.Add(1)
		}
		return conn, err
	}
}

func (dialCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (dialCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// doubt is why a decision that the server has just made is not exact; nil if it is. It first queries the server's identity if
// the decision may have come over a connection that never asked, and asks in the background if that was a while ago.
func (r *Redis) doubt(ctx context.Context, deadline time.Time, c *continuity, nowMicros int64, p *limit.Policy) error {
	r.servers.decided(p)
	if !c.current() {
		if err := r.identifyAgain(ctx, deadline, c); err != nil {
			return backend.ErrCountsLost
		}
	} else {
		r.refresh(c, nowMicros)
	}
	return c.cause(nowMicros, p)
}

// refresh queries the server's identity in the background, if that was a while ago.
func (r *Redis) refresh(c *continuity, nowMicros int64) {
	due := nowMicros-c.askedAt.Load() > askAgain.Microseconds() || c.askedAfter(nowMicros)
	if due && c.refreshing.CompareAndSwap(false, true) {
		go func() {
			defer c.refreshing.Store(false)
			_ = r.identifyAgain(context.Background(), r.guard.Deadline(), c)
		}()
	}
}

// current reports whether the server was asked on, or after, every connection so far.
func (c *continuity) current() bool { return c.dialled.Load() == c.asked.Load() && !c.replica.Load() }

// identifyAgain queries the server's identity, unless another caller has meanwhile.
func (r *Redis) identifyAgain(ctx context.Context, deadline time.Time, c *continuity) error {
	asked := c.askedAt.Load()
	_, err := callguard.Do(ctx, r.guard, "ping", deadline, func(ctx context.Context) (struct{}, error) {
		select {
		case c.asking <- struct{}{}:
			defer func() { <-c.asking }()
		case <-ctx.Done():
			return struct{}{}, ctx.Err()
		}
		if c.current() && c.askedAt.Load() != asked {
			return struct{}{}, nil
		}
		return struct{}{}, r.identify(ctx, c.client.Load(), c, !c.current())
	})
	return err
}

// Doubt implements [backend.Doubter].
func (r *Redis) Doubt(req backend.Request) error {
	return r.servers.doubt(r.pipe.Node(r.name(&req)), r.nowMicros(), req.Policy)
}
