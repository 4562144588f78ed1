package lease

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/internal/outcome"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// pendingReturn is the unspent part of a batch that is still to be given back.
type pendingReturn struct {
	hash    uint64
	req     backend.Request
	receipt state.Receipt // its Cost is the amount

	expiresAt int64 // none of it counts from then on
	notBefore int64 // earliest time to send it
	backoff   int64 // before the last retry; 0 before the first
}

const (
	maxPendingReturns = 1 << 12 // for each shard; further ones are lost
	maxLastMoments    = 250 * time.Millisecond
	closeTimeout      = 5 * time.Second // for returns and flushes

	// A return that was certainly not sent is retried with exponential backoff.
	minReturnBackoff = int64(100 * time.Millisecond)
	maxReturnBackoff = int64(10 * time.Second)
)

// endLocked ends a lease and returns its unspent part. If half of it had been enough, the next batch is half as large: with a
// reserve, because demand varies, and that of a rare key most.
func (s *shard) endLocked(c *hashtable.Cell[view], now int64) {
	v := &c.Value
	b := &v.batch
	if spent := b.size - b.left; b.left > 0 && b.size/2 >= spent+spent/4+4 && !s.steady {
		v.size = max(1, v.size/2)
	}
	left := b.left
	b.left, b.deadline = 0, 0
	s.queueReturnLocked(c, &b.charged, b.policy, left, now)
}

// endAllLocked ends a lease, and drops the prefetched batch.
func (s *shard) endAllLocked(c *hashtable.Cell[view], now int64) {
	s.endLocked(c, now)
	if f := c.Value.prefetched; f != nil {
		c.Value.prefetched = nil
		s.queueReturnLocked(c, &f.charged, f.policy, f.unreserved, now)
	}
}

// queueReturnLocked queues a return of part of a batch, unless the charge counts for moments only. Until the return is done, or the
// charge is over, the key gets no other batch: each process makes at most one batch unavailable to others.
func (s *shard) queueReturnLocked(c *hashtable.Cell[view], charged *backend.Result, policy *limit.Policy, amount, now int64) {
	if amount == 0 {
		return
	}
	counts := charged.CountsUntil() - c.Value.serverAt(now)
	if counts <= 0 {
		return
	}
	if counts <= lastMoments(policy) && !s.closed {
		c.Value.nextBatchAt = now + counts*1000
		return
	}
	if len(s.pending) >= maxPendingReturns {
		s.stats.Lost += amount
		return
	}
	r := pendingReturn{
		hash: c.Value.hash, req: backend.Request{Key: c.Key(), Policy: policy},
		receipt: charged.Receipt(), expiresAt: now + counts*1000,
	}
	r.receipt.Cost = amount
	s.pending = append(s.pending, r)
	s.pendingCost += amount
	c.Value.pendingReturns++
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// lastMoments returns how long before the end of a policy's longest window a return is not worth a call, in microseconds.
func lastMoments(p *limit.Policy) int64 {
	var longest time.Duration
	for i := range p.Limits {
		longest = max(longest, p.Limits[i].Window)
	}
	return min(maxLastMoments, longest/16).Microseconds()
}

// sweep ends leases that are over, and sends pending returns.
func (l *Lease) sweep() {
	tick := time.NewTicker(min(max(l.cfg.Life/8, 10*time.Millisecond), time.Second))
	defer tick.Stop()
	slots := newCallSlots(maxReturns)
	defer slots.busy.Wait()
	for {
		select {
		case <-l.stop:
			return
		case <-l.wake:
		case <-tick.C:
			l.end(func(deadline, now int64) bool { return now >= deadline })
		}
		all := l.takePending(l.clock())
		for i := range all {
			if !slots.start(l.stop, func() { l.sendReturn(context.Background(), &all[i], false) }) {
				l.requeue(all[i:])
				return
			}
		}
	}
}

// end ends the leases for which over returns true.
func (l *Lease) end(over func(deadline, now int64) bool) {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		now := l.clock()
		for c := range s.cells.All() {
			if v := &c.Value; v.prefetched != nil && over(v.prefetched.deadline, now) {
				s.endAllLocked(c, now) // the current one is over, too, or nearly
			} else if v.batch.left > 0 && over(v.batch.deadline, now) {
				s.endLocked(c, now)
			}
		}
		s.mu.Unlock()
	}
}

// takePending removes and returns the returns whose notBefore has passed.
func (l *Lease) takePending(now int64) []pendingReturn {
	var all []pendingReturn
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		s.pending = slices.DeleteFunc(s.pending, func(r pendingReturn) bool {
			if r.notBefore <= now {
				all = append(all, r)
			}
			return r.notBefore <= now
		})
		s.mu.Unlock()
	}
	return all
}

func (l *Lease) requeue(all []pendingReturn) {
	for _, r := range all {
		s := &l.shards[r.hash>>l.shift]
		s.mu.Lock()
		s.pending = append(s.pending, r)
		s.mu.Unlock()
	}
}

// returnAll ends all leases and sends all returns.
func (l *Lease) returnAll(ctx context.Context) {
	l.end(func(int64, int64) bool { return true })
	all := l.takePending(math.MaxInt64)
	slots := newCallSlots(maxReturns)
	for i := range all {
		slots.start(nil, func() { l.sendReturn(ctx, &all[i], true) })
	}
	slots.busy.Wait()
}

// sendReturn sends a return. If it was certainly not sent it is queued again, unless last is set.
func (l *Lease) sendReturn(ctx context.Context, r *pendingReturn, last bool) {
	err := backend.Refund(ctx, l.inner, r.req, r.receipt, r.receipt.Cost)
	s := &l.shards[r.hash>>l.shift]
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.clock()
	if r.backoff = min(max(2*r.backoff, minReturnBackoff), maxReturnBackoff); err != nil && !last && outcome.Retryable(err) &&
		len(s.pending) < maxPendingReturns && now+r.backoff < r.expiresAt {
		r.notBefore = now + r.backoff
		s.pending = append(s.pending, *r)
		return
	}
	s.pendingCost -= r.receipt.Cost
	if err != nil {
		s.stats.Lost += r.receipt.Cost
	} else {
		s.stats.Returned += r.receipt.Cost
	}
	if c := s.cells.Find(r.hash, r.req.Policy.Name, r.req.Key); c != nil {
		v := &c.Value
		v.pendingReturns = max(v.pendingReturns-1, 0) // the view that queued it may have been evicted since
		if err == nil {
			v.recheck, v.resetMicros = 0, 0
		}
	}
}
