package lease

import (
	"errors"
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// view is the local knowledge of one key, and its lease. Times and spans are nanoseconds of the Lease's own clock, except
// where a name or comment says Unix microseconds: those are the server's.
type view struct {
	hash       uint64
	referenced bool  // since the shard last looked for a view to evict
	lastUse    int64 // when the key was last requested

	state        state.State // last known
	serverMicros int64       // the server's time in Unix microseconds, as of serverReadAt; 0 if unknown
	serverReadAt int64
	serverJumped int64 // sum of the clock's jumps then
	serverBehind int64 // by how much the server's time may have been ahead of serverMicros then
	recheck      int64 // a local denial is checked from then on
	stateless    bool  // the last reply carried no state: what is known lags for good
	doubt        bool  // no take has been answered that was sent since this process refunded or reset: the view denies nothing
	doubtedAt    int64 // when it did
	remaining    int64 // of the binding limit at the last reply, until resetMicros
	resetMicros  int64 // Unix microseconds
	halfLife     int64 // of the key at the last reply, until resetMicros: see state.Verdict.HalfLife

	batch          batch
	pendingReturns int           // of earlier batches
	nextBatchAt    int64         // no fetch starts before: the rest of the last batch still counts, and is not returned
	fetchFailed    bool          // the last fetch did: no other starts before a take succeeds
	policy         *limit.Policy // a copy of the policy of the last lease
	fetch          *fetch        // in flight
	prefetched     *fetch        // the next batch, fetched before the current one was used up
	size           int64         // of the next batch
	grantedAt      int64         // when the last batch was requested
	life           int64         // and how long it could be held

	debt *debt // nil unless the key was on credit
}

// batch is a lease: it was charged in advance, and may be spent until the deadline.
type batch struct {
	left, size    int64
	prefetchBelow int64 // the next batch is fetched once less than this is left
	deadline      int64
	sentAt        int64 // when it was requested, or when loss of counts was last checked
	policy        *limit.Policy
	charged       backend.Result
}

// serverAt returns the server's time in Unix microseconds. It lags by at most the time that a reply took.
func (v *view) serverAt(now int64) int64 { return v.serverMicros + (now-v.serverReadAt)/1000 }

func (v *view) at(req *backend.Request, now int64) state.At {
	return state.Moment(req.Policy, req.Key, v.serverAt(now))
}

// spendLocked admits a request from the lease.
func (s *shard) spendLocked(c *hashtable.Cell[view], req *backend.Request, now int64, result *backend.Result) bool {
	if !s.canSpendLocked(c, req, now) {
		return false
	}
	v := &c.Value
	v.batch.left -= req.Cost
	v.batch.charged.Part(&result.Verdict, req.Cost, v.batch.left)
	s.fillResultLocked(v, req, now, result)
	s.stats.Leased++
	return true
}

// canSpendLocked reports whether the lease covers a request. It rotates to the prefetched batch if only that does.
func (s *shard) canSpendLocked(c *hashtable.Cell[view], req *backend.Request, now int64) bool {
	v := &c.Value
	if v.coversLocked(req, now) {
		return true
	}
	f := v.prefetched
	if f == nil || req.Cost > f.unreserved || !sameLimits(f.policy, req.Policy) {
		return false
	}
	s.rotateBatchLocked(c, now)
	return v.coversLocked(req, now)
}

// rotateBatchLocked makes the prefetched batch the current one.
func (s *shard) rotateBatchLocked(c *hashtable.Cell[view], now int64) {
	f := c.Value.prefetched
	c.Value.prefetched = nil
	s.endLocked(c, now)
	c.Value.startBatchLocked(f)
}

// startBatchLocked makes a completed fetch the current batch.
func (v *view) startBatchLocked(f *fetch) {
	b := &v.batch
	*b = batch{left: f.unreserved, size: f.unreserved, deadline: f.deadline, sentAt: f.sentAt, policy: f.policy, charged: f.charged}
	if f.fullSize >= minPrefetch {
		b.prefetchBelow = f.fullSize / 4
	}
	lowerIfBucket(&b.charged, f.policy)
}

// lowerIfBucket makes a result Bounded that is admitted from a lease on a bucket: tokens refill while they are leased.
func lowerIfBucket(r *backend.Result, p *limit.Policy) {
	if r.Guarantee == backend.Exact && hasBucket(p) {
		r.Guarantee, r.Cause = backend.Bounded, backend.ErrBucketLeased
	}
}

// unspentLocked returns how much is leased and not spent.
func (v *view) unspentLocked(now int64) (unspent int64) {
	if now < v.batch.deadline {
		unspent = v.batch.left
	}
	if v.prefetched != nil && now < v.prefetched.deadline {
		unspent += v.prefetched.unreserved
	}
	return unspent
}

// coversLocked reports whether the current batch covers a request.
func (v *view) coversLocked(req *backend.Request, now int64) bool {
	b := &v.batch
	return b.left >= req.Cost && now < b.deadline && sameLimits(b.policy, req.Policy)
}

// fillResultLocked sets time, source and guarantee of an admission from the lease.
func (s *shard) fillResultLocked(v *view, req *backend.Request, now int64, result *backend.Result) {
	if lost, b := s.lease.lostAt.Load(), &v.batch; b.sentAt <= lost {
		b.sentAt = lost + 1
		if !reportsLoss(b.charged.Cause) {
			b.charged.Lower(s.lease.Doubt(*req))
		}
	}
	result.Now, result.Behind, result.Source = v.serverAt(now), v.batch.charged.Behind, backend.Leased
	result.Guarantee, result.Cause = v.batch.charged.Guarantee, v.batch.charged.Cause
}

// putBackLocked returns a refund to the current batch, unless the next one is prefetched or in flight: both together are at
// most one batch.
func (v *view) putBackLocked(receipt *state.Receipt, amount, now int64) bool {
	b := &v.batch
	if v.prefetched != nil || v.fetch != nil && v.fetch.early {
		return false
	}
	if now >= b.deadline || amount > b.size-b.left || !b.charged.Covers(receipt) {
		return false
	}
	b.left += amount
	return true
}

// recordLoss records that a reply reports lost counts.
func (l *Lease) recordLoss(result *backend.Result, now int64) {
	if result.Cause == nil || !reportsLoss(result.Cause) {
		return
	}
	for last := l.lostAt.Load(); last < now && !l.lostAt.CompareAndSwap(last, now); {
		last = l.lostAt.Load()
	}
}

func reportsLoss(cause error) bool {
	return errors.Is(cause, backend.ErrCountsLost) || errors.Is(cause, backend.ErrEvicted)
}

// denyLocked denies a request that the known state denies.
func (v *view) denyLocked(req *backend.Request, now int64, result *backend.Result) bool {
	return !v.doubt && v.wouldDenyLocked(req, now, result)
}

// wouldDenyLocked is denyLocked without regard to doubt.
func (v *view) wouldDenyLocked(req *backend.Request, now int64, result *backend.Result) bool {
	if v.serverMicros == 0 {
		return false
	}
	at := v.at(req, now)
	if v.state.PeekTo(&result.Verdict, req.Policy, at, req.Cost); result.Allowed {
		result.Verdict = state.Verdict{} // no verdict: others may have used what it shows as remaining
		return false
	}
	result.Now, result.Source = at.Micros, backend.LocalDeny
	return true
}

// floorLocked returns a copy of the known state, for use without the lock; nil if nothing is known.
func (v *view) floorLocked() *state.State {
	if v.state.Empty() {
		return nil
	}
	floor := v.state.Clone()
	return &floor
}

// mergeChargeLocked merges the result of a charge that was sent at sentAt. Only a take settles a doubt.
func (s *shard) mergeChargeLocked(v *view, req *backend.Request, result *backend.Result, sentAt int64) {
	doubt := v.doubt
	s.mergeLocked(v, req, result, sentAt)
	v.doubt = doubt
}

// mergeLocked merges the result of a take or a charge that was sent at sentAt.
func (s *shard) mergeLocked(v *view, req *backend.Request, result *backend.Result, sentAt int64) {
	jumped := s.lease.jumped()
	now := s.lease.clock() // a jump in between counts as later
	if v.stateless = result.State.Empty(); !v.stateless {
		at := state.Moment(req.Policy, req.Key, result.Now)
		v.state.Join(req.Policy, at, &result.State)
		v.state.Forget(at)
	}
	v.fetchFailed, v.doubt = false, v.doubt && sentAt < v.doubtedAt
	if v.serverMicros == 0 || result.Now > v.serverAt(now) || now-v.serverReadAt > int64(time.Second) {
		v.serverMicros, v.serverReadAt, v.serverJumped = result.Now, now, jumped
		v.serverBehind = now - sentAt + int64(result.Behind)
	}
	if v.debt != nil {
		v.debt.stale = true
	}
	binding := result.Binding()
	v.remaining, v.resetMicros, v.halfLife = binding.Remaining, binding.ResetAt.UnixMicro(), int64(result.HalfLife(result.Now))
}

func hasBucket(p *limit.Policy) bool {
	return slices.ContainsFunc(p.Limits, func(l limit.Limit) bool { return l.Algorithm == limit.Bucket })
}
