package lease

import (
	"context"
	"slices"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/internal/outcome"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// fetch is a batch in flight, with the requests that wait for it.
type fetch struct {
	policy    *limit.Policy
	size      int64
	fullSize  int64 // of a batch; above size if a rest of the last batch counts towards it
	reserved  int64 // for waiters
	joined    int64 // waiters beside the one that it was sent for: -1 if only that one has left
	sentAt    int64
	early     bool           // a prefetch, without waiters
	trace     *backend.Trace // nil unless the first waiter is traced; read it only once done is closed
	completed bool

	done       chan struct{} // closed once the fields below are set
	err        error
	charged    backend.Result
	unreserved int64
	deadline   int64
}

// nextSizeLocked returns the size of the next batch; at most 1 means none. A key that was last requested half of a lease's life
// ago or earlier gets none. If a batch was used up before half its life, the next one is larger.
func (v *view) nextSizeLocked(cfg *Config, p *limit.Policy, idle, now int64) int64 {
	life := v.nextLifeLocked(cfg, p, now)
	if cfg.Batch < 0 || idle >= life/2 || v.pendingReturns > 0 || now < v.nextBatchAt || v.fetchFailed {
		return 0
	}
	quota := minQuota(p)
	remaining := min(v.remaining, quota) // the key's policy may have changed
	if v.serverAt(now) >= v.resetMicros {
		remaining = quota
	}
	most := remaining / (2 * int64(cfg.Processes))
	switch {
	case v.size == 0 && cfg.Batch > 0:
		v.size = cfg.Batch
	case v.size == 0:
		v.size = max(1, min(quota/firstBatchDivisor, quota/(firstShareDivisor*int64(cfg.Processes))))
	case !cfg.Steady && v.size < most && now-v.grantedAt < v.life/2:
		v.size = min(v.size+(v.size+1)/2, most)
	}
	v.grantedAt, v.life = now, life
	return min(v.size, most)
}

// nextLifeLocked returns how long the next lease can live, as far as the view knows.
func (v *view) nextLifeLocked(cfg *Config, p *limit.Policy, now int64) int64 {
	longest := int64(state.LongestLease(p))
	if v.serverAt(now) >= v.resetMicros && !cfg.Steady { // nothing is used
		return longest
	}
	return min(cfg.life(v.halfLife), longest)
}

// fetchOrForwardLocked unlocks the shard, and fetches a batch for a request or forwards it.
func (l *Lease) fetchOrForwardLocked(ctx context.Context, s *shard, c *hashtable.Cell[view], hash uint64, name, req *backend.Request,
	idle, now int64) (backend.Result, error) {
	if b := &c.Value.batch; b.left > 0 && now >= b.deadline {
		s.endLocked(c, now)
	}
	if f := l.joinFetchLocked(ctx, s, c, req, idle, now); f != nil {
		s.mu.Unlock()
		return l.await(ctx, s, c, f, req, now)
	}
	return l.forwardLocked(ctx, s, hash, name, req, c.Value.floorLocked())
}

// forwardLocked unlocks the shard, forwards a request, and merges the reply.
func (l *Lease) forwardLocked(ctx context.Context, s *shard, hash uint64, name, req *backend.Request,
	floor *state.State) (backend.Result, error) {
	s.stats.Forwarded++
	sentAt, ahead := l.clock(), l.chargeAheadLocked(s, hash, name)
	s.mu.Unlock()
	trace(req.Trace, forwarded, nil)
	req.Floor = floor
	ahead.wait()
	result, err := l.inner.Take(ctx, *req)
	if err != nil {
		return result, err
	}
	if result.Allowed {
		result.Lower(l.cause)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, now := s.cells.Find(hash, name.Policy.Name, name.Key), l.clock()
	l.recordLoss(&result, now)
	if c == nil && !s.closed {
		if c = s.addLocked(hash, name, now); c != nil {
			c.Value.lastUse, c.Value.recheck = now, now+int64(l.cfg.Recheck)
		}
	}
	if c == nil {
		return result, nil
	}
	v := &c.Value
	s.mergeLocked(v, req, &result, sentAt)
	if f := v.fetch; !result.Allowed && f != nil { // the batch in flight may hold the quota that this request was denied
		s.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	if !result.Allowed {
		s.spendLocked(c, req, l.clock(), &result)
	}
	return result, nil
}

// joinFetchLocked reserves a request's cost in the fetch in flight, or starts one. It returns nil if the request must be
// forwarded.
func (l *Lease) joinFetchLocked(ctx context.Context, s *shard, c *hashtable.Cell[view], req *backend.Request,
	idle, now int64) *fetch {
	v := &c.Value
	if f := v.fetch; f != nil {
		if req.Cost > f.size-f.reserved || !sameLimits(f.policy, req.Policy) {
			return nil
		}
		f.reserved += req.Cost
		f.joined++
		return f
	}
	if v.prefetched != nil { // it doesn't cover the request, and would end when another fetch completes
		s.rotateBatchLocked(c, now)
	}
	if len(req.Key) > keyhash.Longest { // a return needs the whole key, a view has a digest
		return nil
	}
	size := v.nextSizeLocked(&l.cfg, req.Policy, idle, now)
	if size <= req.Cost || size <= v.debt.allowanceOrZero() || s.closed {
		return nil
	}
	if v.policy == nil || !sameLimits(v.policy, req.Policy) {
		v.policy = &limit.Policy{Name: c.Policy(), Limits: slices.Clone(req.Policy.Limits)}
	}
	f := &fetch{policy: v.policy, size: size, fullSize: size, reserved: req.Cost, sentAt: now}
	if req.Trace != nil {
		f.trace = new(backend.Trace)
	}
	l.fetchLocked(ctx, s, c, f)
	return f
}

// prefetchLocked fetches the next batch before the current one is used up, if that is spent fast enough for the next to be
// larger. Both together are at most one batch.
func (l *Lease) prefetchLocked(ctx context.Context, s *shard, c *hashtable.Cell[view], now int64) {
	v := &c.Value
	b := &v.batch
	b.prefetchBelow = 0 // at most one attempt
	if v.fetch != nil || v.prefetched != nil || s.closed || now-v.grantedAt >= v.life/2 {
		return
	}
	whole := v.nextSizeLocked(&l.cfg, b.policy, 0, now)
	size := whole - b.left - 1
	if size < minPrefetch/2 {
		return
	}
	l.fetchLocked(ctx, s, c, &fetch{policy: b.policy, size: size, fullSize: whole, sentAt: now, early: true})
}

// minPrefetch is the smallest batch whose successor is prefetched.
const minPrefetch = 8

// fetchLocked starts a fetch.
func (l *Lease) fetchLocked(ctx context.Context, s *shard, c *hashtable.Cell[view], f *fetch) {
	v := &c.Value
	f.done = make(chan struct{})
	v.fetch = f
	s.stats.Fetches++
	batch := backend.Request{Key: c.Key(), Policy: f.policy, Cost: f.size, Floor: v.floorLocked(), Trace: f.trace}
	ctx = context.WithoutCancel(ctx) // it serves all waiters
	l.running.Go(func() {
		result, err := l.inner.Take(ctx, batch)
		l.completeFetch(s, c, f, &batch, &result, err)
	})
}

// completeFetch stores the result of a fetch, and wakes its waiters.
func (l *Lease) completeFetch(s *shard, c *hashtable.Cell[view], f *fetch, req *backend.Request, result *backend.Result,
	err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(f.done)
	now := l.clock()
	v := &c.Value
	current := v.fetch == f // otherwise a reset has dropped it
	if current {
		v.fetch = nil
	}
	f.completed, f.err = true, err
	if err != nil { // while replies are lost, each fetch may lose a batch
		v.fetchFailed = true
		if !s.steady {
			v.size = 1
		}
		if !outcome.NothingExecuted(err) {
			s.stats.Lost += f.size
		}
		return
	}
	l.recordLoss(result, now)
	if result.Allowed {
		result.Lower(l.cause)
	}
	f.charged = *result
	f.charged.State = state.State{}
	s.mergeLocked(v, req, result, f.sentAt)
	if !result.Allowed {
		return
	}
	// The lease is shortened by the round trip, by how far the server's clock may be ahead of its reading, and by a drift of a
	// thousandth: other processes may begin the next window by the server's true time.
	took := now - f.sentAt
	f.deadline = f.sentAt + min(l.cfg.life(v.halfLife), (result.SpendBefore(result.Now)-result.Now)*999-took-int64(result.Behind))
	f.unreserved = f.size - f.reserved
	s.stats.Leased += max(f.joined, 0) // below 0 if the one that it was sent for has left
	if !current || s.closed {
		s.queueReturnLocked(c, &f.charged, f.policy, f.unreserved, now)
		return
	}
	v.life = f.deadline - f.sentAt
	if f.early && v.batch.left > 0 && f.unreserved > 0 {
		v.prefetched = f
		return
	}
	s.endLocked(c, now) // another process may have reset the key, so that the rest of the old batch counts no more
	v.startBatchLocked(f)
}

// await waits for the fetch that a request has joined.
func (l *Lease) await(ctx context.Context, s *shard, c *hashtable.Cell[view], f *fetch, req *backend.Request,
	joinedAt int64) (backend.Result, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		s.mu.Lock()
		if !f.completed {
			f.reserved -= req.Cost
			f.joined--
			s.mu.Unlock()
			trace(req.Trace, fetched, nil)
			return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Interrupted, Err: ctx.Err()}
		}
		s.mu.Unlock()
	}
	trace(req.Trace, fetched, f.trace)
	switch {
	case f.err != nil:
		return backend.Result{}, f.err
	case f.charged.Allowed && (joinedAt <= f.sentAt || joinedAt < f.deadline):
		result := f.charged
		f.charged.Part(&result.Verdict, req.Cost, f.unreserved)
		if joinedAt > f.sentAt { // maybe after the charge
			lowerIfBucket(&result, f.policy)
		}
		return result, nil
	}
	// The batch was denied, or its window had ended when the request came.
	now := l.clock()
	s.mu.Lock()
	if f.charged.Allowed {
		s.stats.Leased--
		s.queueReturnLocked(c, &f.charged, f.policy, req.Cost, now)
	}
	var result backend.Result
	switch v := &c.Value; {
	case s.spendLocked(c, req, now, &result):
		s.mu.Unlock()
		return result, nil
	case l.cfg.Recheck >= 0 && v.denyLocked(req, now, &result):
		s.stats.Denied++
		s.mu.Unlock()
		return result, nil
	}
	return l.forwardLocked(ctx, s, c.Value.hash, req, req, c.Value.floorLocked()) // req is its own name: long keys have no fetches
}

// The values of a Trace's Lease.
const (
	fetched   = "fetched"
	forwarded = "forwarded"
)

// trace records how the Lease served a request, and the calls of the fetch it shared.
func trace(t *backend.Trace, use string, shared *backend.Trace) {
	if t == nil {
		return
	}
	t.Lease = use
	if shared == nil {
		return
	}
	t.Side, t.Flag, t.FlagVersion = shared.Side, shared.Flag, shared.FlagVersion
	t.Shadowed, t.HandedOver = shared.Shadowed, shared.HandedOver
	t.Group, t.Node, t.Role = shared.Group, shared.Node, shared.Role
	t.Calls = append(t.Calls, shared.Calls...)
}
