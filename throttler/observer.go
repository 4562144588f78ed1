package throttler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// Observer is called around every operation of a Throttler, on the caller's goroutine: it must be fast and safe for concurrent
// use. What AllowAll gives back, and Settle settles of several keys, has goroutines of its own, in which a panic of an
// Observer ends the process; AllowAll may have returned by then. Observers makes one of several. An Observer may also be a
// [CommitObserver] and an [OutageObserver]. Package otelthrottle has one on OpenTelemetry, package insight those that count,
// notify and try limits.
//
// Observers also see rejected input, except a nil context. AllowAll and ReserveAll make an Event for each key; for a request
// that they refuse before any charge, one for a single key. An ErrUnsupported makes none.
//
// The manner is that of the tracers of github.com/jackc/pgx.
type Observer interface {
	// Start is called before the operation, with the first five fields of the Event set. The context that it returns is used
	// for the rest of the operation and passed to End. Setting Trace makes the backends record the calls of a take, which
	// allocates.
	Start(ctx context.Context, e *Event) context.Context

	// End is called after each Start, with all fields set.
	End(ctx context.Context, e *Event)
}

// CommitObserver is an Observer that is called when the backend has admitted a request and the charge stands: of several
// keys, once all have admitted. It is not called for keys on lists and for what the failure policy admits.
type CommitObserver interface {
	Observer

	// Commit is called with the context that Start returned. It returns what to call when some of the charge is given back. If
	// nil, nothing is called.
	Commit(ctx context.Context, e *Event) Settler
}

// Settler follows a charge that can be settled.
type Settler interface {
	// GivenBack is called after amount of the charge has been given back.
	GivenBack(amount int64)

	// Overrun is called after amount has been charged on top of the charge.
	Overrun(amount int64)
}

// Event is one operation of a Throttler. It is valid during the call only, and so are its policies, which must not be changed.
type Event struct {
	Op     Operation
	Key    string        // personal data, as a rule: don't export it, and copy it before keeping it
	Policy *limit.Policy // of the key
	Shadow *limit.Policy // of the policy, by Config.Policies; nil if it has none. Of OpShadow: the policy that decided
	// Cost is that of the request; of AllowUpTo, in End and Commit, what it took or last tried; of OpRefund and OpGrant what is
	// given back; of OpCharge what is charged on top.
	Cost int64

	Decision Decision      // of OpTake, OpPeek and OpShadow
	Err      error         // nil after a verdict, including a denial
	Duration time.Duration // of the whole call, including PolicyFor

	// Trace records the calls to servers of this operation, if Start set it.
	Trace *backend.Trace

	// Refundable is whether the charge may be given back after Commit. It is set for Commit.
	Refundable bool

	start time.Duration   // since Throttler.born
	ctx   context.Context // that Start returned
}

// Operation is what a Throttler does.
type Operation uint8

// The operations.
const (
	OpTake   Operation = iota // a request: Allow, Reserve and the like
	OpPeek                    // Peek and PeekN
	OpUsage                   // Usage
	OpReset                   // Reset
	OpGrant                   // Grant
	OpRefund                  // what Settle, Cancel and a denied AllowAll give back
	OpCharge                  // what Settle charges above what was reserved
	OpShadow                  // what a shadow policy decided about a request, in the background; see package insight
)

func (o Operation) String() string {
	names := [...]string{"take", "peek", "usage", "reset", "grant", "refund", "charge", "shadow"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("operation(%d)", uint8(o))
}

// Observers makes one Observer of several, which are called in this order. Nil ones are left out; of none the result is nil.
func Observers(all ...Observer) Observer {
	var c chain
	for _, o := range all {
		if inner, nested := o.(chain); nested {
			c = append(c, inner...)
		} else if o != nil {
			c = append(c, o)
		}
	}
	switch len(c) {
	case 0:
		return nil
	case 1:
		return c[0]
	}
	return c
}

type chain []Observer

func (c chain) Start(ctx context.Context, e *Event) context.Context {
	for _, o := range c {
		ctx = o.Start(ctx, e)
	}
	return ctx
}

func (c chain) End(ctx context.Context, e *Event) {
	for _, o := range c {
		o.End(ctx, e)
	}
}

func (c chain) Commit(ctx context.Context, e *Event) Settler {
	var all settlers
	for _, o := range c {
		if o, ok := o.(CommitObserver); ok {
			if s := o.Commit(ctx, e); s != nil {
				all = append(all, s)
			}
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

func (c chain) Outage(ctx context.Context, outage Outage) {
	for _, o := range c {
		if o, ok := o.(OutageObserver); ok {
			o.Outage(ctx, outage)
		}
	}
}

type settlers []Settler

func (s settlers) GivenBack(amount int64) {
	for _, one := range s {
		one.GivenBack(amount)
	}
}

func (s settlers) Overrun(amount int64) {
	for _, one := range s {
		one.Overrun(amount)
	}
}

var events = sync.Pool{New: func() any { return new(Event) }}

// now is the time since the Throttler was made: reading the monotonic clock alone takes half as long as time.Now.
func (t *Throttler) now() time.Duration { return time.Since(t.born) }

// startEvent calls the observer for an operation that began at start.
func (t *Throttler) startEvent(
	ctx context.Context, op Operation, start time.Duration, view PolicyView, req *backend.Request,
) (context.Context, *Event) {
	e := events.Get().(*Event)
	e.Op, e.Key, e.Policy, e.Cost, e.start = op, req.Key, req.Policy, req.Cost, start
	if view != nil {
		e.Shadow = view.Shadow(req.Policy)
	}
	e.ctx = t.observer.Start(ctx, e)
	req.Trace = e.Trace
	return e.ctx, e
}

func (t *Throttler) endEvent(ctx context.Context, e *Event, err error) {
	e.Err, e.Duration = err, t.now()-e.start
	t.observer.End(ctx, e)
}

// commit calls the observer if the request was admitted by the backend, and frees the event, which may be nil.
func (t *Throttler) commit(e *Event, refundable bool) (s Settler) {
	if e == nil {
		return nil
	}
	if o := t.commitObserver; o != nil && e.Decision.Allowed && e.Decision.Source != Listed && e.Decision.Source != Fallback {
		e.Refundable = refundable
		s = o.Commit(e.ctx, e)
	}
	e.free()
	return s
}

func (e *Event) free() {
	if e != nil {
		*e = Event{}
		events.Put(e)
	}
}
