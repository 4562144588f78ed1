package throttler

import (
	"iter"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// Decision is the answer to one request.
type Decision struct {
	// Allowed is whether the request may go on. It has then been charged, except by Peek and for a key on an allow list.
	Allowed bool

	// Limit is the binding limit: of a denial the limit that lets the request pass last, of an admission the one that has the
	// least left; a limit.Counter only if the policy has nothing else. It is zero for keys on a list, and the policy's first
	// limit in a denial that no limit decided.
	Limit limit.Limit

	// Remaining is what is left of the binding limit after this request; never negative. A key on an allow list has
	// limit.MaxCount left.
	Remaining int64

	// ResetAt is when the binding limit has its full quota back. Within a window it is the same from every source.
	ResetAt time.Time

	// At is the time of the decision, by the clock of the server that decided. The time until the reset is ResetAt.Sub(At),
	// whatever this host's clock says.
	At time.Time

	// RetryAfter is the time until the same request can pass if there are no others; 0 if it was allowed, limit.Never if its
	// cost can never fit or its key is on a deny list.
	RetryAfter time.Duration

	// Source says who decided.
	Source Source

	// Guarantee says how far the decision can be off.
	Guarantee Guarantee

	// Cause is why the guarantee is not Exact; nil otherwise. In an outage, and if Source is Unknown, it is the backend's error.
	Cause error

	verdict state.Verdict
}

// All yields the status of every limit of the policy, in the policy's order. It yields nothing if no limit decided, as in a
// denial under FailClosed, by a list or because of contention.
func (d Decision) All() iter.Seq[limit.Status] { return d.verdict.All() }

// Source says who decided; see package backend.
type Source = backend.Source

// The sources of decisions.
const (
	Unknown  = backend.Unknown  // contention: the request was denied
	Local    = backend.Local    // this process's memory
	Primary  = backend.Primary  // the primary of the key's group
	Replica  = backend.Replica  // a replica: it may deny or show, it never admits
	Fallback = backend.Fallback // the failure policy, because the backend gave no verdict

	Leased    = backend.Leased    // this process, from a batch that was charged in advance
	LocalDeny = backend.LocalDeny // this process, because it knows that the key is exhausted

	Listed   = backend.Listed   // the allow or deny list of the Throttler: no limit was asked and nothing was charged
	OnCredit = backend.OnCredit // this process, before it is charged
)

// Guarantee says how far a decision can be off; see package backend.
type Guarantee = backend.Guarantee

// The guarantees of decisions.
const (
	Exact   = backend.Exact   // no window holds more than its Max because of this decision
	Bounded = backend.Bounded // by no more than a stated bound
)

// NewDecision returns the decision that a backend's result stands for, as package insight makes them of shadow policies.
func NewDecision(r *backend.Result) (d Decision) {
	d.fill(r)
	return d
}

// fill sets an empty decision from a backend's result, in place: a Decision is large.
func (d *Decision) fill(r *backend.Result) {
	if l, remaining, resetAt, retryAfter := r.Bound(); l != nil {
		d.Limit, d.Remaining, d.ResetAt, d.RetryAfter = *l, remaining, resetAt, retryAfter
	}
	d.Allowed = r.Allowed
	d.At = time.UnixMicro(r.Now)
	d.Source, d.Guarantee, d.Cause = r.Source, r.Guarantee, r.Cause
	d.verdict = r.Verdict
}
