package lease

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/internal/outcome"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// flush is a charge under way.
type flush struct {
	segment *segment
	policy  *limit.Policy
	mark    state.Mark
	amount  int64
	since   int64 // when the first of it was admitted
	first   int64 // its lowest position under the first limit
	sentAt  int64
	done    chan struct{}
	err     error // read it only once done is closed
}

// dueFlush is a flush that is to be sent.
type dueFlush struct {
	shard *shard
	cell  *hashtable.Cell[view]
	flush *flush
	req   backend.Request
}

const (
	flushParts = 8   // of the shards, which take turns within Config.Flush while many keys owe
	flushOnce  = 128 // keys that are flushed together: a server is sent that many in one call

	// A key is flushed before its turn once less than 1/8 of its allowance is left, if 4 requests like the last are pending.
	flushAheadShare    = 8
	flushAheadRequests = 4

	// A charge that was certainly not executed is retried with exponential backoff.
	minFlushBackoff = int64(50 * time.Millisecond)
	maxFlushBackoff = int64(time.Second)

	refusedFor = int64(10 * time.Second) // no credit for a key whose charge the inner backend refused
)

// queueDebtLocked adds a key to those of the shard that owe.
func (s *shard) queueDebtLocked(c *hashtable.Cell[view]) {
	if d := c.Value.debt; !d.queued {
		d.queued, d.next = true, s.owing
		s.owing = c
		s.owingKeys++
	}
}

// startFlushLocked begins a flush of the older of the segments that have something pending. It returns nil if there is none, or
// another flush is under way.
func (s *shard) startFlushLocked(c *hashtable.Cell[view], now int64) *dueFlush {
	v := &c.Value
	d := v.debt
	if d == nil || d.flush != nil {
		return nil
	}
	g := &d.segments[1-d.current]
	if g.pending == 0 {
		g = &d.segments[d.current]
	}
	if g.pending == 0 {
		return nil
	}
	f := &flush{
		segment: g, policy: g.policy, mark: g.mark, amount: g.pending, since: g.since, first: g.first, sentAt: now,
		done: make(chan struct{}),
	}
	f.mark.Admit(f.policy, g.admitted)
	g.pending, g.underWay = 0, f.amount
	d.flush = f
	s.stats.Flushes++
	due := &dueFlush{s, c, f, backend.Request{Key: c.Key(), Policy: f.policy, Cost: f.amount}}
	if d.floor { // without one a charge takes Redis less than half of the time
		due.req.Floor = v.floorLocked()
	}
	return due
}

// send sends a flush.
func (l *Lease) send(ctx context.Context, due *dueFlush) {
	result, err := backend.Charge(ctx, l.inner, due.req, due.flush.mark)
	s := due.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleLocked(due, &result, err)
}

// settleLocked ends a flush. What is owed and what is known to remain change in one step.
func (s *shard) settleLocked(due *dueFlush, result *backend.Result, err error) {
	v, f, now := &due.cell.Value, due.flush, s.lease.clock()
	d := v.debt
	d.flush, f.err = nil, err
	f.segment.underWay = 0
	defer close(f.done)
	switch {
	case err == nil:
		d.owed -= f.amount
		d.backoff, d.notBefore = 0, 0
		s.lease.recordLoss(result, now)
		s.mergeChargeLocked(v, &due.req, result, f.sentAt)
		result.State.Forget(state.Moment(f.policy, due.cell.Key(), result.Now))
		d.floor = !v.state.Within(&result.State)
		s.stats.Overshoot = max(s.stats.Overshoot, result.State.Excess(f.policy, v.at(&due.req, now)))
	case outcome.Retryable(err):
		f.segment.pending += f.amount
		f.segment.since, f.segment.first = f.since, f.first
		d.backoff = min(max(2*d.backoff, minFlushBackoff), maxFlushBackoff)
		d.notBefore = now + d.backoff
	default:
		if outcome.NothingExecuted(err) { // nor will the next one be executed
			d.refusedUntil, d.allowance, d.stale = now+refusedFor, 0, true
			if errors.Is(err, backend.ErrClosed) {
				s.lease.uncharged.Store(true)
			}
		}
		s.stats.LostCharges += f.amount
		d.loseLocked(f.policy, &f.mark, f.amount)
	}
	if d.pending() > 0 {
		s.queueDebtLocked(due.cell)
	}
}

// flushLoop charges what is owed, every Config.Flush, until the Lease is closed.
func (l *Lease) flushLoop() {
	parts := min(len(l.shards), flushParts)
	tick := time.NewTicker(l.cfg.Flush / time.Duration(parts))
	defer tick.Stop()
	defer l.flushes.busy.Wait()
	step := 1
	for part := 0; ; part = (part + 1) % parts {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		if part == 0 {
			if step = parts; l.owing() <= flushOnce {
				step = 1
			}
		} else if step == 1 {
			continue // all were flushed
		}
		for i := part; i < len(l.shards); i += step {
			l.flushShard(l.flushing, &l.shards[i], false, l.flushes)
		}
	}
}

// flushShard flushes what is due of a shard, each key once there is a slot for its call, and reports whether anything was.
func (l *Lease) flushShard(ctx context.Context, s *shard, all bool, slots *callSlots) bool {
	due := s.takeDue(all)
	for _, c := range due {
		slots.start(nil, func() { l.flushDue(ctx, s, c) })
	}
	return len(due) > 0
}

// takeDue takes the keys that owe, and whose next flush is due, off the shard's list. Their flushes begin once there are slots for
// the calls: others may begin them before.
func (s *shard) takeDue(all bool) (due []*hashtable.Cell[view]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, c := s.lease.clock(), s.owing
	s.owing, s.owingKeys = nil, 0
	for c != nil {
		d := c.Value.debt
		next := d.next
		d.queued, d.next = false, nil
		switch {
		case d.flush == nil && (all || now >= d.notBefore):
			due = append(due, c)
		case d.pending() > 0:
			s.queueDebtLocked(c)
		}
		c = next
	}
	return due
}

// flushDue flushes a key that takeDue has returned.
func (l *Lease) flushDue(ctx context.Context, s *shard, c *hashtable.Cell[view]) {
	s.mu.Lock()
	due := s.startFlushLocked(c, l.clock())
	if c.Value.debt.pending() > 0 {
		s.queueDebtLocked(c)
	}
	s.mu.Unlock()
	if due != nil {
		l.send(ctx, due)
	}
}

// flushAheadLocked sends what a key owes before another request like the last would exceed the allowance, and wait for a call. A
// charge is a call, so it has to stand for some requests. While all slots are taken the key waits for its turn.
func (l *Lease) flushAheadLocked(s *shard, c *hashtable.Cell[view], cost, now int64) {
	d := c.Value.debt
	if d.flush != nil || s.closed || now < d.notBefore || d.pending() < flushAheadRequests*cost {
		return
	}
	if left := d.allowance - d.owed; left >= max(cost, d.allowance/flushAheadShare) || !l.flushes.take() {
		return
	}
	due := s.startFlushLocked(c, now)
	l.flushes.run(func() { l.send(l.flushing, due) })
}

// chargeAheadLocked sends what a key owes before a call that is about to be made for it. The caller unlocks the shard, and waits
// until it is being sent: both then share a round trip, the charge first.
func (l *Lease) chargeAheadLocked(s *shard, hash uint64, name *backend.Request) started {
	if l.cfg.Slack == 0 {
		return nil
	}
	if c := s.cells.Find(hash, name.Policy.Name, name.Key); c != nil {
		return l.sendLocked(s, c)
	}
	return nil
}

// started is closed right before a flush is sent; nil if none is.
type started chan struct{}

func (s started) wait() {
	if s != nil {
		<-s
	}
}

// sendLocked begins a flush of what a key owes, and sends it in a goroutine of its own.
func (l *Lease) sendLocked(s *shard, c *hashtable.Cell[view]) started {
	if s.closed {
		return nil
	}
	due := s.startFlushLocked(c, l.clock())
	if due == nil {
		return nil
	}
	begun := make(started)
	l.running.Go(func() {
		close(begun)
		l.send(l.flushing, due)
	})
	return begun
}

// chargeNow sends what a key owes, and waits for the replies. Of a charge that was not executed it makes one attempt, and charged
// is false.
func (l *Lease) chargeNow(ctx context.Context, s *shard, c *hashtable.Cell[view]) (charged bool, err error) {
	if c == nil {
		return true, nil
	}
	var owes [2]bool // by segment, since before the call
	var before *flush
	for try := range 4 { // two segments, one that was under way, and one that began meanwhile
		s.mu.Lock()
		d := c.Value.debt
		if d == nil {
			s.mu.Unlock()
			return true, nil
		}
		if try == 0 {
			before, owes = d.flush, [2]bool{d.segments[0].pending > 0, d.segments[1].pending > 0}
		}
		l.sendLocked(s, c)
		f, left := d.flush, d.pending()
		s.mu.Unlock()
		if f == nil {
			return left == 0, nil
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if outcome.Retryable(f.err) {
			return false, nil
		}
		for i := range owes {
			owes[i] = owes[i] && (f == before || f.segment != &d.segments[i])
		}
		if !owes[0] && !owes[1] {
			return true, nil
		}
	}
	return false, nil
}

// flushAtClose sends what is owed until nothing is, or ctx has ended; what is left then is lost. Nothing else runs by now.
func (l *Lease) flushAtClose(ctx context.Context) {
	for {
		slots := newCallSlots(maxFlushes)
		left := false
		for i := range l.shards {
			left = l.flushShard(ctx, &l.shards[i], true, slots) || left
		}
		slots.busy.Wait()
		if !left || ctx.Err() != nil {
			break
		}
		if l.owing() > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(minFlushBackoff)):
			}
		}
	}
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for c := range s.cells.All() {
			if d := c.Value.debt; d != nil {
				for j := range d.segments {
					s.stats.LostCharges += d.segments[j].pending
					d.owed -= d.segments[j].pending
					d.segments[j].pending = 0
				}
			}
		}
		s.mu.Unlock()
	}
}

// owing is how many keys have something pending.
func (l *Lease) owing() (keys int) {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		keys += s.owingKeys
		s.mu.Unlock()
	}
	return keys
}
