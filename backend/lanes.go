package backend

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/scripts"
)

// lanes shares round trips to a server. A caller who finds a lane free sends at once, by itself; those who come while
// all lanes are under way wait, and go together in one pipeline when the next lane is back. What a caller has given up
// before it was sent is not sent. If no lane comes back for a while, as when a reply was lost, another one is opened: one
// connection that hangs must not hold up the others.
//
// go-redis has an automatic pipeliner, too. Its blocking form ignores contexts, and a lone caller pays for a hand-off to
// another goroutine: 1.7 x the latency of a plain call.
type lanes struct {
	client redis.UniversalClient
	calls  *calls
	now    func() int64 // Unix microseconds; 0 if it isn't known

	mu       sync.Mutex // guards all below
	free     int
	extra    int // lanes that were opened beyond
	maxExtra int
	queue    []*errand
	maxQueue int
}

// ErrOverloaded is in the chain of an [*Error] of kind Unavailable: too many calls were waiting for the server. Nothing
// was sent.
var ErrOverloaded = errors.New("sluice: too many calls are waiting for the server")

const (
	mostTogether = 128                   // in one pipeline: the last of it waits for all
	stalled      = 10 * time.Millisecond // is how long to wait for a lane
	mostExtra    = 14                    // lanes opened because others stalled
)

// errand is one script call on one key. It shares no memory with the caller, who may be gone.
type errand struct {
	script *scripts.Script
	key    string // as it is stored
	args   []any  // of the script
	loads  bool   // the server doesn't know the script

	plain     bool // scripts.Takes will do, and this is all that it needs
	limit     limit.Limit
	cost      int64
	nowMicros int64 // what the script is given

	deadline time.Time
	state    atomic.Uint32
	reply    any
	err      error
	done     chan struct{} // holds one
}

const (
	waiting uint32 = iota
	sent
	abandoned // it will not be sent
)

// run runs an errand until the deadline, or until ctx ends.
func (l *lanes) run(ctx context.Context, deadline time.Time, e *errand) (any, error) {
	e.deadline = deadline
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		e.deadline = end
	}
	l.mu.Lock()
	if len(l.queue) >= l.maxQueue {
		l.queue = slices.DeleteFunc(l.queue, func(e *errand) bool { return e.state.Load() == abandoned })
	}
	switch {
	case l.free > 0:
		l.free--
		l.mu.Unlock()
		if ctx.Done() == nil {
			l.send([]*errand{e})
			l.back()
			return e.reply, e.err
		}
		e.done = make(chan struct{}, 1)
		l.calls.running.Go(func() { // the client does not notice a cancellation
			l.send([]*errand{e})
			l.back()
		})
	case len(l.queue) >= l.maxQueue:
		l.mu.Unlock()
		return nil, unsent{ErrOverloaded}
	default:
		e.done = make(chan struct{}, 1)
		l.queue = append(l.queue, e)
		l.mu.Unlock()
	}
	return l.await(ctx, e)
}

func (l *lanes) await(ctx context.Context, e *errand) (any, error) {
	timer := timers.Get().(*time.Timer)
	defer func() {
		timer.Stop()
		timers.Put(timer)
	}()
	left := time.Until(e.deadline)
	for timer.Reset(min(left, stalled)); ; timer.Reset(left) {
		var err error
		select {
		case <-e.done:
			return e.reply, e.err
		case <-ctx.Done():
			err = ctx.Err()
		case <-timer.C:
			if left = time.Until(e.deadline); left > 0 {
				l.open(e)
				continue
			}
			err = context.DeadlineExceeded
		}
		if e.state.CompareAndSwap(waiting, abandoned) || e.state.Load() == abandoned {
			return nil, unsent{err}
		}
		select { // the reply may have come in the same moment
		case <-e.done:
			return e.reply, e.err
		default:
			return nil, err
		}
	}
}

var timers = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

// open opens another lane for an errand that still waits for one.
func (l *lanes) open(e *errand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.state.Load() == waiting && l.extra < l.maxExtra {
		l.extra++
		l.free++
		l.nextLocked()
	}
}

// back returns a lane.
func (l *lanes) back() {
	l.mu.Lock()
	l.free++
	l.nextLocked()
	l.mu.Unlock()
}

// nextLocked gives a free lane to those who wait, or closes one that was opened because others stalled.
func (l *lanes) nextLocked() {
	switch {
	case len(l.queue) > 0:
		l.free--
		l.calls.running.Go(l.serve)
	case l.extra > 0:
		l.free--
		l.extra--
	}
}

// serve sends what waits, until nobody does.
func (l *lanes) serve() {
	defer l.back()
	var batch []*errand
	for {
		l.mu.Lock()
		n := min(len(l.queue), mostTogether)
		batch = append(batch[:0], l.queue[:n]...)
		rest := copy(l.queue, l.queue[n:])
		clear(l.queue[rest:])
		l.queue = l.queue[:rest]
		l.mu.Unlock()
		if n == 0 {
			return
		}
		l.send(batch)
		clear(batch)
	}
}

// send makes the calls of a batch in one pipeline, those of plain takes in one script call. Each has its own outcome.
func (l *lanes) send(batch []*errand) {
	var last time.Time
	now, clock := l.now(), time.Now()
	leaving := make([]*errand, 0, len(batch))
	for _, e := range batch {
		if !clock.Before(e.deadline) {
			if e.state.CompareAndSwap(waiting, abandoned) {
				e.end(nil, unsent{context.DeadlineExceeded})
			}
			continue
		}
		if !e.state.CompareAndSwap(waiting, sent) {
			continue
		}
		if e.plain {
			e.nowMicros = max(e.nowMicros, now)
		}
		if e.deadline.After(last) {
			last = e.deadline
		}
		leaving = append(leaving, e)
	}
	for len(leaving) > 0 {
		leaving = l.exchange(leaving, last)
	}
}

// exchange is one round trip. It returns the errands to be sent once more, of which nothing was done: their script was
// not known to the server, or was not for them.
func (l *lanes) exchange(batch []*errand, deadline time.Time) (again []*errand) {
	var trip trip
	for _, e := range batch {
		trip.add(e)
	}
	trip.run(until{context.Background(), deadline}, l.client)
	for i := range trip.legs {
		again = trip.legs[i].settle(again)
	}
	return again
}

// until is a context with a deadline that costs no timer: the client sets it on the connection.
type until struct {
	context.Context
	deadline time.Time
}

func (u until) Deadline() (time.Time, bool) { return u.deadline, true }

// end gives the errand its outcome.
func (e *errand) end(reply any, err error) {
	e.reply, e.err = reply, err
	if e.done != nil {
		e.done <- struct{}{}
	}
}

// again is an errand that was not done, to be run once more.
func (e *errand) again() *errand {
	return &errand{script: e.script, key: e.key, args: e.args, nowMicros: e.nowMicros}
}
