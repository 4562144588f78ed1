package redispipe

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/scripts"
)

// pipeliner shares round trips to one server: see the package's comment. If no connection is free for a while, as when a reply
// was lost, another one is opened, so that one that hangs doesn't hold up the others.
//
// go-redis has an automatic pipeliner, too. Its blocking form ignores contexts, and a lone caller pays for a hand-off to
// another goroutine: 1.7 x the latency of a plain call.
type pipeliner struct {
	timeout    time.Duration
	now        func() int64 // Unix us; 0 before it is known
	maxQueue   int
	handOffFor time.Duration
	all        []*conn
	charging   chan struct{} // holds one for each charge that waits in the queue or is under way

	serving sync.WaitGroup // counts goroutines that send for others

	mu           sync.Mutex // guards all below, and the batches of connections
	free         []*conn    // the one used last at the end
	spare        []*conn    // to be opened when others stall
	extra        int        // how many of those are open: as many will be closed again
	handOffUntil time.Time  // a lone caller's round trip was interrupted; until then goroutines make those of callers who may leave
	queue        []*evalCall
	closed       bool
	deadlineTimer
}

const (
	maxBatch      = 128                    // calls in one pipeline: the first waits for the last
	maxCharging   = 2 * maxBatch           // charges that wait in the queue or are under way
	maxExtraConns = 14                     // opened because others stall
	maxPatience   = 250 * time.Millisecond // how long the reply to a caller in a hurry is waited for

	// defaultHandOff bounds what callers who leave amid their round trips cost: a connection of each conn in this time.
	defaultHandOff = time.Second
)

// init uses connections of which some are open.
func (l *pipeliner) init(cfg *Config, all []*conn, open int) {
	l.timeout, l.now, l.maxQueue, l.all, l.handOffFor = cfg.Guard.Timeout, cfg.Now, cfg.Queue, all, defaultHandOff
	l.charging = make(chan struct{}, maxCharging)
	l.free, l.spare = slices.Clone(all[:open]), slices.Clone(all[open:])
}

// run makes a call, until the deadline, which is that of a call without a context, or until ctx ends.
func (l *pipeliner) run(ctx context.Context, deadline time.Time, e *evalCall) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", callguard.Unsent(err)
	}
	since := deadline.Add(-l.timeout)
	if e.Script == &scripts.Charge {
		if err := l.enterCharge(ctx, deadline); err != nil {
			return "", callguard.Unsent(err)
		}
		defer func() { <-l.charging }()
		since = time.Now()
	}
	e.deadline, e.until, e.since = deadline, deadline, since
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		if !time.Now().Before(end) { // its timer may not have fired
			return "", callguard.Unsent(context.DeadlineExceeded)
		}
		// A server that is silent costs it the connection; a caller in a hurry doesn't.
		e.deadline, e.until = end, later(end, e.since.Add(min(l.timeout, maxPatience)))
	}
	stays := ctx.Done() == nil && e.deadline.Equal(deadline)
	l.mu.Lock()
	if last := len(l.free) - 1; last >= 0 {
		c := l.free[last]
		l.free = l.free[:last]
		if stays || c.interrupter != nil && !e.since.Before(l.handOffUntil) {
			l.mu.Unlock()
			l.sendInline(ctx, c, e)
			return e.reply, e.err
		}
		e.share(sent)
		c.addLocked(e)
		l.watchLocked(e.deadline)
		l.serving.Go(func() {
			l.send(c)
			l.serve(c)
		})
	} else {
		if len(l.queue) >= l.maxQueue {
			l.purgeLocked()
		}
		if len(l.queue) >= l.maxQueue {
			l.mu.Unlock()
			return "", callguard.Unsent(ErrQueueFull)
		}
		e.share(waiting)
		l.queue = append(l.queue, e)
		l.watchLocked(earlier(e.since.Add(stallAfter), e.deadline))
	}
	l.mu.Unlock()
	return e.await(ctx)
}

// enterCharge waits until a charge has room. Charges come many at a time, when a process reports what it has spent: they must not
// fill the queue, and takes wait behind at most two batches of them.
func (l *pipeliner) enterCharge(ctx context.Context, end time.Time) error {
	select {
	case l.charging <- struct{}{}:
		return nil
	default:
	}
	late := time.NewTimer(time.Until(end))
	defer late.Stop()
	select {
	case l.charging <- struct{}{}:
		if err := deadline.Ended(ctx); err != nil || !time.Now().Before(end) {
			<-l.charging
			return cmp.Or(err, ErrQueueFull)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return cmp.Or(deadline.Ended(ctx), ErrQueueFull)
	}
}

// sendInline makes the round trip in the caller's own goroutine, over a connection that no other call uses meanwhile.
func (l *pipeliner) sendInline(ctx context.Context, c *conn, e *evalCall) {
	if ctx.Done() == nil {
		c.exchange(deadlineCtx{ctx, e.deadline}, []*evalCall{e})
	} else {
		stop := c.interrupter.watch(ctx)
		c.exchange(deadlineCtx{ctx, e.deadline}, []*evalCall{e})
		c.interrupter.release(stop)
	}
	cancelled := e.err != nil && !IsReply(e.err) && deadline.Ended(ctx) != nil
	l.mu.Lock()
	if cancelled {
		l.handOffUntil = time.Now().Add(l.handOffFor)
	}
	if len(l.queue) > 0 {
		l.serving.Go(func() { l.serve(c) })
	} else {
		l.parkLocked(c)
	}
	l.mu.Unlock()
}

// serve sends the calls that wait, until none does.
func (l *pipeliner) serve(c *conn) {
	for l.load(c) {
		l.send(c)
		if len(c.batch) > 1 {
			// The callers that were answered may have their next call ready before the next batch leaves: with 64
			// callers a batch carries 28 in place of 18, which takes a quarter off the client's time for each.
			runtime.Gosched()
		}
	}
}

// load gives a connection its next batch, or parks it if there is none.
func (l *pipeliner) load(c *conn) bool {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 && len(c.batch) == 0 {
			l.parkLocked(c)
			l.mu.Unlock()
			return false
		}
		gone := c.batch
		c.batch = c.past[:0]
		if len(l.queue) > 0 {
			l.loadLocked(c, time.Now())
		}
		l.mu.Unlock()
		for _, e := range gone {
			e.release()
		}
		clear(gone)
		c.past = gone[:0]
		if len(c.batch) > 0 {
			return true
		}
	}
}

// loadLocked moves calls that are still to be sent from the queue to a connection's batch.
func (l *pipeliner) loadLocked(c *conn, now time.Time) {
	n := 0
	for _, e := range l.queue {
		if len(c.batch) == maxBatch {
			break
		}
		n++
		if !now.Before(e.deadline) {
			e.expire()
		}
		if e.state.CompareAndSwap(waiting, sent) {
			c.addLocked(e)
		} else {
			e.release()
		}
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
}

// purgeLocked removes calls that have ended from the queue.
func (l *pipeliner) purgeLocked() {
	l.queue = slices.DeleteFunc(l.queue, func(e *evalCall) bool {
		if e.open() {
			return false
		}
		e.release()
		return true
	})
}

// parkLocked frees a connection, or retires it if any was opened because others stalled.
func (l *pipeliner) parkLocked(c *conn) {
	if l.extra > 0 {
		l.extra--
		l.spare = append(l.spare, c)
	} else {
		l.free = append(l.free, c)
	}
}

// send makes the calls of a connection's batch in one pipeline.
func (l *pipeliner) send(c *conn) {
	now := l.now()
	for _, e := range c.batch {
		if e.Plan != nil {
			e.NowMicros = max(e.NowMicros, now)
		}
	}
	c.exchange(deadlineCtx{context.Background(), c.deadline}, c.batch)
}

// close waits for what is under way. No call of run may follow.
func (l *pipeliner) close() {
	l.mu.Lock()
	l.closed = true
	l.unwatchLocked()
	l.mu.Unlock()
	l.serving.Wait()
}
