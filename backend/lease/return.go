package lease

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// remainder is what is left of a batch, on its way back.
type remainder struct {
	hash    uint64
	req     backend.Request
	receipt state.Receipt // Cost is how much

	until int64 // from then on nothing of it counts
	after int64 // it is not sent before
	wait  int64 // how long it waited for the last try; 0 before the first
}

const (
	maxDue          = 1 << 12         // remainders that wait in a shard; what is more is lost
	givingBack      = 16              // calls at once
	closingIn       = 5 * time.Second // is how long Close gives back
	givingBackAtEnd = 64              // calls at once, while closing

	// A return that was certainly not sent is tried again, each time after twice the wait.
	firstReturnWait   = int64(100 * time.Millisecond)
	longestReturnWait = int64(10 * time.Second)
)

// endLocked ends a lease: what is left of it goes back. If that is half of it the next batch is half as large.
func (s *shard) endLocked(c *hashtable.Cell[view], now int64) {
	v := &c.Value
	b := &v.batch
	if 2*b.left >= b.size && b.left > 0 && !s.steady {
		v.size = max(1, v.size/2)
	}
	left := b.left
	b.left, b.deadline = 0, 0
	s.oweLocked(c, &b.charged, b.policy, left, now)
}

// endAllLocked ends a lease, and the next one if that is there.
func (s *shard) endAllLocked(c *hashtable.Cell[view], now int64) {
	s.endLocked(c, now)
	if f := c.Value.ahead; f != nil {
		c.Value.ahead = nil
		s.oweLocked(c, &f.charged, f.policy, f.spare, now)
	}
}

// oweLocked has a part of what a batch was charged given back, as far as it still counts. Until that is done the key gets
// no other batch: one for each process is what others may be denied for.
func (s *shard) oweLocked(c *hashtable.Cell[view], charged *backend.Result, policy *limit.Policy, amount, now int64) {
	if amount == 0 {
		return
	}
	counts := charged.CountsUntil() - c.Value.serverAt(now)
	if counts <= 0 {
		return
	}
	if len(s.due) >= maxDue {
		s.stats.Lost += amount
		return
	}
	r := remainder{
		hash: c.Value.hash, req: backend.Request{Key: c.Key(), Policy: policy}, receipt: charged.Receipt(), until: now + counts*1000,
	}
	r.receipt.Cost = amount
	s.due = append(s.due, r)
	s.owed += amount
	c.Value.owing++
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// sweep ends leases that are over, and gives back what is due.
func (l *Lease) sweep() {
	tick := time.NewTicker(min(max(l.cfg.Life/8, 10*time.Millisecond), time.Second))
	defer tick.Stop()
	var busy sync.WaitGroup
	defer busy.Wait()
	slots := make(chan struct{}, givingBack)
	for {
		select {
		case <-l.stop:
			return
		case <-l.wake:
		case <-tick.C:
			l.end(func(deadline, now int64) bool { return now >= deadline })
		}
		all := l.due(l.clock())
		for i := range all {
			select {
			case slots <- struct{}{}:
			case <-l.stop:
				l.giveBackLater(all[i:])
				return
			}
			busy.Go(func() {
				l.giveBack(context.Background(), &all[i], false)
				<-slots
			})
		}
	}
}

// end ends leases.
func (l *Lease) end(over func(deadline, now int64) bool) {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		now := l.clock()
		for _, slot := range s.cells.Slots {
			c := slot.Cell
			if c == nil {
				continue
			}
			if v := &c.Value; v.ahead != nil && over(v.ahead.deadline, now) {
				s.endAllLocked(c, now) // the one before is over, too, or nearly
			} else if v.batch.left > 0 && over(v.batch.deadline, now) {
				s.endLocked(c, now)
			}
		}
		s.mu.Unlock()
	}
}

// due returns what has to go back by now.
func (l *Lease) due(now int64) []remainder {
	var all []remainder
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		s.due = slices.DeleteFunc(s.due, func(r remainder) bool {
			if r.after <= now {
				all = append(all, r)
			}
			return r.after <= now
		})
		s.mu.Unlock()
	}
	return all
}

func (l *Lease) giveBackLater(all []remainder) {
	for _, r := range all {
		s := &l.shards[r.hash>>l.shift]
		s.mu.Lock()
		s.due = append(s.due, r)
		s.mu.Unlock()
	}
}

// giveBackAll gives everything back, for as long as Close takes.
func (l *Lease) giveBackAll() {
	ctx, cancel := context.WithTimeout(context.Background(), closingIn)
	defer cancel()
	l.end(func(int64, int64) bool { return true })
	all := l.due(math.MaxInt64)
	var next atomic.Int64
	var busy sync.WaitGroup
	for range min(givingBackAtEnd, len(all)) {
		busy.Go(func() {
			for i := next.Add(1); i <= int64(len(all)); i = next.Add(1) {
				l.giveBack(ctx, &all[i-1], true)
			}
		})
	}
	busy.Wait()
}

// giveBack sends a return, which waits for another try if it was certainly not sent, unless this is the last one.
func (l *Lease) giveBack(ctx context.Context, r *remainder, last bool) {
	err := backend.Refund(ctx, l.inner, r.req, r.receipt, r.receipt.Cost)
	s := &l.shards[r.hash>>l.shift]
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.clock()
	if r.wait = min(max(2*r.wait, firstReturnWait), longestReturnWait); err != nil && !last && notSent(err) &&
		len(s.due) < maxDue && now+r.wait < r.until {
		r.after = now + r.wait
		s.due = append(s.due, *r)
		return
	}
	s.owed -= r.receipt.Cost
	if err != nil {
		s.stats.Lost += r.receipt.Cost
	} else {
		s.stats.Returned += r.receipt.Cost
	}
	if c := s.cells.Find(r.hash, r.req.Policy.Name, r.req.Key); c != nil {
		v := &c.Value
		v.owing = max(v.owing-1, 0) // another view of the key may have been forgotten meanwhile
		if err == nil {
			v.recheck, v.resets = 0, 0
		}
	}
}

// nothingDone reports whether an error makes it certain that nothing was given back, as [backend.Refunder] says.
func nothingDone(err error) bool {
	_, bad := errors.AsType[*limit.Error](err)
	return bad || notSent(err) || errors.Is(err, backend.ErrClosed) || errors.Is(err, backend.ErrUnsupported)
}

// notSent reports the same of an error after which another try may succeed.
func notSent(err error) bool {
	if e, ok := errors.AsType[*backend.Error](err); ok {
		return !e.MayHaveCharged
	}
	if _, moved := errors.AsType[*state.MovedError](err); moved {
		return true
	}
	for _, before := range []error{state.ErrFloorWanted, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, before) {
			return true
		}
	}
	return false
}
