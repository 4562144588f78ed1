// Package backend is the contract of what a Throttler counts in, a [Backend]. memory.Memory, redisbackend.Redis and
// memcached.Memcached store counts; others, such as dual.Dual, hold backends and are backends, so they compose freely. Every
// implementation passes the conformance suite, package backendtest.
//
//	counts, err := redisbackend.Open(&redis.Options{Addr: "localhost:6379"}, redisbackend.Config{})
//
// An application gives a backend to throttler.New and calls the Throttler; the methods here are for the Throttler and for
// backends that hold backends. Apart from Take and Close everything is optional: [Peeker], [Refunder], [Charger], [Resetter],
// [Granter], [Pinger], [Loader] and [Seeder], [Sealer], [Doubter]; package control has what a router wants of a node. For each
// there is a function, such as [Refund], that calls it if the backend has it. A type assertion tells whether it has, for
// callers that have to know before they charge. A backend that holds others may have an operation and still return
// [ErrUnsupported], if one of those lacks it.
//
// # Promises
//
// A take is sent at most once: no implementation retries one. If the outcome is unknown the error says so
// ([Error.MayHaveCharged]). Bad input is rejected before any I/O, with a [*limit.Error]. Implementations are safe for
// concurrent use, and return by the context's end or their own timeout, whichever is first.
//
// # What it does not promise
//
// A server that loses its memory loses counts: only the floor of a later request ([Request.Floor]) restores what its caller
// knows, and decisions are Bounded until the windows are over ([ErrCountsLost]). No backend decides without its server: that
// is the Throttler's failure policy. A Throttler leaves its backend open; dual.Dual and lease.Lease close what they hold.
package backend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Backend decides and counts.
type Backend interface {
	// Take checks req.Cost against every limit of req.Policy and, if all admit it, charges all of them, in one
	// atomic step. A denial is a Result; an error means that there is no verdict.
	Take(ctx context.Context, req Request) (Result, error)

	// Close releases what the backend holds. Calls made after it fail with ErrClosed; a second Close does nothing.
	Close() error
}

// Request is a request to a backend. It is a value; backends keep nothing of it after the call.
type Request struct {
	Key    string        // the key that is limited; any bytes, not empty
	Policy *limit.Policy // valid, and not changed while in use
	Cost   int64         // from 1 to what every limit can hold, of a Charge to limit.MaxCount; ignored by operations that don't charge

	// Floor is the state that the caller knows, from an earlier Result or another place. A take merges it into the stored
	// state before it decides. It may be nil.
	Floor *state.State

	// Move is the handover that the request acts under, if the key may be moving. An operation that charges or refunds may
	// then fail with state.ErrFloorWanted or a *state.MovedError: nothing was changed, and the caller must act on the error.
	// A place that the key has left returns a *state.MovedError even if Move is zero.
	Move state.Move

	// Trace records where the request is sent. It may be nil. Only the caller's goroutine uses it.
	Trace *Trace
}

// Result is a verdict with its provenance.
type Result struct {
	state.Verdict

	// Now is the time of the decision by the clock that decided, in Unix microseconds.
	Now int64

	// Behind is by how much that clock may have been ahead of Now, because it is read over a network. Now is never
	// ahead of it. Zero if the clock is local.
	Behind time.Duration

	// State is the key's state after the decision, for use as the floor of a later take. It is empty if the backend can't
	// lose state.
	State state.State

	Source    Source
	Guarantee Guarantee
	Cause     error // why the guarantee is not Exact; nil otherwise
}

// Source says where a decision was made.
type Source uint8

const (
	Unknown   Source = iota // not decided
	Local                   // this process's memory
	Primary                 // the primary of the key's group
	Replica                 // a replica: it may deny or peek, it never admits
	Fallback                // the failure policy, because the backend gave no verdict
	Leased                  // this process, from a batch that was charged in advance: see lease.Lease
	LocalDeny               // this process, by the last known state of the key: see lease.Lease
	Listed                  // an allow or deny list: no backend was called
	OnCredit                // this process, before it is charged: see lease.Config.Slack
)

func (s Source) String() string {
	names := [...]string{"unknown", "local", "primary", "replica", "fallback", "leased", "local_deny", "listed", "on_credit"}
	if int(s) < len(names) {
		return names[s]
	}
	return "source?"
}

// Guarantee says how far a decision can be off.
type Guarantee uint8

const (
	// Exact: no window holds more than its Max because of this decision.
	Exact Guarantee = iota
	// Bounded: more than Max may have been admitted, by no more than a stated bound.
	Bounded
)

func (g Guarantee) String() string {
	names := [...]string{"exact", "bounded"}
	if int(g) < len(names) {
		return names[g]
	}
	return "guarantee?"
}

// Peeker returns the verdict that a take would give, without charging, with what remains now. It may read a copy that lags.
type Peeker interface {
	Peek(ctx context.Context, req Request) (Result, error)
}

// Refunder refunds up to amount of the charge that the receipt of an admitted take names. Key and Policy of
// req are those of the take. A refund for a window that is over changes nothing. A receipt must be used once only.
//
// It may be used again after an error which means that nothing was refunded: an [*Error] without MayHaveCharged, and
// [ErrClosed], [ErrUnsupported], state.ErrFloorWanted, a [*state.MovedError], a [*limit.Error] and the context's own errors if no
// [*Error] wraps them. The latter are for failures before anything is sent, and for places that reject the request: if the
// refund may have run, the error must be an [*Error].
type Refunder interface {
	Refund(ctx context.Context, req Request, receipt state.Receipt, amount int64) error
}

// Charger counts req.Cost, which has been spent already, whether or not a limit has room: used may exceed Max, nothing remains
// then, and takes are denied until the windows are over. The mark says where it counts, for each limit: what is over there by the
// server's time changes nothing. The zero mark means now. The result is allowed and says what remains; its receipt refunds the
// charge. Floor and Move bind it as they do a take, and like a take it is sent at most once.
type Charger interface {
	Charge(ctx context.Context, req Request, mark state.Mark) (Result, error)
}

// Resetter refunds everything that is charged to a key.
type Resetter interface {
	Reset(ctx context.Context, req Request) error
}

// Granter refunds up to extra of what is charged to a key, under each limit of the policy, without a receipt: see
// state.State.Grant. Extra is from 1 to limit.MaxCount.
type Granter interface {
	Grant(ctx context.Context, req Request, extra int64) error
}

// Pinger checks that a backend answers.
type Pinger interface {
	Ping(ctx context.Context) error
}

// Loader returns the stored state of a key, which may include expired entries.
type Loader interface {
	Load(ctx context.Context, req Request) (Snapshot, error)
}

// Seeder merges a state that the caller knows into the stored one, without charging.
type Seeder interface {
	Seed(ctx context.Context, req Request, st state.State) error
}

// Sealer freezes a key's state under req.Move, because the key is handed over, and returns the frozen state. A state that is
// already sealed under the same version is returned unchanged. A [*state.MovedError] means that the key was adopted here, or
// sealed, under a newer version.
type Sealer interface {
	Seal(ctx context.Context, req Request) (Snapshot, error)
}

// Snapshot is a loaded state, with the time of the load by the server's clock, in Unix microseconds.
type Snapshot struct {
	State  state.State
	Now    int64
	Source Source

	// Lacks says why counts may be missing: it has ErrNotHandedOver in its chain if they are those of a place that the key
	// comes from, ErrCountsLost or ErrEvicted if the server may have lost some. Nil: none are, as far as is known.
	Lacks error
}

// Peek is the verdict that the snapshot gives on a request, at its own moment. What a replica would allow is Bounded;
// what it denies is true: in a window counts only grow. It is Bounded, too, if counts are lacking, or if the key has moved.
func (s *Snapshot) Peek(req *Request) Result {
	r := Result{
		Verdict: s.State.Peek(req.Policy, state.Moment(req.Policy, req.Key, s.Now), req.Cost),
		Now:     s.Now, State: s.State, Source: s.Source,
	}
	if r.Allowed && s.Source == Replica {
		r.Lower(ErrReplicaMayLag)
	}
	r.Lower(s.Moved())
	r.Lower(s.Lacks)
	return r
}

// Moved returns a [*state.MovedError] if the place has handed the key over, so that the state is out of date; nil otherwise.
func (s *Snapshot) Moved() error { return s.State.Moved(state.At{Micros: s.Now}) }

// Doubter is a backend that knows whether it may have lost counts.
type Doubter interface {
	// Doubt says why counts of the request's key may be missing, although their windows are not over; nil if nothing is
	// known of it. It makes no call.
	Doubt(req Request) error
}

// Lower makes a result say that it is not exact, for a reason; nil changes nothing.
func (r *Result) Lower(cause error) {
	switch {
	case cause == nil:
		return
	case r.Cause != nil:
		cause = errors.Join(cause, r.Cause)
	}
	r.Guarantee, r.Cause = max(r.Guarantee, Bounded), cause
}

// CheckTake is Check for a take or a peek: it refuses a bad cost, too.
func (r *Request) CheckTake(ctx context.Context) error {
	if err := r.Check(ctx); err != nil {
		return err
	}
	return r.Policy.CheckCost(r.Cost)
}

// CheckCharge is Check for a charge: it refuses a cost that is not from 1 to limit.MaxCount, too.
func (r *Request) CheckCharge(ctx context.Context) error {
	return r.checkAmount(ctx, "cost", r.Cost)
}

// CheckGrant is Check for a grant: it refuses a bad extra, too.
func (r *Request) CheckGrant(ctx context.Context, extra int64) error {
	return r.checkAmount(ctx, "extra", extra)
}

func (r *Request) checkAmount(ctx context.Context, field string, amount int64) error {
	if err := r.Check(ctx); err != nil {
		return err
	}
	if amount < 1 || amount > limit.MaxCount {
		return &limit.Error{Field: field, Value: strconv.FormatInt(amount, 10), Bound: fmt.Sprintf("must be from 1 to %d", limit.MaxCount)}
	}
	return nil
}

// CheckSeal is Check for a seal: it refuses a request without a version.
func (r *Request) CheckSeal(ctx context.Context) error {
	if err := r.Check(ctx); err != nil {
		return err
	}
	if r.Move.Version == 0 {
		return &limit.Error{Field: "move: version", Value: "0", Bound: "must be at least 1 for a seal"}
	}
	return nil
}

// Check refuses a bad request, with a [*limit.Error], before anything is sent or charged. A context that has ended is
// refused with its own error. Every backend calls it first.
func (r *Request) Check(ctx context.Context) error {
	switch {
	case ctx == nil:
		return fielderrors.ErrNilContext
	case r.Key == "":
		return &limit.Error{Field: "key", Value: "empty", Bound: "must not be empty"}
	case r.Policy == nil || len(r.Policy.Limits) == 0:
		return &limit.Error{Field: "policy", Value: "none", Bound: "must have a limit"}
	}
	if r.Move != (state.Move{}) {
		if err := r.Move.Validate(); err != nil {
			return err
		}
	}
	return ctx.Err()
}
