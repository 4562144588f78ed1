package backend

import (
	"context"
	"errors"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/limit"
)

// ErrCountsLost is the cause of a decision that is not exact because its server may have lost counts whose windows are not
// over: it restarted, was promoted or was emptied, it has evicted keys, or it doesn't say which process it is.
var ErrCountsLost = errors.New("sluice: the server may have lost counts: it restarted, was promoted, was emptied or evicted keys")

// Doubter is a backend that knows whether it may have lost counts.
type Doubter interface {
	// Doubt says why counts of the request's key may be missing, although their windows are not over; nil if nothing is
	// known of it. It makes no call.
	Doubt(req Request) error
}

// DoubtOf is what a backend says of a request, if it is a [Doubter].
func DoubtOf(b Backend, req Request) error {
	if d, ok := b.(Doubter); ok {
		return d.Doubt(req)
	}
	return nil
}

// Lower makes a result say that it is not exact, for a reason; nil changes nothing.
func (r *Result) Lower(cause error) {
	if cause != nil {
		r.Guarantee, r.Cause = max(r.Guarantee, Bounded), errors.Join(cause, r.Cause)
	}
}

// continuity is what is known of whether a server still has all counts that were made on it. The server is asked on every
// new connection, before its first decision: a server that restarted has broken all older ones. Promotions, evictions and
// flushes break none; for them a marker is stored on the server, which names the server process and how many keys it has
// evicted. One that isn't there any more, or names another process, was lost or came from another server. Processes that
// start after a loss learn of it by the marker, too.
//
// What happens between two questions can't be known, so a server that may evict is trusted only while it has more room than
// can be filled until the next one.
type continuity struct {
	client atomic.Pointer[redis.Client] // of the server

	lostAt     atomic.Int64          // the latest loss, by the clock that decides, Unix microseconds; 0 if none is known
	exactUntil atomic.Int64          // when the server may begin to evict, likewise
	askedAt    atomic.Int64          // when it was asked last, likewise
	refreshing atomic.Bool           // whether it is being asked in the background
	replica    atomic.Bool           // whether it was one when it was asked last
	unwritten  atomic.Pointer[[]any] // the command that writes the marker; nil if it is as it must be

	// Of a client that the caller made, connections are only counted, and the server is asked after the first reply.
	dialled, asked atomic.Int64
	asking         chan struct{} // holds one while a caller asks

	mu     sync.Mutex // guards what follows
	id     string     // the server process and how many keys it has evicted; empty before that is known
	since  int64      // when the latest loss was, as far as the server said which process it is; 0 if none is known
	marked bool       // whether the marker was there, or was written
	before string     // the replication that it was promoted from, in a cluster
}

const (
	// markerName follows the prefix in the name of the key that holds the marker, "id since": since when, in Unix
	// microseconds, counts are complete; 0 from the beginning.
	markerName = "server"

	askAgain = time.Second

	// growth is how many bytes a second a server's memory is taken to grow at most.
	growth = 1 << 30

	unknownLoss = math.MaxInt64 / 2 // lostAt of a server that doesn't say which process it is
)

func newContinuity() *continuity {
	c := &continuity{asking: make(chan struct{}, 1)}
	c.exactUntil.Store(math.MaxInt64)
	return c
}

// cause says why a decision at a moment is not exact; nil if it is.
func (c *continuity) cause(nowMicros int64, p *limit.Policy) error {
	if nowMicros >= c.exactUntil.Load() {
		return ErrEvicted
	}
	if lost := c.lostAt.Load(); lost != 0 && nowMicros-lost < p.Horizon().Microseconds() {
		return ErrCountsLost
	}
	return nil
}

// identity is what a server says of itself.
type identity struct {
	nowMicros int64
	id        string // the process and how many keys it has evicted; empty if it doesn't say
	primary   bool
	replID    string // of its replication
	before    string // of the one that it was promoted from
	evicts    bool
	room      int64 // bytes, until it begins to evict

	marks  bool   // whether this login may read the marker
	mark   string // the id in the marker; empty if there is none
	since  int64
	marked bool // whether a marker was known to be there before the question
}

// settle takes in what a server has said, and notes how the marker has to be written, if it must be another one.
func (c *continuity) settle(says *identity, promoted bool, markerName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.askedAt.Store(says.nowMicros)
	until := int64(math.MaxInt64)
	if says.evicts {
		until = 0
		if lasts := says.room / (growth / 1_000_000); lasts > askAgain.Microseconds() {
			until = says.nowMicros + lasts
		}
	}
	c.exactUntil.Store(until)
	if says.id == "" {
		c.lostAt.Store(unknownLoss) // until it says so again
		return
	}
	if !says.primary {
		c.replica.Store(true)
		return
	}
	since := c.since
	fresh := c.id == ""
	other := !fresh && c.id != says.id
	evicted := !strings.HasSuffix(says.id, ":0")
	lost := c.replica.Swap(false) || promoted
	switch {
	case !says.marks:
		lost = lost || other || fresh && evicted
	case says.mark == "":
		lost = lost || other || evicted || says.marked
	case says.mark != says.id:
		lost = true
	case other && says.since == 0: // whoever wrote it had not known another process
		lost = true
	default:
		since = max(since, min(says.since, says.nowMicros))
	}
	if lost {
		since = says.nowMicros
	}
	c.id, c.marked = says.id, says.marks && says.mark == says.id
	var write *[]any
	if says.marks && (lost || !c.marked) {
		write = &[]any{"set", markerName, says.id + " " + strconv.FormatInt(since, 10)}
		if !lost { // another process may know more
			*write = append(*write, "nx")
		}
	}
	c.since = since
	c.unwritten.Store(write)
	c.lostAt.Store(since)
}

// isMarked notes that a marker is there, or asks whether one is known to be.
func (c *continuity) isMarked(there bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marked = c.marked || there
	return c.marked
}

// promotedFrom notes of which replication a server was a replica before it was promoted. It reports whether that is news.
func (c *continuity) promotedFrom(replID string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.before != replID
	c.before = replID
	return news
}

// identityQuery asks a server who it is.
type identityQuery struct {
	time   *redis.TimeCmd
	info   [4]*redis.StringCmd
	mark   *redis.StringCmd // nil in a cluster, where no name belongs to one node
	marked bool
}

func (r *Redis) askIdentity(ctx context.Context, pipe redis.Pipeliner, c *continuity) identityQuery {
	q := identityQuery{time: pipe.Time(ctx), marked: c.isMarked(false)}
	for i, section := range [...]string{"server", "replication", "stats", "memory"} { // more than one at once needs Redis 7
		q.info[i] = pipe.Info(ctx, section)
	}
	if r.shards == nil {
		q.mark = pipe.Get(ctx, r.cfg.Prefix+markerName)
	}
	return q
}

// exec asks. It fails if there was no connection; otherwise each command has its own error.
func (q *identityQuery) exec(ctx context.Context, pipe redis.Pipeliner) error {
	_, err := pipe.Exec(ctx)
	if q.time.Err() == nil && q.time.Val().IsZero() {
		return err
	}
	return nil
}

// text is what the server said of itself; empty if this login may not know it.
func (q *identityQuery) text() (string, error) {
	var b strings.Builder
	for _, section := range q.info {
		switch text, err := section.Result(); {
		case err == nil:
			b.WriteString(text)
		case !isReply(err) || kindOfReply(err) == Unavailable:
			return "", err
		}
	}
	return b.String(), nil
}

// identity is the answer.
func (q *identityQuery) identity(nowMicros int64) (*identity, error) {
	says := &identity{nowMicros: nowMicros, marked: q.marked}
	if nowMicros == 0 {
		now, err := q.time.Result()
		switch {
		case err == nil:
			says.nowMicros = now.UnixMicro()
		case isReply(err) && kindOfReply(err) != Unavailable:
			return says, nil // a login that may not ask for the time decides nothing; it may still publish
		default:
			return nil, err
		}
	}
	text, err := q.text()
	if err != nil {
		return nil, err
	}
	says.parse(text)
	if q.mark == nil {
		return says, nil
	}
	mark, err := q.mark.Result()
	switch {
	case err == nil:
		id, since, _ := strings.Cut(mark, " ")
		says.marks, says.mark = true, id
		if says.since, err = strconv.ParseInt(since, 10, 64); err != nil {
			says.mark = "unreadable"
		}
	case errors.Is(err, redis.Nil):
		says.marks = true
	case !isReply(err) || says.primary && kindOfReply(err) == Unavailable:
		return nil, err
	}
	return says, nil
}

func (i *identity) parse(info string) {
	var process, policy string
	var evicted, most, used int64
	for line := range strings.SplitSeq(info, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "run_id":
			process = value
		case "role":
			i.primary = value == "master"
		case "master_replid":
			i.replID = value
		case "master_replid2":
			if strings.Trim(value, "0") != "" {
				i.before = value
			}
		case "evicted_keys":
			evicted, _ = strconv.ParseInt(value, 10, 64)
		case "used_memory":
			used, _ = strconv.ParseInt(value, 10, 64)
		case "maxmemory":
			most, _ = strconv.ParseInt(value, 10, 64)
		case "maxmemory_policy":
			policy = value
		}
	}
	if process != "" {
		i.id = process + ":" + strconv.FormatInt(evicted, 10)
	}
	i.evicts, i.room = most > 0 && policy != "noeviction", max(most-used, 0)
}

// pipelined is a client, or one connection of it.
type pipelined interface{ Pipeline() redis.Pipeliner }

// identify asks a server who it is and takes that in.
func (r *Redis) identify(ctx context.Context, server pipelined, c *continuity) error {
	dialled := c.dialled.Load()
	pipe := server.Pipeline()
	q := r.askIdentity(ctx, pipe, c)
	if err := q.exec(ctx, pipe); err != nil {
		return err
	}
	says, err := q.identity(r.NowMicros())
	if err != nil {
		return err
	}
	r.settle(c, says)
	c.asked.Store(dialled)
	return nil
}

// settle takes in what a server has said.
func (r *Redis) settle(c *continuity, says *identity) {
	c.settle(says, r.shards != nil && r.shards.promoted(c, says), r.cfg.Prefix+markerName)
}

// mark writes the marker, if it must be another one. It is called after takes only: a look changes nothing. If it fails, the next
// question leads to it again.
func (r *Redis) mark(ctx context.Context, deadline time.Time, c *continuity) {
	args := c.unwritten.Load()
	if args == nil || !c.unwritten.CompareAndSwap(args, nil) {
		return
	}
	_, err := call(ctx, &r.calls, "ping", deadline, func(ctx context.Context) (any, error) {
		return c.client.Load().Do(ctx, *args...).Result()
	})
	if err == nil || errors.Is(err, redis.Nil) {
		c.isMarked(true)
	}
}

// identifying has a connection ask its server who it is before anything else is sent.
func (r *Redis) identifying(next func(context.Context, *redis.Conn) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, conn *redis.Conn) error {
		if next != nil {
			if err := next(ctx, conn); err != nil {
				return err
			}
		}
		if err := r.identify(ctx, conn, r.server); err != nil {
			return unsent{unsent{err}} // the client unwraps it once
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

// doubt says why a decision that the server has just made is not exact; nil if it is. It asks the server first if the
// decision may have come over a connection on which nothing asked, and in the background if that was a while ago.
func (r *Redis) doubt(ctx context.Context, deadline time.Time, c *continuity, nowMicros int64, p *limit.Policy) error {
	if !c.current() {
		if err := r.identifyAgain(ctx, deadline, c); err != nil {
			return ErrCountsLost
		}
	} else if nowMicros-c.askedAt.Load() > askAgain.Microseconds() && c.refreshing.CompareAndSwap(false, true) {
		go func() {
			defer c.refreshing.Store(false)
			_ = r.identifyAgain(context.Background(), r.calls.deadline(), c)
		}()
	}
	return c.cause(nowMicros, p)
}

// current reports whether the server was asked on, or after, every connection so far.
func (c *continuity) current() bool { return c.dialled.Load() == c.asked.Load() && !c.replica.Load() }

// identifyAgain asks the server who it is unless, meanwhile, another caller has.
func (r *Redis) identifyAgain(ctx context.Context, deadline time.Time, c *continuity) error {
	asked := c.askedAt.Load()
	_, err := call(ctx, &r.calls, "ping", deadline, func(ctx context.Context) (struct{}, error) {
		select {
		case c.asking <- struct{}{}:
			defer func() { <-c.asking }()
		case <-ctx.Done():
			return struct{}{}, ctx.Err()
		}
		if c.current() && c.askedAt.Load() != asked {
			return struct{}{}, nil
		}
		return struct{}{}, r.identify(ctx, c.client.Load(), c)
	})
	return err
}

// Doubt implements [Doubter].
func (r *Redis) Doubt(req Request) error {
	if r.shards != nil {
		return r.shards.doubt(r.NowMicros(), req.Policy)
	}
	return r.server.cause(r.NowMicros(), req.Policy)
}
