package backend

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/scripts"
)

// evalCall is one script call on one key. It shares no memory with the caller, who may be gone.
type evalCall struct {
	script   *scripts.Script
	args     []any // of the script
	loads    bool  // the server doesn't know the script
	unshared bool  // it shares no script call

	scripts.KeyTake      // the key as it is stored; the rest is for plain calls
	plain           bool // the plan's script will do
	plan            *scripts.Plan
	isolation       *isolation // of its policy
	nowMicros       int64      // what the script is given

	since    time.Time // when the call began
	deadline time.Time // of its caller
	until    time.Time // how long the lane waits for the reply, also when the caller has left
	reply    string    // empty where it is none
	shared   int       // how many were in the script call that brought the reply
	err      error

	awaited bool          // its caller waits for done; otherwise it makes the round trip itself
	done    chan struct{} // holds one
	state   atomic.Uint32
	holders atomic.Int32 // its caller, and the queue or lane that has it; the last of them frees it
	pool    *sync.Pool   // to which it goes back
}

// The states of an evalCall that is awaited. Whoever moves it to one of the last three says how it ended; whoever else
// does that than the caller tells the caller by done.
const (
	waiting   uint32 = iota
	sent             // it is in the batch of a lane
	answered         // by the lane
	abandoned        // it will not be sent
	detached         // it was sent, and nobody waits for the reply
)

// newEvalCall returns an evalCall that the caller alone holds. A pool is of one backend: one for all would hand on channels that were
// made in a bubble of testing/synctest, where nobody outside may use them.
func newEvalCall(pool *sync.Pool) *evalCall {
	e, free := pool.Get().(*evalCall)
	if !free {
		e = &evalCall{done: make(chan struct{}, 1), pool: pool}
	}
	e.holders.Store(1)
	return e
}

// retry is an evalCall that was not done, to be run once more.
func (e *evalCall) retry() *evalCall {
	a := newEvalCall(e.pool)
	a.script, a.Key, a.args, a.nowMicros = e.script, e.Key, e.args, e.nowMicros
	return a
}

// share gives the evalCall to the queue or to a lane, too, in a state.
func (e *evalCall) share(state uint32) {
	e.awaited = true
	e.state.Store(state)
	e.holders.Add(1)
}

// release is called by each holder once, when it doesn't need the evalCall any more.
func (e *evalCall) release() {
	if e.holders.Add(-1) == 0 {
		*e = evalCall{done: e.done, pool: e.pool}
		e.pool.Put(e)
	}
}

// end gives the evalCall its outcome.
func (e *evalCall) end(reply string, err error) {
	if !e.awaited {
		e.reply, e.err = reply, err
	} else if e.state.CompareAndSwap(sent, answered) {
		e.reply, e.err = reply, err
		e.done <- struct{}{}
	}
}

// expire ends an evalCall whose deadline is over.
func (e *evalCall) expire() {
	if err, ours := e.giveUp(context.DeadlineExceeded); ours {
		e.err = err
		e.done <- struct{}{}
	}
}

// giveUp ends an evalCall for the reason that is given, unless it has ended already, and returns that reason or, if it is
// certain that the evalCall was not and will not be sent, that reason marked so.
func (e *evalCall) giveUp(reason error) (err error, ours bool) {
	if e.state.CompareAndSwap(waiting, abandoned) {
		return callguard.Unsent(reason), true
	}
	return reason, e.state.CompareAndSwap(sent, detached)
}

// await waits for the evalCall's end, which is also when ctx ends.
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

// open reports whether the evalCall has not ended.
func (e *evalCall) open() bool { return e.state.Load() <= sent }
