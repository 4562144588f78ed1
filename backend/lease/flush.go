package lease

import (
	"context"
	"errors"
	"sync"
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
	sentAt  int64
	done    chan struct{}
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
	maxFlushes = 256 // concurrent calls: two of the largest batches that a server is sent

	// A charge that was certainly not executed is retried with exponential backoff.
	minFlushBackoff = int64(50 * time.Millisecond)
	maxFlushBackoff = int64(time.Second)
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
	f := &flush{segment: g, policy: g.policy, mark: g.mark, amount: g.pending, since: g.since, sentAt: now, done: make(chan struct{})}
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
	d.flush = nil
	f.segment.underWay = 0
	defer close(f.done)
	switch {
	case err == nil:
		d.owed -= f.amount
		d.backoff, d.notBefore = 0, 0
		s.lease.recordLoss(result, now)
		doubt := v.doubt
		v.mergeLocked(&due.req, result, f.sentAt, now)
		v.doubt = doubt // a take settles it
		result.State.Forget(state.Moment(f.policy, due.cell.Key(), result.Now))
		d.floor = !v.state.Equal(&result.State)
		s.stats.Overshoot = max(s.stats.Overshoot, result.State.Excess(f.policy, v.at(&due.req, now)))
	case outcome.Retryable(err):
		f.segment.pending += f.amount
		f.segment.since = f.since
		d.backoff = min(max(2*d.backoff, minFlushBackoff), maxFlushBackoff)
		d.notBefore = now + d.backoff
	default:
		if outcome.NothingRefunded(err) { // nor will any other charge be executed
			s.lease.uncharged.Store(true)
		}
		s.stats.LostCharges += f.amount
		d.loseLocked(f.policy, &f.mark, f.amount)
	}
	if d.segments[0].pending > 0 || d.segments[1].pending > 0 {
		s.queueDebtLocked(due.cell)
	}
}

// flushLoop charges what is owed, every Config.Flush, until the Lease is closed.
func (l *Lease) flushLoop() {
	parts := min(len(l.shards), flushParts)
	tick := time.NewTicker(l.cfg.Flush / time.Duration(parts))
	defer tick.Stop()
	var busy sync.WaitGroup
	defer busy.Wait()
	slots := make(chan struct{}, maxFlushes)
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
			for _, due := range l.shards[i].dueFlushes(false) {
				slots <- struct{}{} // a flush in a slot returns by the inner backend's timeout
				busy.Go(func() {
					l.send(l.flushing, due)
					<-slots
				})
			}
		}
	}
}

// dueFlushes begins a flush of each key that owes.
func (s *shard) dueFlushes(all bool) (due []*dueFlush) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, c := s.lease.clock(), s.owing
	s.owing, s.owingKeys = nil, 0
	for c != nil {
		d := c.Value.debt
		next := d.next
		d.queued, d.next = false, nil
		if all || now >= d.notBefore {
			if f := s.startFlushLocked(c, now); f != nil {
				due = append(due, f)
			}
		}
		if d.segments[0].pending > 0 || d.segments[1].pending > 0 {
			s.queueDebtLocked(c)
		}
		c = next
	}
	return due
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

// chargeNow sends what a key owes, and waits for the replies. Of a charge that was not executed it makes one attempt.
func (l *Lease) chargeNow(ctx context.Context, s *shard, c *hashtable.Cell[view]) error {
	if c == nil {
		return nil
	}
	for range 3 { // two segments, and one that was under way
		var f *flush
		s.mu.Lock()
		l.sendLocked(s, c)
		if d := c.Value.debt; d != nil {
			f = d.flush
		}
		s.mu.Unlock()
		if f == nil {
			return nil
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// putBack gives a refund to the current batch, or takes it from what is owed. What is under way is awaited: afterwards it is the
// server's.
func (l *Lease) putBack(ctx context.Context, s *shard, hash uint64, name *backend.Request, receipt *state.Receipt, amount int64) (bool, error) {
	for range 3 {
		s.mu.Lock()
		c := s.cells.Find(hash, name.Policy.Name, name.Key)
		if c == nil || c.Value.putBackLocked(receipt, amount, l.clock()) {
			s.mu.Unlock()
			return c != nil, nil
		}
		if c.Value.debt == nil {
			s.mu.Unlock()
			return false, nil
		}
		done, wait := c.Value.debt.forgiveLocked(receipt, amount)
		s.mu.Unlock()
		if done || !wait {
			return done, nil
		}
		if err := l.chargeNow(ctx, s, c); err != nil {
			return false, err
		}
	}
	return false, errNotCharged
}

// errNotCharged is the error of a refund of what could not be charged yet.
var errNotCharged = &backend.Error{Op: "refund", Kind: backend.Unavailable, Err: errors.New("the charge was not executed yet")}

// flushAtClose sends what is owed until nothing is, or ctx has ended; what is left then is lost. Nothing else runs by now.
func (l *Lease) flushAtClose(ctx context.Context) {
	for {
		var busy sync.WaitGroup
		slots := make(chan struct{}, maxFlushes)
		left := false
		for i := range l.shards {
			for _, due := range l.shards[i].dueFlushes(true) {
				left = true
				slots <- struct{}{}
				busy.Go(func() {
					l.send(ctx, due)
					<-slots
				})
			}
		}
		busy.Wait()
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
