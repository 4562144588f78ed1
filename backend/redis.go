package backend

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/storedname"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// RedisConfig configures a Redis. The zero value is ready to use.
type RedisConfig struct {
	// Prefix starts the name of every stored key: [A-Za-z0-9_:.-]{1,16}. Empty: "sl:".
	Prefix string

	// Timeout is how long one call may take, the wait for a connection included; an earlier deadline of the
	// caller's context wins. Zero: 250 ms. Negative is refused: a call without an end is none.
	Timeout time.Duration

	// Pipelines is how many round trips may be under way at once, on a Redis Cluster to each shard. Calls that come meanwhile
	// share the next one. Zero: 2.
	Pipelines int

	// Queue is how many calls may wait for a round trip, on a Redis Cluster for one to each shard; one more fails with
	// ErrOverloaded. Zero: 4096.
	Queue int

	// Now replaces the clock, for tests. It is called by several goroutines at once. Nil: the server's clock as it was last heard, and what has passed since by
	// this process's monotonic clock; the wall clock of this host decides nothing. Of a Redis Cluster that is the clock
	// of the primary which has the slot of the prefix and "topology"; another one's only if that has been silent for
	// 30 s, and then the time may step by what they differ.
	Now func() time.Time
}

const (
	defaultRedisTimeout = 250 * time.Millisecond
	defaultPipelines    = 2
	defaultQueue        = 4096
)

func (c RedisConfig) withDefaults() RedisConfig {
	if c.Prefix == "" {
		c.Prefix = storedname.DefaultPrefix
	}
	if c.Timeout == 0 {
		c.Timeout = defaultRedisTimeout
	}
	if c.Pipelines == 0 {
		c.Pipelines = defaultPipelines
	}
	if c.Queue == 0 {
		c.Queue = defaultQueue
	}
	return c
}

func (c RedisConfig) validate() error {
	var errs []error
	if err := storedname.CheckPrefix("redis: Prefix", c.Prefix); err != nil {
		errs = append(errs, err)
	}
	if c.Timeout < 0 {
		errs = append(errs, &limit.Error{Field: "redis: Timeout", Value: c.Timeout.String(), Bound: "must not be negative"})
	}
	for i, n := range []int{c.Pipelines, c.Queue} {
		if n < 0 {
			field := [...]string{"redis: Pipelines", "redis: Queue"}[i]
			errs = append(errs, &limit.Error{Field: field, Value: strconv.Itoa(n), Bound: "must not be negative"})
		}
	}
	return errors.Join(errs...)
}

// Redis counts on one Redis node, redis-server 6.2 or newer: a take is one script call on one key. All limits of a
// policy for a key are one string value, in the encoding of package limit; its TTL serves cleaning only.
//
// The server needs no configuration, but maxmemory-policy should be noeviction: the volatile policies evict
// counts first. An ACL needs ~PREFIX*, and +get +mget +set +evalsha +eval +time +info;
// one for the nodes of a Redis Cluster what package router says.
//
// A server that restarted, was promoted, was emptied or has evicted keys has lost counts: until the windows of that time are
// over decisions are Bounded, with the cause [ErrCountsLost]. A restart is known before the next decision. So is a promotion, and
// for processes that start later both, by a key PREFIXserver that is stored on the server; a FLUSHALL is noticed within about a
// second. A server that may evict is exact only while it has room for 1 GiB for each second since it was asked, see [ErrEvicted].
// A login without INFO, or a server that doesn't tell its run id, never decides exactly. On a Redis Cluster no key is stored:
// restarts and failovers that this process has lived through are known, and nothing else.
type Redis struct {
	cfg        RedisConfig
	node       string // its address; of several, separated by commas
	client     redis.UniversalClient
	guard      *callguard.Guard
	pipeliner  pipeliner
	plans      scripts.Plans
	isolations isolations
	calls      sync.Pool // that nobody holds
	reader     bool      // its client asks for the servers' commands under a context of its own, and for five seconds
	owned      bool      // whether Close closes the client
	shards     *shards   // of a cluster, in place of lanes; else nil
	clock      serverClock
	server     *continuity // not of a cluster
	syncing    atomic.Bool // whether a reading of the server's clock is under way in the background
}

var (
	_ Backend     = (*Redis)(nil)
	_ Peeker      = (*Redis)(nil)
	_ Refunder    = (*Redis)(nil)
	_ Resetter    = (*Redis)(nil)
	_ Pinger      = (*Redis)(nil)
	_ Loader      = (*Redis)(nil)
	_ Seeder      = (*Redis)(nil)
	_ Sealer      = (*Redis)(nil)
	_ Publisher   = (*Redis)(nil)
	_ Clock       = (*Redis)(nil)
	_ Heartbeater = (*Redis)(nil)
	_ Doubter     = (*Redis)(nil)
)

// Take implements [Backend].
func (r *Redis) Take(ctx context.Context, req Request) (Result, error) {
	if err := req.CheckTake(ctx); err != nil {
		return Result{}, err
	}
	return r.take(ctx, opTake, &req, req.Cost, req.Floor)
}

// Seed implements [Seeder].
func (r *Redis) Seed(ctx context.Context, req Request, st state.State) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	_, err := r.take(ctx, "seed", &req, 0, &st)
	return err
}

func (r *Redis) take(ctx context.Context, op string, req *Request, cost int64, floor *state.State) (Result, error) {
	deadline := r.guard.Deadline()
	at, err := r.serverTime(ctx, deadline)
	if err != nil {
		return Result{}, err
	}
	now := at.micros
	e := newEvalCall(&r.calls)
	e.script, e.Key, e.nowMicros = &scripts.Take, r.name(req), now
	known := scripts.FloorText(floor, now)
	if cost > 0 && r.shards == nil && req.Move.Version == 0 {
		e.plan, e.isolation = r.plans.Find(req.Policy.Limits), r.isolations.of(req.Policy.Name)
		e.plain = e.plan.Script != nil
	}
	if e.plain {
		e.Cost, e.Floor = cost, known
	} else {
		e.args = scripts.TakeArgs(req.Policy.Limits, state.Moment(req.Policy, req.Key, now), cost, known, req.Move)
	}
	text, now, by, err := r.run(ctx, op, deadline, e, req.Trace) // the time is that of all who went together
	if err != nil {
		return Result{}, err
	}
	charged, st, err := scripts.ParseTake(text)
	if err != nil {
		return Result{}, &Error{Op: op, Node: r.node, Kind: Corrupt, MayHaveCharged: charged, Err: state.ErrCorruptState}
	}
	result := Result{
		Verdict: st.Taken(req.Policy, state.Moment(req.Policy, req.Key, now), cost, charged),
		Now:     now, Behind: at.behind, State: st, Source: Primary,
	}
	result.Lower(r.doubt(ctx, deadline, by, now, req.Policy))
	r.mark(ctx, deadline, by)
	return result, nil
}

// Load implements [Loader]. It is a plain GET and so works on a replica.
func (r *Redis) Load(ctx context.Context, req Request) (Snapshot, error) {
	if err := req.Check(ctx); err != nil {
		return Snapshot{}, err
	}
	deadline := r.guard.Deadline()
	now, err := r.nowMicros(ctx, deadline)
	if err != nil {
		return Snapshot{}, err
	}
	name := r.name(&req)
	var by *continuity
	start := time.Now()
	text, err := callguard.Do(ctx, r.guard, "load", deadline, func(ctx context.Context) (text string, err error) {
		by, text, err = r.get(ctx, deadline, name)
		if errors.Is(err, redis.Nil) {
			return "", nil
		}
		return text, err
	})
	r.record(req.Trace, Call{Op: "load", Command: "GET", Start: start}, err)
	if err != nil {
		return Snapshot{}, err
	}
	st, err := state.ParseState(text)
	if err != nil {
		return Snapshot{}, &Error{Op: "load", Node: r.node, Kind: Corrupt, Err: err}
	}
	snapshot := Snapshot{State: st, Now: now, Source: Primary}
	switch {
	case by == nil: // of a RedisReader: nobody knows who answered
	case by.replica.Load():
		r.refresh(by, now) // it may have been promoted
	default:
		snapshot.Lacks = r.doubt(ctx, deadline, by, now, req.Policy)
	}
	return snapshot, nil
}

// get reads a key. It also returns who has it.
func (r *Redis) get(ctx context.Context, deadline time.Time, name string) (by *continuity, text string, err error) {
	if r.shards != nil {
		return r.shards.get(ctx, deadline, name)
	}
	text, err = r.client.Get(ctx, name).Result()
	return r.server, text, err
}

// Peek implements [Peeker].
func (r *Redis) Peek(ctx context.Context, req Request) (Result, error) {
	if err := req.CheckTake(ctx); err != nil {
		return Result{}, err
	}
	snapshot, err := r.Load(ctx, req)
	if err != nil {
		return Result{}, err
	}
	return snapshot.Peek(&req), nil
}

// Refund implements [Refunder].
func (r *Redis) Refund(ctx context.Context, req Request, receipt state.Receipt, amount int64) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	if amount = receipt.Refundable(amount); amount < 1 {
		return nil
	}
	_, _, err := r.eval(ctx, opRefund, &scripts.Refund, &req, func(at state.At) []any {
		return scripts.RefundArgs(at, &receipt, amount, req.Move.GiveBack())
	})
	return err
}

// Reset implements [Resetter].
func (r *Redis) Reset(ctx context.Context, req Request) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	_, _, err := r.eval(ctx, opReset, &scripts.Reset, &req, func(at state.At) []any {
		return scripts.ResetArgs(at, req.Policy, req.Move.GiveBack())
	})
	return err
}

// Seal implements [Sealer].
func (r *Redis) Seal(ctx context.Context, req Request) (Snapshot, error) {
	if err := req.CheckSeal(ctx); err != nil {
		return Snapshot{}, err
	}
	text, now, err := r.eval(ctx, "seal", &scripts.Seal, &req, func(at state.At) []any {
		return scripts.SealArgs(at, req.Move)
	})
	if err != nil {
		return Snapshot{}, err
	}
	st, err := state.ParseState(text)
	if err != nil {
		return Snapshot{}, &Error{Op: "seal", Node: r.node, Kind: Corrupt, Err: err}
	}
	return Snapshot{State: st, Now: now, Source: Primary}, nil
}

// Ping implements [Pinger]; it also reads the server's clock.
func (r *Redis) Ping(ctx context.Context) error {
	if ctx == nil {
		return ErrNilContext
	}
	_, err := r.readClock(ctx, r.guard.Deadline())
	return err
}

// NowMicros implements [Clock].
func (r *Redis) NowMicros() int64 {
	if r.cfg.Now != nil {
		return r.cfg.Now().UnixMicro()
	}
	now, ok := r.clock.now()
	if !ok {
		return 0
	}
	return now.micros
}

// Close waits for the calls under way, which end within the timeout, and closes the clients that OpenRedis made.
func (r *Redis) Close() error {
	if !r.guard.Close() {
		return nil
	}
	if r.shards != nil {
		return r.shards.close()
	}
	r.pipeliner.close()
	if !r.owned {
		return nil
	}
	err := r.client.Close()
	for _, ln := range r.pipeliner.all {
		if ln.client != nil && ln.client != r.client {
			err = errors.Join(err, ln.client.Close())
		}
	}
	return err
}

func (r *Redis) name(req *Request) string {
	return storedname.Of(r.cfg.Prefix, req.Policy.Name, req.Key)
}

func (r *Redis) nowMicros(ctx context.Context, deadline time.Time) (int64, error) {
	now, err := r.serverTime(ctx, deadline)
	return now.micros, err
}

// serverTime is the server's time. Only the first call, and one after a long silence, waits for the server to say
// it; a reading that ages is renewed in the background.
func (r *Redis) serverTime(ctx context.Context, deadline time.Time) (serverTime, error) {
	if r.cfg.Now != nil {
		return serverTime{micros: r.cfg.Now().UnixMicro()}, nil
	}
	now, ok := r.clock.now()
	if !ok || now.age > clockTrusted {
		if _, err := r.readClock(ctx, deadline); err != nil {
			return serverTime{}, err
		}
		now, _ = r.clock.now()
		return now, nil
	}
	if now.age > clockFresh && r.syncing.CompareAndSwap(false, true) {
		go func() {
			defer r.syncing.Store(false)
			_, _ = r.readClock(context.Background(), r.guard.Deadline()) // the next call tries again
		}()
	}
	return now, nil
}

// readClock returns how far the server's clock is ahead.
func (r *Redis) readClock(ctx context.Context, deadline time.Time) (time.Duration, error) {
	return callguard.Do(ctx, r.guard, "ping", deadline, func(ctx context.Context) (time.Duration, error) {
		now, asked, borrowed, err := r.time(ctx)
		if err != nil {
			return 0, err
		}
		r.clock.heard(now.UnixMicro(), asked, borrowed)
		return ahead(now, asked, time.Since(asked)), nil
	})
}

// time asks for the time, and says when it asked. The time of a cluster is that of the primary which has a certain key, for
// every process the same: its nodes' clocks differ, and if each could answer, a window that was opened by one would end
// early by another. Where that primary doesn't answer, the time is borrowed from another: it shows that somebody is there.
func (r *Redis) time(ctx context.Context) (now, asked time.Time, borrowed bool, err error) {
	cluster, ok := r.client.(*redis.ClusterClient)
	if ok {
		asked = time.Now()
		if now, err = r.clusterTime(ctx, cluster); err == nil {
			return now, asked, false, nil
		}
	}
	asked = time.Now()
	if r.shards != nil {
		now, err = r.shards.time(ctx)
	} else {
		now, err = r.client.Time(ctx).Result()
	}
	return now, asked, ok, err
}

// clusterTime asks the primary whose time is the cluster's, and leaves half of what is left until the deadline.
func (r *Redis) clusterTime(ctx context.Context, cluster *redis.ClusterClient) (time.Time, error) {
	if end, ok := ctx.Deadline(); ok {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		ctx = half
	}
	node, err := cluster.MasterForKey(ctx, r.cfg.Prefix+noticeName)
	if err != nil {
		return time.Time{}, err
	}
	return node.Time(ctx).Result()
}

// eval runs a script on the request's key. It returns the reply, if that is a text, and the moment that the script was given.
func (r *Redis) eval(ctx context.Context, op string, script *scripts.Script, req *Request,
	args func(state.At) []any) (reply string, nowMicros int64, err error) {
	deadline := r.guard.Deadline()
	if nowMicros, err = r.nowMicros(ctx, deadline); err != nil {
		return "", 0, err
	}
	e := newEvalCall(&r.calls)
	e.script, e.Key, e.args, e.nowMicros = script, r.name(req), args(state.Moment(req.Policy, req.Key, nowMicros)), nowMicros
	reply, nowMicros, _, err = r.run(ctx, op, deadline, e, req.Trace)
	return reply, nowMicros, err
}

// run makes a script call, and frees the evalCall. It also returns the moment that the script was given, and who ran it.
func (r *Redis) run(ctx context.Context, op string, deadline time.Time, e *evalCall, t *Trace) (reply string, nowMicros int64, by *continuity, err error) {
	defer func() { e.release() }()
	if t != nil {
		script := e.script // the evalCall belongs to the lane from here on
		if e.plain {
			script = e.plan.Script
		}
		c := Call{Op: op, Command: "EVALSHA", Script: script.Name, Start: time.Now()}
		defer func() {
			if err == nil {
				c.Shared = e.shared
			}
			r.record(t, c, err)
		}()
	}
	if err = r.guard.Begin(); err != nil {
		return "", 0, nil, err
	}
	defer r.guard.End()
	if by = r.server; r.shards != nil {
		e, by, reply, err = r.shards.run(ctx, deadline, e)
	} else {
		reply, err = r.pipeliner.run(ctx, deadline, e)
	}
	if err == nil {
		return reply, e.nowMicros, by, nil
	}
	if refused := refusal(err); refused != nil {
		return "", 0, nil, refused
	}
	return "", 0, nil, r.guard.Wrap(ctx, op, err)
}

// record adds a call to a trace, if there is one.
func (r *Redis) record(t *Trace, c Call, err error) {
	if t != nil {
		c.System, c.Node, c.Status = "redis", r.node, replyWord(err)
		t.Record(c, err)
	}
}

// Heartbeat implements [Heartbeater]; it also reads the server's clock.
func (r *Redis) Heartbeat(ctx context.Context) (Heartbeat, error) {
	if ctx == nil {
		return Heartbeat{}, ErrNilContext
	}
	start := time.Now()
	if r.shards != nil { // which nodes it has is the cluster's own business
		ahead, err := r.readClock(ctx, r.guard.Deadline())
		return Heartbeat{Primary: true, Ahead: ahead, RTT: time.Since(start)}, err
	}
	return callguard.Do(ctx, r.guard, "ping", r.guard.Deadline(), func(ctx context.Context) (Heartbeat, error) {
		pipe := r.client.Pipeline()
		q := r.askIdentity(ctx, pipe, r.server, true)
		if err := cmp.Or(q.exec(ctx, pipe), q.time.Err(), q.info[0].Err(), q.info[1].Err()); err != nil {
			return Heartbeat{}, err
		}
		now := q.time.Val()
		r.clock.heard(now.UnixMicro(), start, false)
		beat := parseHeartbeat(q.info[0].Val() + q.info[1].Val())
		beat.RTT = time.Since(start)
		beat.Ahead = ahead(now, start, beat.RTT)
		if says, err := q.identity(r.NowMicros()); err == nil { // otherwise the marker can't be read now
			r.observe(r.server, says)
		}
		return beat, nil
	})
}

func parseHeartbeat(info string) Heartbeat {
	var beat Heartbeat
	for line := range strings.SplitSeq(info, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "run_id":
			beat.RunID = value
		case "role":
			beat.Primary = value == "master"
		case "master_link_status":
			beat.LinkUp = value == "up"
		case "master_last_io_seconds_ago", "master_link_down_since_seconds": // the latter follows, where the former is -1
			seconds, _ := strconv.ParseInt(value, 10, 64)
			beat.Age = time.Duration(max(seconds, 0)) * time.Second
		case "master_repl_offset":
			beat.Offset, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	return beat
}
