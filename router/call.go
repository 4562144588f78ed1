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
	write mode = iota // changes counts; measured
	read              // reads counts; measured
	meta              // is not about counts
	probe             // is a heartbeat
)

// errNothingWritten is what a write returns if it had an answer and changed nothing, such as a denial. Where only writes
// count the breaker doesn't hear of it.
var errNothingWritten = errors.New("nothing was written")

// call makes a call to the node, unless its breaker is open.
//
// Two kinds of nodes keep calls from their breaker. A Redis Cluster is many servers: only its heartbeats count, since keys of
// one server that is down must not fail the others' keys. And while a primary refuses writes its breaker is about writes: no other
// answer closes it, and reads go on.
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
	if m == write || m == read {
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
	return refused != 0 && n.latency.clock()-refused < int64(breakerWindow) // the breaker has forgotten what is older
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

// measure takes note of how long a call took. If the node was slow or did not answer a heartbeat is sent soon: callers whose deadlines
// are shorter than the node's timeout tell the breaker nothing, heartbeats do.
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

// callerKey is under what a context that the router has shortened has the caller's.
type callerKey struct{}

// bounded returns a context that ends after a timeout, if that is not 0. Where the caller's allows more it knows that, too: what a node has
// too little time for is the node's fault then.
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

// share returns a context for one of several parts of the time that is left.
func share(ctx context.Context, parts int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(parts))
}

// classify types an error of a call, before the breaker hears of it, and reports one that only a person can fix.
//
// The end of a context of [bounded] is the node's fault. Where there are heartbeats they find a node that hangs, and the error stays as
// it is.
func (n *node) classify(ctx context.Context, op string, err error) error {
	if err == nil || err == errNothingWritten {
		return err
	}
	if caller, ok := ctx.Value(callerKey{}).(context.Context); ok && !n.watched {
		err = n.asTimeout(caller, op, err)
	}
	if kindOf(err) == backend.Misconfigured {
		const pause = 10 * time.Second
		now, last := time.Now().UnixNano(), n.misconfiguredAt.Load()
		if now-last >= int64(pause) && n.misconfiguredAt.CompareAndSwap(last, now) {
			n.emit(Event{Kind: Misconfigured, Err: err})
		}
	}
	return err
}

// asTimeout types an error that a node takes for the end of the caller's context while that goes on: the node was too slow.
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
