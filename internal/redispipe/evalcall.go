package redispipe

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/scripts"
)

// evalCall is a Call on its way.
type evalCall struct {
	Call
	isolation *isolation // of the policy, where the call has a plan
	loads     bool       // the server doesn't know the script
	unshared  bool       // no other call may be in its script call

	since    time.Time       // when the call began
	deadline time.Time       // of its caller
	until    time.Time       // how long the connection waits for the reply, also when the caller has left
	reply    string          // empty if it is no text
	script   *scripts.Script // that brought the reply
	shared   int             // how many calls were in the script call that brought the reply
	err      error

	awaited bool          // its caller waits for done; otherwise it makes the round trip itself
	done    chan struct{} // holds one
	state   atomic.Uint32
	holders atomic.Int32 // its caller, and the queue or connection that has it; the last of them frees it
	pool    *sync.Pool   // to which it goes back
}

// The states of an evalCall that is awaited: see the package's comment. Whoever ends it, other than its caller, says so by done.
const (
	waiting uint32 = iota
	sent
	answered
	abandoned
	detached
)

// newEvalCall returns an evalCall that only the caller holds. Each transport has a pool: a common one would hand on channels
// that were made in a bubble of testing/synctest, which nothing outside may use.
func newEvalCall(pool *sync.Pool, c Call) *evalCall {
	e, free := pool.Get().(*evalCall)
	if !free {
		e = &evalCall{done: make(chan struct{}, 1), pool: pool}
	}
	e.Call = c
	e.holders.Store(1)
	return e
}

// retry releases a call that was not done, and returns one to be made in its place.
func (e *evalCall) retry() *evalCall {
	again := newEvalCall(e.pool, e.Call)
	e.release()
	return again
}

// share gives the call to the queue or to a connection too, in a state.
func (e *evalCall) share(state uint32) {
	e.awaited = true
	e.state.Store(state)
	e.holders.Add(1)
}

// release is called once by each holder, when it no longer needs the call.
func (e *evalCall) release() {
	if e.holders.Add(-1) == 0 {
		*e = evalCall{done: e.done, pool: e.pool}
		e.pool.Put(e)
	}
}

// end gives the call its outcome.
func (e *evalCall) end(reply string, err error) {
	if !e.awaited {
		e.reply, e.err = reply, err
	} else if e.state.CompareAndSwap(sent, answered) {
		e.reply, e.err = reply, err
		e.done <- struct{}{}
	}
}

// expire ends a call whose deadline has passed.
func (e *evalCall) expire() {
	if err, ours := e.giveUp(context.DeadlineExceeded); ours {
		e.err = err
		e.done <- struct{}{}
	}
}

// giveUp ends the call for a reason, unless it has ended already. It returns the reason, marked as unsent if the call was not
// and will not be sent.
func (e *evalCall) giveUp(reason error) (err error, ours bool) {
	if e.state.CompareAndSwap(waiting, abandoned) {
		return callguard.Unsent(reason), true
	}
	return reason, e.state.CompareAndSwap(sent, detached)
}

// await waits until the call ends, or ctx does.
func (e *evalCall) await(ctx context.Context) (string, error) {
	select {
	case <-e.done:
		return e.reply, e.err
	case <-ctx.Done():
	}
	if err, ours := e.giveUp(ctx.Err()); ours {
		return "", err
	}
	<-e.done // it ended in the same moment
	return e.reply, e.err
}

// open reports whether the call has not ended.
func (e *evalCall) open() bool { return e.state.Load() <= sent }
