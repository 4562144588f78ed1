// Package callguard bounds the calls of a backend to its server: each call ends by a deadline and by its caller's context,
// its error is wrapped, and Close waits for the calls under way.
package callguard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/deadline"
)

// Config configures a Guard.
type Config struct {
	Timeout time.Duration // of a call, with all that it asks the server
	Closed  error         // the error of calls after Close

	// Wrap makes the error of a call into that of the backend. It is not called with nil.
	Wrap func(ctx context.Context, op string, err error) error

	MaxCalls       int  // how many calls may be under way; more wait. 0: any number
	IgnoresContext bool // a call of the client may outlast its context
	KeepsConn      bool // a call that was sent goes on when its caller has left, because interrupting it costs the connection
}

// Guard bounds calls.
type Guard struct {
	cfg   Config
	slots chan struct{} // one for each call that may be under way; nil for any number

	mu      sync.Mutex // guards closed and the start of calls
	closed  bool
	running sync.WaitGroup
}

// New returns a Guard.
func New(cfg Config) *Guard {
	g := &Guard{cfg: cfg}
	if cfg.MaxCalls > 0 {
		g.slots = make(chan struct{}, cfg.MaxCalls)
	}
	return g
}

// Timeout is how long a call may take.
func (g *Guard) Timeout() time.Duration { return g.cfg.Timeout }

// Deadline is the end of a call that begins now.
func (g *Guard) Deadline() time.Time { return time.Now().Add(g.cfg.Timeout) }

// Do runs one call under the caller's context and a deadline, and wraps its error. Clients honour deadlines at best, and
// miss a cancellation while they wait for a reply. So a caller who can cancel waits here for a goroutine that makes the
// call; a call that its caller abandons ends soon after the deadline.
func Do[T any](ctx context.Context, g *Guard, op string, end time.Time,
	call func(context.Context) (T, error)) (T, error) {
	var none T
	if err := g.Begin(); err != nil {
		return none, err
	}
	own := ctx
	if g.cfg.KeepsConn && ctx.Done() != nil {
		own = context.WithoutCancel(ctx)
	}
	limited, cancel := context.WithDeadline(own, end)
	if err := g.takeSlot(ctx, limited); err != nil {
		defer g.End()
		defer cancel()
		return none, g.Wrap(ctx, op, Unsent(err))
	}
	if ctx.Done() == nil && !g.cfg.IgnoresContext {
		defer g.End()
		defer cancel()
		reply, err := inSlot(limited, g, call)
		return reply, g.Wrap(ctx, op, err)
	}
	type outcome struct {
		reply T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer g.End()
		defer cancel()
		reply, err := inSlot(limited, g, call)
		done <- outcome{reply, err}
	}()
	select {
	case o := <-done:
		return o.reply, g.Wrap(ctx, op, o.err)
	case <-ctx.Done():
	case <-limited.Done():
	}
	select { // the reply may have come in the same moment, and the goroutine has cancelled
	case o := <-done:
		return o.reply, g.Wrap(ctx, op, o.err)
	default:
		if err := ctx.Err(); err != nil {
			return none, g.Wrap(ctx, op, err)
		}
		return none, g.Wrap(ctx, op, limited.Err())
	}
}

// inSlot makes a call and frees its slot.
func inSlot[T any](ctx context.Context, g *Guard, call func(context.Context) (T, error)) (reply T, err error) {
	defer g.freeSlot()
	defer Recover(&err)
	return call(ctx)
}

// Wrap wraps the error of a call; nil stays nil.
func (g *Guard) Wrap(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	return g.cfg.Wrap(ctx, op, err)
}

// Begin counts a call that isn't made by Do. Unless it fails, End must follow.
func (g *Guard) Begin() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return g.cfg.Closed
	}
	g.running.Add(1)
	return nil
}

// End ends a call.
func (g *Guard) End() { g.running.Done() }

// takeSlot waits until the call may be sent. From then on a call that keeps its connection goes on without its caller.
func (g *Guard) takeSlot(ctx, limited context.Context) error {
	if g.slots != nil {
		select {
		case g.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-limited.Done():
			return limited.Err()
		}
	}
	if err := deadline.Ended(ctx); g.cfg.KeepsConn && err != nil {
		g.freeSlot()
		return err
	}
	return nil
}

func (g *Guard) freeSlot() {
	if g.slots != nil {
		<-g.slots
	}
}

// Close refuses further calls and waits for those under way. It reports whether it was the first.
func (g *Guard) Close() bool {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	g.mu.Unlock()
	if first {
		g.running.Wait()
	}
	return first
}

// Unsent marks the error of a call that was not sent, or not so far that anything was written.
func Unsent(err error) error { return unsent{err} }

// IsUnsent reports whether an error is marked so.
func IsUnsent(err error) bool {
	_, marked := errors.AsType[unsent](err)
	return marked
}

type unsent struct{ error }

func (e unsent) Unwrap() error { return e.error }
