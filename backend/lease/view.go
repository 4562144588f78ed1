package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// view is what a Lease keeps of one key. Moments and spans are nanoseconds of the Lease's own clock, unless they are in
// Unix microseconds: those are by the clock of whoever decides.
type view struct {
	hash uint64
	used bool  // since the shard last looked for a view to forget
	seen int64 // when the key was last asked for

	state     state.State // what is known
	server    int64       // the decider's time, in Unix microseconds, when it was heard of; 0 for never
	heard     int64
	recheck   int64 // from when on a denial is checked again
	doubt     bool  // this process has given something back since, or may have: nothing is denied before an answer comes, or fails to
	remaining int64 // of the binding limit, as it was heard; until resets, in Unix microseconds
	resets    int64

	batch   batch
	owing   int           // parts of earlier batches that are on their way back
	lost    bool          // the last fetch failed: none is made until a take has succeeded
	policy  *limit.Policy // a copy of the one that was last leased under
	fetch   *fetch        // under way
	ahead   *fetch        // the next batch, which has landed before the one that is spent was used up
	size    int64         // of the next batch
	granted int64         // when the last batch was asked for
	life    int64         // and how long it could be held
}

// batch is a lease: what was charged in advance, and may be spent until the deadline.
type batch struct {
	left, size int64
	low        int64 // with less than this left the next one is fetched
	deadline   int64
	asked      int64 // when it was, or when it was last looked at whether counts have been lost since
	policy     *limit.Policy
	charged    backend.Result
}

// fetch is a batch under way, and those who wait for it.
type fetch struct {
	policy   *limit.Policy
	size     int64
	whole    int64 // what a batch is now; more than size where some of the last one was left
	promised int64 // to those who wait
	asked    int64
	early    bool           // nobody needs it yet
	trace    *backend.Trace // nil if whoever began it isn't traced; may be read once done is closed
	landed   bool

	done     chan struct{} // closed when what follows is set
	err      error
	charged  backend.Result
	spare    int64
	deadline int64
}

// serverAt is the decider's time, in Unix microseconds. It is behind by the time that a reply took at most.
func (v *view) serverAt(now int64) int64 { return v.server + (now-v.heard)/1000 }

func (v *view) at(req *backend.Request, now int64) state.At {
	return state.Moment(req.Policy, req.Key, v.serverAt(now))
}

// spendLocked admits a request from the lease.
func (s *shard) spendLocked(c *hashtable.Cell[view], req *backend.Request, now int64, result *backend.Result) bool {
	if !s.readyLocked(c, req, now) {
		return false
	}
	v := &c.Value
	v.batch.left -= req.Cost
	v.batch.charged.Part(&result.Verdict, req.Cost, v.batch.left)
	s.vouchLocked(v, req, now, result)
	s.stats.Leased++
	return true
}

// readyLocked reports whether the lease has what a request needs. It goes on to the next batch if that has.
func (s *shard) readyLocked(c *hashtable.Cell[view], req *backend.Request, now int64) bool {
	v := &c.Value
	if v.hasLocked(req, now) {
		return true
	}
	f := v.ahead
	if f == nil || req.Cost > f.spare || !sameLimits(f.policy, req.Policy) {
		return false
	}
	s.turnLocked(c, now)
	return v.hasLocked(req, now)
}

// turnLocked goes on to the next batch.
func (s *shard) turnLocked(c *hashtable.Cell[view], now int64) {
	f := c.Value.ahead
	c.Value.ahead = nil
	s.endLocked(c, now)
	c.Value.holdLocked(f)
}

// holdLocked makes what a fetch has brought the lease.
func (v *view) holdLocked(f *fetch) {
	b := &v.batch
	*b = batch{left: f.spare, size: f.spare, deadline: f.deadline, asked: f.asked, policy: f.policy, charged: f.charged}
	if f.whole >= leastAhead {
		b.low = f.whole / 4
	}
	if b.charged.Guarantee == backend.Exact && hasBucket(f.policy) {
		b.charged.Guarantee, b.charged.Cause = backend.Bounded, backend.ErrBucketLeased
	}
}

// heldLocked is what is leased and not spent.
func (v *view) heldLocked(now int64) (held int64) {
	if now < v.batch.deadline {
		held = v.batch.left
	}
	if v.ahead != nil && now < v.ahead.deadline {
		held += v.ahead.spare
	}
	return held
}

// hasLocked reports whether the batch has what a request needs.
func (v *view) hasLocked(req *backend.Request, now int64) bool {
	b := &v.batch
	return b.left >= req.Cost && now < b.deadline && sameLimits(b.policy, req.Policy)
}

// vouchLocked says when and by whom an admission from the lease is decided, and how sure that is.
func (s *shard) vouchLocked(v *view, req *backend.Request, now int64, result *backend.Result) {
	if lost, b := s.lease.lostAt.Load(), &v.batch; b.asked <= lost {
		b.asked = lost + 1
		if !tellsOfLoss(b.charged.Cause) {
			b.charged.Lower(s.lease.Doubt(*req))
		}
	}
	result.Now, result.Behind, result.Source = v.serverAt(now), v.batch.charged.Behind, backend.Leased
	result.Guarantee, result.Cause = v.batch.charged.Guarantee, v.batch.charged.Cause
}

// unspendLocked puts back what was spent from the lease, unless the next one is there, or on its way: there is room for one.
func (v *view) unspendLocked(receipt *state.Receipt, amount, now int64) bool {
	b := &v.batch
	if v.ahead != nil || v.fetch != nil && v.fetch.early {
		return false
	}
	if now >= b.deadline || amount > b.size-b.left || !b.charged.Covers(receipt) {
		return false
	}
	b.left += amount
	return true
}

// noteLoss remembers that a reply told of lost counts.
func (l *Lease) noteLoss(result *backend.Result, now int64) {
	if result.Cause != nil && tellsOfLoss(result.Cause) {
		l.lostAt.Store(now)
	}
}

func tellsOfLoss(cause error) bool {
	return errors.Is(cause, backend.ErrCountsLost) || errors.Is(cause, backend.ErrEvicted)
}

// denyLocked denies a request that what is known denies.
func (v *view) denyLocked(req *backend.Request, now int64, result *backend.Result) bool {
	return !v.doubt && v.wouldDenyLocked(req, now, result)
}

// wouldDenyLocked is denyLocked but for what this process may have given back.
func (v *view) wouldDenyLocked(req *backend.Request, now int64, result *backend.Result) bool {
	if v.server == 0 {
		return false
	}
	at := v.at(req, now)
	if v.state.PeekTo(&result.Verdict, req.Policy, at, req.Cost); result.Allowed {
		result.Verdict = state.Verdict{} // no verdict: others may have used what it shows as left
		return false
	}
	result.Now, result.Source = at.Micros, backend.LocalDeny
	return true
}

// floorLocked is a copy of what is known, for a take that leaves the lock; nil for nothing.
func (v *view) floorLocked() *state.State {
	if v.state.Empty() {
		return nil
	}
	floor := v.state.Clone()
	return &floor
}

// learnLocked takes in what a take has shown.
func (v *view) learnLocked(req *backend.Request, result *backend.Result, now int64) {
	if !result.State.Empty() {
		at := state.Moment(req.Policy, req.Key, result.Now)
		v.state.Join(req.Policy, at, &result.State)
		v.state.Forget(at)
	}
	v.lost, v.doubt = false, false
	if v.server == 0 || result.Now > v.serverAt(now) || now-v.heard > int64(time.Second) {
		v.server, v.heard = result.Now, now
	}
	binding := result.Binding()
	v.remaining, v.resets = binding.Remaining, binding.ResetAt.UnixMicro()
}

// nextSizeLocked is the size of the batch to ask for; at most 1 for none. A batch that was used up before half its life
// makes the next one larger.
func (v *view) nextSizeLocked(cfg *Config, p *limit.Policy, hot bool, now int64) int64 {
	if cfg.Batch < 0 || !hot || v.owing > 0 || v.lost {
		return 0
	}
	quota := smallestQuota(p)
	remaining := min(v.remaining, quota) // the key's policy may have changed
	if v.serverAt(now) >= v.resets {
		remaining = quota
	}
	most := remaining / int64(2*cfg.Processes)
	switch {
	case v.size == 0 && cfg.Batch > 0:
		v.size = cfg.Batch
	case v.size == 0:
		v.size = max(1, quota/firstShare)
	case !cfg.Steady && v.size < most && now-v.granted < v.life/2:
		v.size = min(v.size+(v.size+1)/2, most)
	}
	v.granted, v.life = now, int64(cfg.Life)
	return min(v.size, most)
}

// sendLocked leaves the lock, and sends a request on or has a batch fetched for it.
func (l *Lease) sendLocked(ctx context.Context, s *shard, c *hashtable.Cell[view], hash uint64, name, req *backend.Request, hot bool, now int64) (backend.Result, error) {
	if b := &c.Value.batch; b.left > 0 && now >= b.deadline {
		s.endLocked(c, now)
	}
	if f := l.boardLocked(ctx, s, c, req, hot, now); f != nil {
		s.mu.Unlock()
		return l.await(ctx, s, c, f, req, now)
	}
	return l.askLocked(ctx, s, hash, name, req, c.Value.floorLocked())
}

// askLocked leaves the lock, sends a request on, and learns from the answer.
func (l *Lease) askLocked(ctx context.Context, s *shard, hash uint64, name, req *backend.Request, floor *state.State) (backend.Result, error) {
	s.stats.Straight++
	s.mu.Unlock()
	trace(req.Trace, backend.Passed, nil)
	req.Floor = floor
	result, err := l.inner.Take(ctx, *req)
	if err != nil {
		return result, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, now := s.cells.Find(hash, name.Policy.Name, name.Key), l.clock()
	l.noteLoss(&result, now)
	if c == nil && !s.closed {
		if c = s.addLocked(hash, name, now); c != nil {
			c.Value.seen, c.Value.recheck = now, now+int64(l.cfg.Recheck)
		}
	}
	if c == nil {
		return result, nil
	}
	v := &c.Value
	v.learnLocked(req, &result, now)
	if f := v.fetch; !result.Allowed && f != nil { // what was too much for this request may be on its way in that
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

// boardLocked finds the fetch that brings what a request needs, or starts one; nil if the request has to go by itself.
func (l *Lease) boardLocked(ctx context.Context, s *shard, c *hashtable.Cell[view], req *backend.Request, hot bool, now int64) *fetch {
	v := &c.Value
	if f := v.fetch; f != nil {
		if req.Cost > f.size-f.promised || !sameLimits(f.policy, req.Policy) {
			return nil
		}
		f.promised += req.Cost
		return f
	}
	if v.ahead != nil { // which hasn't what is needed, and ends when another one lands
		s.turnLocked(c, now)
	}
	if len(req.Key) > keyhash.Longest { // what would go back later needs the whole key
		return nil
	}
	size := v.nextSizeLocked(&l.cfg, req.Policy, hot, now)
	if size <= req.Cost || s.closed {
		return nil
	}
	if v.policy == nil || !sameLimits(v.policy, req.Policy) {
		v.policy = &limit.Policy{Name: c.Policy(), Limits: slices.Clone(req.Policy.Limits)}
	}
	f := &fetch{policy: v.policy, size: size, whole: size, promised: req.Cost, asked: now}
	if req.Trace != nil {
		f.trace = new(backend.Trace)
	}
	l.fetchLocked(ctx, s, c, f)
	return f
}

// fetchAheadLocked fetches the next batch of a key before the one it has is used up, so that nobody waits for it, if that
// one is being spent fast enough for the next to be larger. The two together are no more than one.
func (l *Lease) fetchAheadLocked(ctx context.Context, s *shard, c *hashtable.Cell[view], now int64) {
	v := &c.Value
	b := &v.batch
	b.low = 0 // it is tried once
	if v.fetch != nil || v.ahead != nil || s.closed || now-v.granted >= v.life/2 {
		return
	}
	whole := v.nextSizeLocked(&l.cfg, b.policy, true, now)
	size := whole - b.left - 1
	if size < leastAhead/2 {
		return
	}
	l.fetchLocked(ctx, s, c, &fetch{policy: b.policy, size: size, whole: whole, asked: now, early: true})
}

// leastAhead is the smallest batch that the next one is fetched ahead of.
const leastAhead = 8

// fetchLocked asks for a batch.
func (l *Lease) fetchLocked(ctx context.Context, s *shard, c *hashtable.Cell[view], f *fetch) {
	v := &c.Value
	f.done = make(chan struct{})
	v.fetch = f
	s.stats.Fetches++
	batch := backend.Request{Key: c.Key(), Policy: f.policy, Cost: f.size, Floor: v.floorLocked(), Trace: f.trace}
	ctx = context.WithoutCancel(ctx) // it is for all who wait
	l.running.Go(func() {
		result, err := l.inner.Take(ctx, batch)
		l.land(s, c, f, &batch, &result, err)
	})
}

// land takes in what a fetch has brought, and wakes those who wait for it.
func (l *Lease) land(s *shard, c *hashtable.Cell[view], f *fetch, req *backend.Request, result *backend.Result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(f.done)
	now := l.clock()
	v := &c.Value
	wanted := v.fetch == f // otherwise a reset came in between
	if wanted {
		v.fetch = nil
	}
	f.landed, f.err = true, err
	if err != nil { // as long as replies are lost, a batch each would be, too
		v.lost = true
		if !s.steady {
			v.size = 1
		}
		if failed, ok := errors.AsType[*backend.Error](err); ok && failed.MayHaveCharged {
			s.stats.Lost += f.size
		}
		return
	}
	l.noteLoss(result, now)
	f.charged = *result
	f.charged.State = state.State{}
	v.learnLocked(req, result, now)
	if !result.Allowed {
		return
	}
	// Both ends of the reply's way are held against the lease, for a decider that says when it decided, and what it may be
	// ahead of that, for one whose clock was read before: others may begin the next window by its true time.
	took := now - f.asked
	f.deadline = f.asked + min(int64(l.cfg.Life), (result.SpendBefore(result.Now)-result.Now)*1000-took-int64(result.Behind))
	f.spare = f.size - f.promised
	if !wanted || s.closed {
		s.oweLocked(c, &f.charged, f.policy, f.spare, now)
		return
	}
	v.life = f.deadline - f.asked
	if f.early && v.batch.left > 0 && f.spare > 0 {
		v.ahead = f
		return
	}
	s.endLocked(c, now) // what is left may be worth nothing any more, if another process has reset the key
	v.holdLocked(f)
}

// await waits for the fetch that a request has boarded.
func (l *Lease) await(ctx context.Context, s *shard, c *hashtable.Cell[view], f *fetch, req *backend.Request, boarded int64) (backend.Result, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		s.mu.Lock()
		if !f.landed {
			f.promised -= req.Cost
			s.mu.Unlock()
			trace(req.Trace, backend.Fetched, nil)
			return backend.Result{}, &backend.Error{Op: "take", Kind: backend.Interrupted, Err: ctx.Err()}
		}
		s.mu.Unlock()
	}
	trace(req.Trace, backend.Fetched, f.trace)
	switch {
	case f.err != nil:
		return backend.Result{}, f.err
	case f.charged.Allowed && (boarded <= f.asked || boarded < f.deadline):
		result := f.charged
		f.charged.Part(&result.Verdict, req.Cost, f.spare)
		return result, nil
	}
	// The batch was more than there was, or it came for a window that was over when the request did.
	now := l.clock()
	s.mu.Lock()
	if f.charged.Allowed {
		s.oweLocked(c, &f.charged, f.policy, req.Cost, now)
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
	return l.askLocked(ctx, s, c.Value.hash, req, req, c.Value.floorLocked()) // a long key is not fetched for
}

func hasBucket(p *limit.Policy) bool {
	return slices.ContainsFunc(p.Limits, func(l limit.Limit) bool { return l.Algorithm == limit.Bucket })
}

// trace records what the Lease did, and the calls of a fetch that was made for several requests.
func trace(t *backend.Trace, use backend.LeaseUse, fetched *backend.Trace) {
	if t == nil {
		return
	}
	t.Lease = use
	if fetched == nil {
		return
	}
	t.Side, t.Flag, t.FlagVersion = fetched.Side, fetched.Flag, fetched.FlagVersion
	t.Shadowed, t.HandedOver = fetched.Shadowed, fetched.HandedOver
	t.Visit(fetched.Group, fetched.Node, fetched.Role)
	t.Calls = append(t.Calls, fetched.Calls...)
}
