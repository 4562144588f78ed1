package backend

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/deadline"
)

// pipeliner shares round trips to a server. A caller who finds a lane free sends at once, by itself; those who come while
// all lanes are under way wait, and go together in one pipeline when the next lane is back. What a caller has given up
// before it was sent is not sent. If no lane comes back for a while, as when a reply was lost, another one is opened: one
// connection that hangs must not hold up the others.
//
// go-redis has an automatic pipeliner, too. Its blocking form ignores contexts, and a lone caller pays for a hand-off to
// another goroutine: 1.7 x the latency of a plain call.
type pipeliner struct {
	guard      *callguard.Guard
	handOffFor time.Duration
	now        func() int64 // Unix microseconds; 0 if it isn't known
	maxQueue   int
	all        []*conn

	serving sync.WaitGroup // counts goroutines that send for others

	mu           sync.Mutex // guards all below, and the batches of lanes
	free         []*conn    // the one used last at the end
	spare        []*conn    // to be opened when others stall
	extra        int        // of those that are open: as many will be closed again
	handOffUntil time.Time  // a lone caller's round trip was cut off; until then goroutines make those of callers who may leave
	queue        []*evalCall
	closed       bool
	deadlineTimer
}

// conn is a round trip at a time.
type conn struct {
	client      redis.UniversalClient // nil until it is used, if it is the lane's own
	opts        *redis.Options        // of that
	interrupter *interrupter          // nil: the client may have several calls under way, and none can be interrupted

	batch    []*evalCall // what it has for those who wait; guarded by lanes.mu
	deadline time.Time   // when the last of them isn't waited for any more
	past     []*evalCall // memory for another batch
}

// ErrOverloaded is in the chain of an [*Error] of kind Unavailable: too many calls were waiting for the server. Nothing
// was sent.
var ErrOverloaded = errors.New("sluice: too many calls are waiting for the server")

const (
	maxBatch      = 128 // in one pipeline: the last of it waits for all
	maxExtraConns = 14  // lanes opened because others stalled

	// defaultHandOff bounds what callers who leave amid their round trips cost: a connection for each lane in this time.
	defaultHandOff = time.Second
)

// init makes lanes of which some are open.
func (l *pipeliner) init(g *callguard.Guard, now func() int64, maxQueue int, all []*conn, open int) {
	l.guard, l.now, l.maxQueue, l.all, l.handOffFor = g, now, maxQueue, all, defaultHandOff
	l.free, l.spare = slices.Clone(all[:open]), slices.Clone(all[open:])
}

// run runs an evalCall until the deadline, which is that of a call without a context, or until ctx ends.
func (l *pipeliner) run(ctx context.Context, deadline time.Time, e *evalCall) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", callguard.Unsent(err)
	}
	e.deadline, e.until, e.since = deadline, deadline, deadline.Add(-l.guard.Timeout())
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		if !time.Now().Before(end) { // its timer may not have fired
			return "", callguard.Unsent(context.DeadlineExceeded)
		}
		// A server that is silent costs it the connection; a caller in a hurry doesn't.
		e.deadline, e.until = end, later(end, e.since.Add(min(l.guard.Timeout(), defaultRedisTimeout)))
	}
	stays := ctx.Done() == nil && e.deadline.Equal(deadline)
	l.mu.Lock()
	if last := len(l.free) - 1; last >= 0 {
		ln := l.free[last]
		l.free = l.free[:last]
		if stays || ln.interrupter != nil && !e.since.Before(l.handOffUntil) {
			l.mu.Unlock()
			l.sendInline(ctx, ln, e)
			return e.reply, e.err
		}
		e.share(sent)
		ln.addLocked(e)
		l.watchLocked(e.deadline)
		l.serving.Go(func() {
			l.send(ln)
			l.serve(ln)
		})
	} else {
		if len(l.queue) >= l.maxQueue {
			l.purgeLocked()
		}
		if len(l.queue) >= l.maxQueue {
			l.mu.Unlock()
			return "", callguard.Unsent(ErrOverloaded)
		}
		e.share(waiting)
		l.queue = append(l.queue, e)
		l.watchLocked(earlier(e.since.Add(stallAfter), e.deadline))
	}
	l.mu.Unlock()
	return e.await(ctx)
}

// sendInline makes the round trip of a caller who has a lane to itself.
func (l *pipeliner) sendInline(ctx context.Context, ln *conn, e *evalCall) {
	if ctx.Done() == nil {
		ln.exchange(deadlineCtx{ctx, e.deadline}, []*evalCall{e})
	} else {
		stop := ln.interrupter.watch(ctx)
		ln.exchange(deadlineCtx{ctx, e.deadline}, []*evalCall{e})
		ln.interrupter.release(stop)
	}
	cancelled := e.err != nil && !isReply(e.err) && deadline.Ended(ctx) != nil
	l.mu.Lock()
	if cancelled {
		l.handOffUntil = time.Now().Add(l.handOffFor)
	}
	if len(l.queue) > 0 {
		l.serving.Go(func() { l.serve(ln) })
	} else {
		l.parkLocked(ln)
	}
	l.mu.Unlock()
}

// serve sends what waits, until nobody does.
func (l *pipeliner) serve(ln *conn) {
	for l.load(ln) {
		l.send(ln)
		if len(ln.batch) > 1 {
			// Those who were answered may have their next call ready before the lane leaves: with 64 callers a batch
			// carries 28 in place of 18, which takes a quarter off the client's time for each.
			runtime.Gosched()
		}
	}
}

// load changes a lane's batch for the next one, or gives the lane back if there is none.
func (l *pipeliner) load(ln *conn) bool {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 && len(ln.batch) == 0 {
			l.parkLocked(ln)
			l.mu.Unlock()
			return false
		}
		gone := ln.batch
		ln.batch = ln.past[:0]
		if len(l.queue) > 0 {
			l.loadLocked(ln, time.Now())
		}
		l.mu.Unlock()
		for _, e := range gone {
			e.release()
		}
		clear(gone)
		ln.past = gone[:0]
		if len(ln.batch) > 0 {
			return true
		}
	}
}

// loadLocked takes from the queue what is still to be sent.
func (l *pipeliner) loadLocked(ln *conn, now time.Time) {
	n := 0
	for _, e := range l.queue {
		if len(ln.batch) == maxBatch {
			break
		}
		n++
		if !now.Before(e.deadline) {
			e.expire()
		}
		if e.state.CompareAndSwap(waiting, sent) {
			ln.addLocked(e)
		} else {
			e.release()
		}
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
}

func (ln *conn) addLocked(e *evalCall) {
	if len(ln.batch) == 0 || e.until.After(ln.deadline) {
		ln.deadline = e.until
	}
	ln.batch = append(ln.batch, e)
}

// purgeLocked removes from the queue what has ended.
func (l *pipeliner) purgeLocked() {
	l.queue = slices.DeleteFunc(l.queue, func(e *evalCall) bool {
		if e.open() {
			return false
		}
		e.release()
		return true
	})
}

// parkLocked gives a lane back, or closes one if any was opened because others stalled.
func (l *pipeliner) parkLocked(ln *conn) {
	if l.extra > 0 {
		l.extra--
		l.spare = append(l.spare, ln)
	} else {
		l.free = append(l.free, ln)
	}
}

// send makes the calls of a lane's batch in one pipeline, those of plain takes in one script call. Each has its own
// outcome.
func (l *pipeliner) send(ln *conn) {
	now := l.now()
	for _, e := range ln.batch {
		if e.plain {
			e.nowMicros = max(e.nowMicros, now)
		}
	}
	ln.exchange(deadlineCtx{context.Background(), ln.deadline}, ln.batch)
}

// exchange makes a round trip, and more for those calls that are to be sent once more, of which nothing was done: their
// script was not known to the server, or was not for them.
func (ln *conn) exchange(ctx deadlineCtx, batch []*evalCall) {
	if ln.client == nil {
		ln.client = redis.NewClient(ln.opts)
	}
	if ln.interrupter == nil {
		var cancel context.CancelFunc
		ctx.Context, cancel = ending(ctx)
		defer cancel()
	} else {
		ln.interrupter.start(ctx.deadline)
	}
	for len(batch) > 0 {
		var p pipeline
		for _, e := range batch {
			p.add(e)
		}
		p.run(ctx, ln.client)
		batch = nil
		for i := range p.commands {
			batch = p.commands[i].deliver(batch)
		}
	}
	if ln.interrupter != nil {
		ln.interrupter.rest()
	}
}

// close waits for what is under way. Nobody may call run any more.
func (l *pipeliner) close() {
	l.mu.Lock()
	l.closed = true
	l.unwatchLocked()
	l.mu.Unlock()
	l.serving.Wait()
}

// deadlineCtx is a context with a deadline that costs no timer: the client sets it on the connection. But the context doesn't end
// by then, for which the client would wait while it dials: that a line does, and where there is none a timer is set.
type deadlineCtx struct {
	context.Context
	deadline time.Time
}

func (u deadlineCtx) Deadline() (time.Time, bool) { return u.deadline, true }

// ending is for what waits for its context to end: it sets the timer.
func ending(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, end)
	}
	return context.WithCancel(ctx)
}
