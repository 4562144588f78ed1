package router

import (
	"context"
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluice-go/sluice/backend"
)

// mode says what a call to a node is for, and so what the node's breaker and latency learn from it.
type mode uint8

const (
	write mode = iota // changes counts
	read              // changes no counts
	probe             // is a heartbeat: its latency is not that of a call
)

// errNothingWritten is what a write returns if the node answered and changed nothing, as for a denial. While the node refuses
// writes that doesn't count as a success.
var errNothingWritten = errors.New("nothing was written")

// call makes a call to the node, unless its breaker is open.
//
// Not every call counts for the breaker. A Redis Cluster is many servers: only its heartbeats count, since a server that is
// down must not fail the keys of others. While a primary answers but refuses writes, only writes count: other answers must not
// close the breaker, and reads go on.
func (n *node) call(ctx context.Context, m mode, op string, do func() error) (err error) {
	began := n.latency.clock()
	switch {
	case n.many && m != probe:
		if n.open.Load() {
			return n.openError(op)
		}
		err = n.classify(ctx, op, do())
	case m != write && n.refusesWrites():
		err = n.classify(ctx, op, do())
		if m == probe && (err != nil || !n.refusesWrites()) {
			answer := err
			err = n.throughBreaker(ctx, op, func() error { return answer })
		}
	default:
		err = n.throughBreaker(ctx, op, do)
	}
	wrote := err == nil
	if err == errNothingWritten {
		err = nil
	}
	if err != nil && errors.Is(err, ErrBreakerOpen) { // it was not called
		return err
	}
	if m == write && !n.many {
		n.noteWrite(began, wrote, err)
	}
	if m != probe {
		n.measure(began, err)
	}
	return err
}

func (n *node) throughBreaker(ctx context.Context, op string, do func() error) (err error) {
	_, verdict := n.breaker.Execute(func() (struct{}, error) {
		switch err = do(); {
		case err == nil, err == errNothingWritten && !n.writesBlocked():
			return struct{}{}, nil // the node answered
		case err == errNothingWritten:
			return struct{}{}, err
		}
		if err = n.classify(ctx, op, err); kindOf(err) != backend.Unavailable && n.writesBlocked() {
			return struct{}{}, errNothingWritten
		}
		return struct{}{}, err
	})
	if verdict == gobreaker.ErrOpenState || verdict == gobreaker.ErrTooManyRequests {
		return n.openError(op)
	}
	return err
}

func (n *node) openError(op string) error {
	return &backend.Error{Op: op, Node: n.title(), Kind: backend.Unavailable, Err: ErrBreakerOpen}
}

// writeRefusedFor is how long a failed write means that the node refuses writes: the breaker has forgotten what is older.
const writeRefusedFor = failureWindow

// refusesWrites reports whether a primary answers but takes no writes, as far as is known: it has become a replica, has no memory
// or too few replicas, or can't save.
func (n *node) refusesWrites() bool {
	if !n.watched || n.unreachable.Load() || !n.is(RolePrimary) {
		return false
	}
	if n.demoted() {
		return true
	}
	refused := n.writeRefusedAt.Load()
	return refused != 0 && n.latency.clock()-refused < int64(writeRefusedFor)
}

// writesBlocked reports whether the breaker keeps writes from a node that refuses them.
func (n *node) writesBlocked() bool { return n.open.Load() && n.refusesWrites() }

func (n *node) noteWrite(began int64, wrote bool, err error) {
	switch {
	case wrote && n.writeRefusedAt.Load() != 0: // else the cache line stays shared
		n.writeRefusedAt.Store(0)
	case kindOf(err) == backend.Unavailable:
		n.writeRefusedAt.Store(max(began, 1))
	}
}

// measure notes how long a call took. If the node was slow or unavailable, a heartbeat is sent soon: calls with deadlines
// shorter than the node's timeout don't count for the breaker, heartbeats do.
func (n *node) measure(began int64, err error) {
	ended := n.latency.clock()
	took := time.Duration(ended - began)
	kind := kindOf(err)
	if kind != 0 && kind != backend.Interrupted {
		took = max(took, failureCost)
	}
	n.latency.observe(took, ended)
	if kind == backend.Unavailable || errors.Is(err, context.DeadlineExceeded) {
		n.probeSoon()
	}
}

// Contexts that end before the caller's.

// callerKey is the key of the caller's context in one that [bounded] has shortened.
type callerKey struct{}

// bounded returns a context that ends after a timeout, if that is not 0. If the caller's deadline is later, the context holds the
// caller's, too.
func bounded(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	inner := ctx
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > timeout {
		inner = context.WithValue(ctx, callerKey{}, ctx)
	}
	return context.WithTimeout(inner, timeout)
}

// classify types an error of a call before it counts for the breaker, and reports one that only a person can fix.
//
// The end of a context of [bounded] is the node's fault. With heartbeats the error stays as it is: they find a node that doesn't
// answer.
func (n *node) classify(ctx context.Context, op string, err error) error {
	if err == nil || err == errNothingWritten {
		return err
	}
	if caller, ok := ctx.Value(callerKey{}).(context.Context); ok && !n.watched {
		err = n.asTimeout(caller, op, err)
	}
	if kindOf(err) == backend.Misconfigured && n.misconfigured.due() {
		n.emit(Event{Kind: Misconfigured, Err: err})
	}
	return err
}

// asTimeout types an error which says that the caller's context has ended, if it has not: then the node was too slow.
func (n *node) asTimeout(caller context.Context, op string, err error) error {
	if kindOf(err) != backend.Interrupted || caller.Err() != nil {
		return err
	}
	if typed, ok := errors.AsType[*backend.Error](err); ok {
		late := *typed
		late.Kind = backend.Unavailable
		return &late
	}
	return &backend.Error{Op: op, Node: n.title(), Kind: backend.Unavailable, Err: err}
}
