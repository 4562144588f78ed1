// Package redisbackend counts on a Redis node, or on a Redis Cluster.
//
//	counts, err := redisbackend.Open(&redis.Options{Addr: "localhost:6379"}, redisbackend.Config{})
//
// Concurrent calls of a process share round trips; a count is sent at most once. A server that loses its memory has lost
// counts: decisions are Bounded until their windows are over. A [Redis] is safe for concurrent use.
package redisbackend

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/control"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/redispipe"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/scripts"
)

// Redis counts on one Redis node, redis-server 6.2 or newer, or on a Redis Cluster. A take is one script call on one key. All
// limits of a policy for a key are one string value, in the encoding of package limit/state; its TTL serves cleaning only.
//
// The server needs no configuration, but maxmemory-policy should be noeviction: the volatile policies evict
// counts first. An ACL needs ~PREFIX*, and +get +mget +set +evalsha +eval +time +info;
// one for the nodes of a Redis Cluster what package router says.
//
// A server that restarted, was promoted, was emptied or has evicted keys has lost counts: until the windows of that time are
// over decisions are Bounded, with the cause [backend.ErrCountsLost]. A restart is known before the next decision. So is a
// promotion, and for processes that start later both, by a key PREFIXserver that is stored on the server; a FLUSHALL is noticed
// within about a second. A server that may evict is exact only while it has room for 1 GiB for each second since it was asked,
// see [backend.ErrEvicted]. A login without INFO, or a server that doesn't tell its run id, never decides exactly. On a Redis
// Cluster no key is stored: restarts and failovers that this process has lived through are known, and nothing else.
type Redis struct {
	reader
	pipe    redispipe.Transport
	plans   scripts.Plans
	servers servers
	owned   io.Closer // the client of OpenCluster; nil if the transport closes its own, or the client is the caller's
}

var (
	_ backend.Backend     = (*Redis)(nil)
	_ backend.Peeker      = (*Redis)(nil)
	_ backend.Refunder    = (*Redis)(nil)
	_ backend.Charger     = (*Redis)(nil)
	_ backend.Resetter    = (*Redis)(nil)
	_ backend.Granter     = (*Redis)(nil)
	_ backend.Pinger      = (*Redis)(nil)
	_ backend.Loader      = (*Redis)(nil)
	_ backend.Seeder      = (*Redis)(nil)
	_ backend.Sealer      = (*Redis)(nil)
	_ control.Publisher   = (*Redis)(nil)
	_ control.Clock       = (*Redis)(nil)
	_ control.Heartbeater = (*Redis)(nil)
	_ backend.Doubter     = (*Redis)(nil)
)

// Take implements [backend.Backend].
func (r *Redis) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := req.CheckTake(ctx); err != nil {
		return backend.Result{}, err
	}
	return r.take(ctx, "take", &req, req.Cost, req.Floor)
}

// Seed implements [backend.Seeder].
func (r *Redis) Seed(ctx context.Context, req backend.Request, s state.State) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	_, err := r.take(ctx, "seed", &req, 0, &s)
	return err
}

func (r *Redis) take(ctx context.Context, op string, req *backend.Request, cost int64, floor *state.State) (backend.Result, error) {
	deadline := r.guard.Deadline()
	at, err := r.serverTime(ctx, deadline)
	if err != nil {
		return backend.Result{}, err
	}
	call := redispipe.Call{Script: &scripts.Take, NowMicros: at.micros}
	moment := state.Moment(req.Policy, req.Key, at.micros)
	call.Key, call.Cost, call.Floor, call.Phase = r.name(req), cost, scripts.FloorText(floor, at.micros), moment.Phase
	if cost > 0 && req.Move.Version == 0 && r.pipe.Batches() {
		call.Plan, call.Policy = r.plans.Find(req.Policy.Limits), req.Policy.Name
	} else {
		call.Args = scripts.TakeArgs(req.Policy.Limits, moment, cost, call.Floor, req.Move)
	}
	reply, err := r.eval(ctx, op, deadline, &call, req.Trace)
	if err != nil {
		return backend.Result{}, err
	}
	charged, known, err := scripts.ParseTake(reply.Text)
	if err != nil {
		return backend.Result{}, &backend.Error{Op: op, Node: r.node, Kind: backend.Corrupt, MayHaveCharged: charged, Err: err}
	}
	moment.Micros = reply.NowMicros
	return r.decided(ctx, deadline, req, &reply, backend.Result{
		Verdict: known.Taken(req.Policy, moment, cost, charged), Behind: at.behind, State: known,
	}), nil
}

// decided fills in who decided and when, and lowers the guarantee if that server may have lost counts.
func (r *Redis) decided(ctx context.Context, deadline time.Time, req *backend.Request, reply *redispipe.Reply, result backend.Result) backend.Result {
	result.Now, result.Source = reply.NowMicros, backend.Primary
	server := r.servers.of(reply.Node, deadline)
	result.Lower(r.doubt(ctx, deadline, server, reply.NowMicros, req.Policy))
	r.mark(ctx, deadline, server)
	return result
}

// Charge implements [backend.Charger].
func (r *Redis) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	if err := req.CheckCharge(ctx); err != nil {
		return backend.Result{}, err
	}
	deadline := r.guard.Deadline()
	at, err := r.serverTime(ctx, deadline)
	if err != nil {
		return backend.Result{}, err
	}
	moment := state.Moment(req.Policy, req.Key, at.micros)
	call := redispipe.Call{Script: &scripts.Charge, NowMicros: at.micros}
	call.Key, call.Cost, call.Floor, call.Phase = r.name(&req), req.Cost, scripts.FloorText(req.Floor, at.micros), moment.Phase
	if req.Move.Version == 0 && r.pipe.Batches() {
		call.Plan, call.Policy, call.Mark = r.plans.Find(req.Policy.Limits), req.Policy.Name, &mark
	} else {
		call.Args = scripts.AppendKeyCharge(scripts.ChargeArgs(req.Policy.Limits, moment, req.Move), req.Policy.Limits, moment,
			req.Cost, call.Floor, &mark)
	}
	reply, err := r.eval(ctx, "charge", deadline, &call, req.Trace)
	if err != nil {
		return backend.Result{}, err
	}
	charged, known, err := scripts.ParseTake(reply.Text)
	if err != nil || !charged {
		return backend.Result{}, &backend.Error{
			Op: "charge", Node: r.node, Kind: backend.Corrupt, MayHaveCharged: true, Err: cmp.Or(err, state.ErrCorruptState),
		}
	}
	moment.Micros = reply.NowMicros
	return r.decided(ctx, deadline, &req, &reply, backend.Result{
		Verdict: known.Charged(req.Policy, moment, mark, req.Cost), Behind: at.behind, State: known,
	}), nil
}

// Load implements [backend.Loader]. It is a plain GET and so works on a replica.
func (r *Redis) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	snapshot, node, deadline, err := r.load(ctx, &req)
	if err != nil {
		return backend.Snapshot{}, err
	}
	if server := r.servers.of(node, deadline); server.replica.Load() {
		r.refresh(server, snapshot.Now) // it may have been promoted
	} else {
		snapshot.Lacks = r.doubt(ctx, deadline, server, snapshot.Now, req.Policy)
	}
	return snapshot, nil
}

// Peek implements [backend.Peeker].
func (r *Redis) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := req.CheckTake(ctx); err != nil {
		return backend.Result{}, err
	}
	snapshot, err := r.Load(ctx, req)
	if err != nil {
		return backend.Result{}, err
	}
	return snapshot.Peek(&req), nil
}

// Refund implements [backend.Refunder].
func (r *Redis) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	if amount = receipt.Refundable(amount); amount < 1 {
		return nil
	}
	_, err := r.change(ctx, "refund", &scripts.Refund, &req, func(at state.At) []any {
		return scripts.RefundArgs(at, &receipt, amount, req.Move.GiveBack())
	})
	return err
}

// Reset implements [backend.Resetter].
func (r *Redis) Reset(ctx context.Context, req backend.Request) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	_, err := r.change(ctx, "reset", &scripts.Reset, &req, func(at state.At) []any {
		return scripts.ResetArgs(at, req.Policy, req.Move.GiveBack())
	})
	return err
}

// Grant implements [backend.Granter].
func (r *Redis) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if err := req.CheckGrant(ctx, extra); err != nil {
		return err
	}
	_, err := r.change(ctx, "grant", &scripts.Reset, &req, func(at state.At) []any {
		return scripts.GrantArgs(at, req.Policy, extra, req.Move.GiveBack())
	})
	return err
}

// Seal implements [backend.Sealer].
func (r *Redis) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := req.CheckSeal(ctx); err != nil {
		return backend.Snapshot{}, err
	}
	reply, err := r.change(ctx, "seal", &scripts.Seal, &req, func(at state.At) []any {
		return scripts.SealArgs(at, req.Move)
	})
	if err != nil {
		return backend.Snapshot{}, err
	}
	sealed, err := state.ParseState(reply.Text)
	if err != nil {
		return backend.Snapshot{}, &backend.Error{Op: "seal", Node: r.node, Kind: backend.Corrupt, Err: err}
	}
	return backend.Snapshot{State: sealed, Now: reply.NowMicros, Source: backend.Primary}, nil
}

// NowMicros implements [control.Clock].
func (r *Redis) NowMicros() int64 { return r.nowMicros() }

// Close waits for the calls under way, which end within the timeout, and closes the clients that were made by an Open function.
func (r *Redis) Close() error {
	if !r.guard.Close() {
		return nil
	}
	err := r.pipe.Close()
	if r.owned != nil {
		err = errors.Join(err, r.owned.Close())
	}
	return err
}

// change calls a script other than Take on the request's key.
func (r *Redis) change(ctx context.Context, op string, script *scripts.Script, req *backend.Request,
	args func(state.At) []any) (redispipe.Reply, error) {
	deadline := r.guard.Deadline()
	at, err := r.serverTime(ctx, deadline)
	if err != nil {
		return redispipe.Reply{}, err
	}
	call := redispipe.Call{
		Script: script, Args: args(state.Moment(req.Policy, req.Key, at.micros)), NowMicros: at.micros,
	}
	call.Key = r.name(req)
	return r.eval(ctx, op, deadline, &call, req.Trace)
}

// eval makes a script call and records it in a trace, if there is one.
func (r *Redis) eval(ctx context.Context, op string, deadline time.Time, call *redispipe.Call, t *backend.Trace) (redispipe.Reply, error) {
	if err := r.guard.Begin(); err != nil {
		return redispipe.Reply{}, err
	}
	defer r.guard.End()
	var traced backend.Call
	if t != nil {
		traced = backend.Call{Op: op, Command: "EVALSHA", Start: time.Now()}
	}
	reply, err := r.pipe.Eval(ctx, deadline, *call)
	if err != nil {
		err = r.guard.Wrap(ctx, op, cmp.Or(redispipe.Redirect(err), err))
	}
	if t != nil {
		traced.Script, traced.Shared = cmp.Or(reply.Script, call.Script).Name, reply.Shared
		r.record(t, traced, err)
	}
	return reply, err
}

// Heartbeat implements [control.Heartbeater]; it also reads the server's clock. A cluster is up while one of its primaries is:
// those that were called are asked at once, and a random one.
func (r *Redis) Heartbeat(ctx context.Context) (beat control.Heartbeat, err error) {
	if ctx == nil {
		return control.Heartbeat{}, fielderrors.ErrNilContext
	}
	start := time.Now()
	if r.servers.cluster {
		for range clusterTries {
			if beat.Ahead, err = r.readClock(ctx, r.guard.Deadline()); err == nil || ctx.Err() != nil {
				break
			}
		}
		beat.Primary, beat.RTT = true, time.Since(start)
		return beat, err
	}
	return callguard.Do(ctx, r.guard, "ping", r.guard.Deadline(), func(ctx context.Context) (control.Heartbeat, error) {
		pipe := r.pipe.Node("").Pipeline()
		q := r.askIdentity(ctx, pipe, r.servers.one, true)
		if err := cmp.Or(q.exec(ctx, pipe), q.time.Err(), q.info[0].Err(), q.info[1].Err()); err != nil {
			return control.Heartbeat{}, err
		}
		now := q.time.Val()
		r.clock.observe(now.UnixMicro(), start, false)
		beat := parseInfo(q.info[0].Val() + q.info[1].Val()).heartbeat()
		beat.RTT = time.Since(start)
		beat.Ahead = ahead(now, start, beat.RTT)
		if says, err := q.identity(r.nowMicros()); err == nil { // otherwise the marker can't be read now
			r.servers.observe(r.servers.one, says)
		}
		return beat, nil
	})
}

// clusterTries makes it unlikely that a heartbeat meets only primaries that are down, while others are up.
const clusterTries = 5
