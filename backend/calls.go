package backend

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-go/sluice/limit/state"
)

// calls is what backends that talk to a server have in common: every call is bounded and its error typed, and Close
// waits for those under way.
type calls struct {
	system  string // what kind of server it is
	node    string // its address, for errors
	timeout time.Duration
	deaf    bool          // whether a call of the client may outlast its context
	keeps   bool          // whether a call that has a slot goes on when its caller has left: to cut it off would cost the connection
	slots   chan struct{} // one for each call that may be under way; nil for any number

	// explain tells what an error of the client means, whether what was asked may have been done, and the error to
	// show: one without keys in it.
	explain func(error) (kind Kind, mayHaveRun bool, shown error)

	mu      sync.Mutex // guards closed and the start of calls
	closed  bool
	running sync.WaitGroup
}

const opTake, opRefund, opReset = "take", "refund", "reset"

// charges reports whether an operation counts something, or gives it back.
func charges(op string) bool { return op == opTake || op == opRefund || op == opReset }

// deadline is the end of a call that begins now, with all that it has to ask the server.
func (c *calls) deadline() time.Time { return time.Now().Add(c.timeout) }

// call runs do within the caller's context and the deadline, and types its error. Clients honour deadlines at
// best, not a cancellation while they wait for a reply; so a caller who can cancel waits here, and what it abandons ends
// soon after the deadline.
func call[T any](ctx context.Context, c *calls, op string, deadline time.Time,
	do func(context.Context) (T, error)) (T, error) {
	var none T
	if err := c.begin(ctx); err != nil {
		return none, err
	}
	own := ctx
	if c.keeps && ctx.Done() != nil {
		own = context.WithoutCancel(ctx)
	}
	limited, cancel := context.WithDeadline(own, deadline)
	if err := c.takeSlot(ctx, limited); err != nil {
		defer c.running.Done()
		defer cancel()
		return none, c.typed(ctx, op, unsent{err})
	}
	if ctx.Done() == nil && !c.deaf {
		defer c.running.Done()
		defer cancel()
		reply, err := do(limited)
		c.freeSlot()
		return reply, c.typed(ctx, op, err)
	}
	type outcome struct {
		reply T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer c.running.Done()
		defer cancel()
		reply, err := do(limited)
		c.freeSlot()
		done <- outcome{reply, err}
	}()
	select {
	case o := <-done:
		return o.reply, c.typed(ctx, op, o.err)
	case <-ctx.Done():
	case <-limited.Done():
	}
	select { // the reply may have come in the same moment, and the goroutine has cancelled
	case o := <-done:
		return o.reply, c.typed(ctx, op, o.err)
	default:
		if err := ctx.Err(); err != nil {
			return none, c.typed(ctx, op, err)
		}
		return none, c.typed(ctx, op, limited.Err())
	}
}

// traced is call, and tells the trace of it.
func traced[T any](ctx context.Context, c *calls, t *Trace, op, command string, deadline time.Time,
	do func(context.Context) (T, error)) (T, error) {
	if t == nil {
		return call(ctx, c, op, deadline, do)
	}
	made := Call{System: c.system, Node: c.node, Op: op, Command: command, Start: time.Now()}
	reply, err := call(ctx, c, op, deadline, do)
	t.call(&made, err)
	return reply, err
}

// begin counts a call, which must end with running.Done, unless it is refused.
func (c *calls) begin(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.running.Add(1)
	return nil
}

// takeSlot waits until the call may be sent. From then on a call that keeps its connection goes on without its caller.
func (c *calls) takeSlot(ctx, limited context.Context) error {
	if c.slots != nil {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-limited.Done():
			return limited.Err()
		}
	}
	if err := ended(ctx); c.keeps && err != nil {
		c.freeSlot()
		return err
	}
	return nil
}

func (c *calls) freeSlot() {
	if c.slots != nil {
		<-c.slots
	}
}

// typed makes an [Error] of what a client returned, if it isn't one. Nil stays nil, and the refusal of a request's Move
// stays that.
func (c *calls) typed(ctx context.Context, op string, err error) error {
	if err == nil || state.IsRedirect(err) {
		return err
	}
	if made, already := errors.AsType[*Error](err); already {
		return made
	}
	kind, mayHaveRun, err := c.explain(err)
	if end := ended(ctx); kind == Unavailable && end != nil {
		kind = Interrupted
		if !errors.Is(err, end) {
			err = errors.Join(end, err)
		}
	}
	return &Error{Op: op, Node: c.node, Kind: kind, MayHaveCharged: charges(op) && mayHaveRun, Err: err}
}

// ended is ctx.Err(), and does not miss a deadline that is over: the context's timer may fire after that of a
// connection which was given the same deadline.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if deadline, ok := ctx.Deadline(); err == nil && ok && !time.Now().Before(deadline) {
		err = context.DeadlineExceeded
	}
	return err
}

// close refuses further calls and waits for those under way. It reports whether it was the first.
func (c *calls) close() bool {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if first {
		c.running.Wait()
	}
	return first
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unsent is an error of a call that was not sent, or not so far that anything was written.
type unsent struct{ error }

func (e unsent) Unwrap() error { return e.error }
