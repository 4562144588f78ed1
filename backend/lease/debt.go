package lease

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/hashtable"
	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// With Config.Slack a Lease may owe: it admits first, and charges afterwards. These hold for each key of a process:
//
//  1. What it owes is all that it has admitted on credit and does not know to be charged: what is pending, what is under way,
//     and charges of unknown outcome for as long as they may count.
//  2. A request is admitted on credit only if it owes, with that, at most its allowance.
//  3. The allowance is a share of what remains as known, so at most a share of Max.
//  4. Only a reply lowers what it owes, by what was charged, in one step with what is then known to remain. A renewal at any
//     other time leaves what it owes as it is.
//
// The bound follows. Let T be the last moment at which a charge lifted a window above Max at the server. Before T the server
// holds at most Max. A reply to anything that runs after T says that nothing remains. Until a process has heard such a reply, it
// owes all that was admitted and not charged at T, with all that it has admitted since: by 2 and 3 one allowance. So a window's
// admissions, less what was given back, are at most Max and the largest allowance of each process. A process that restarts may owe
// a second one, for what it owed is never charged.
//
// A bucket has no windows. In any interval T it admits at most Burst x (1 + Slack) + rate x T, and Slack x Burst more for each
// time in T that a full burst takes to refill, if so many charges were lost.

// debt is what a key owes, and how much it may.
type debt struct {
	owed      int64
	allowance int64 // as of the last renewal
	stale     bool  // a reply has been merged since
	current   int   // the segment that admits
	segments  [2]segment
	flush     *flush // under way; one at a time
	floor     bool   // the server knew less than this process at the last reply to a charge: the next one brings a floor
	lost      []lostCharge

	notBefore, backoff int64 // of the next flush, after one that was not executed
	refusedUntil       int64 // no credit before that: the inner backend refuses charges to the key
	next               *hashtable.Cell[view]
	queued             bool // in the shard's list, where next is the one behind
}

// pending is what is not sent yet.
func (d *debt) pending() int64 { return d.segments[0].pending + d.segments[1].pending }

// segment is what is admitted in one window of each limit, or one sub-bucket: charged with one mark.
type segment struct {
	policy   *limit.Policy
	offer    state.Verdict // see state.State.Credit
	mark     state.Mark
	until    int64 // the server's time is certainly within the segment before that
	admitted int64 // server's time, at the latest, of the last admission; Unix microseconds
	offered  int64 // position of the offer under the first limit
	pending  int64 // not sent yet
	first    int64 // lowest position of that under the first limit
	last     int64 // highest position of that
	since    int64 // when the first of that was admitted
	underWay int64 // sent, and not answered
	checked  int64 // when loss of counts was last checked
	cause    error // of its admissions
}

// isFor reports whether a segment is for a policy's limits, and for the windows of a mark.
func (g *segment) isFor(p *limit.Policy, mark *state.Mark) bool {
	return g.policy != nil && sameLimits(g.policy, p) && g.mark.SameWindows(p, mark)
}

func (g *segment) empty() bool { return g.pending == 0 && g.underWay == 0 }

// lostCharge is a charge of unknown outcome.
type lostCharge struct {
	policy *limit.Policy
	mark   state.Mark
	until  int64 // Unix microseconds: it counts no longer
	cost   int64
}

const maxLostCharges = 8 // of a key, told apart

// BoundError is the cause of what a Lease with Config.Slack admits, by which it is [backend.Bounded]. It says by how much a window
// may hold more than Max, in as many processes as Config.Processes; a process that dies and is replaced counts again.
type BoundError struct {
	Slack     float64
	Processes int
	Least     int64
}

func (e *BoundError) Error() string {
	return fmt.Sprintf("%v: at most %d x max(floor(%v x Max / %d), %d) above Max", backend.ErrOnCredit, e.Processes, e.Slack, e.Processes, e.Least)
}

func (e *BoundError) Unwrap() error { return backend.ErrOnCredit }

// Above is by how much a window of l may hold more than its Max, or a bucket more than its Burst.
func (e *BoundError) Above(l limit.Limit) int64 {
	return int64(e.Processes) * e.allowance(&l, l.Quota())
}

// allowance is how much one process may owe while so much remains of a limit.
func (e *BoundError) allowance(l *limit.Limit, remaining int64) int64 {
	share := int64(float64(remaining) * e.Slack / float64(e.Processes))
	if l.Algorithm != limit.Bucket {
		share = max(share, min(e.Least, remaining))
	}
	return share
}

// serverSpan returns two moments, in Unix microseconds, that the server's time is between. It allows for a clock that drifts by a
// thousandth, and for jumps of the wall clock that may be steps or suspensions.
func (s *shard) serverSpan(v *view, now int64) (earliest, latest int64) {
	at, drift := v.serverAt(now), (now-v.serverReadAt)/1e6
	return at - drift - (s.lease.jumped()-v.serverJumped)/1000, at + drift + v.serverBehind/1000 + 1
}

// coversLocked reports whether a request can be admitted on credit by what is at hand.
func (d *debt) coversLocked(req *backend.Request, now int64) bool {
	g := &d.segments[d.current]
	return !d.stale && now < g.until && req.Cost <= d.allowance-d.owed && sameLimits(g.policy, req.Policy)
}

// oweLocked admits a request on credit, by what is at hand.
func (s *shard) oweLocked(c *hashtable.Cell[view], req *backend.Request, now int64, result *backend.Result) bool {
	v := &c.Value
	d := v.debt
	if d == nil || s.closed || !d.coversLocked(req, now) {
		return false
	}
	g := &d.segments[d.current]
	d.owed += req.Cost
	if g.pending == 0 {
		g.since, g.first = now, g.offered
		s.queueDebtLocked(c)
	}
	g.last = g.offered
	g.pending += req.Cost
	at := v.serverAt(now)
	g.admitted = at + v.serverBehind/1000 + 1
	g.offer.Owe(&result.Verdict, req.Cost, d.owed)
	if lost := s.lease.lostAt.Load(); g.checked <= lost {
		g.checked, g.cause = lost+1, s.lease.creditCause(req)
	}
	result.Now, result.Behind, result.Source = at, time.Duration(v.serverBehind), backend.OnCredit
	result.Guarantee, result.Cause = backend.Bounded, g.cause
	s.stats.OnCredit++
	return true
}

// creditCause is the cause of an admission on credit.
func (l *Lease) creditCause(req *backend.Request) error {
	if l.lostAt.Load() == math.MinInt64 {
		return l.bound
	}
	if doubt := l.Doubt(*req); doubt != nil {
		return errors.Join(doubt, l.bound)
	}
	return l.bound
}

// renewLocked computes the allowance again, and reports whether the request can be admitted on credit then. It begins another
// segment where the server's time has left the current one. Where replies carry no state, as those of memory.Memory, what remains
// is not known.
func (s *shard) renewLocked(c *hashtable.Cell[view], req *backend.Request, now int64) bool {
	v := &c.Value
	if s.closed || s.lease.uncharged.Load() || v.serverMicros == 0 || v.stateless || v.state.Empty() || len(req.Key) > keyhash.Longest {
		return false
	}
	d := v.debt
	if d != nil && (now < d.refusedUntil || d.unchangedLocked(req, now)) {
		return false
	}
	earliest, latest := s.serverSpan(v, now)
	var offer state.Verdict
	p := d.policyLocked(c, req)
	mark, ok := v.state.Credit(&offer, p, state.Moment(p, req.Key, earliest))
	if !ok {
		return false
	}
	end := offer.SpendBefore(earliest)
	if latest >= end {
		return false
	}
	if d == nil {
		d = new(debt)
		v.debt = d
	}
	s.forgetDebtLocked(d, earliest)
	g := &d.segments[d.current]
	switch other := &d.segments[1-d.current]; {
	case g.isFor(p, &mark):
	case other.isFor(p, &mark), !g.empty() && other.empty():
		d.current, g = 1-d.current, other
	case !g.empty(): // a third one has to wait
		return false
	}
	g.policy, g.offer, g.mark, g.until = p, offer, mark, now+(end-latest)*999
	receipt := offer.Receipt()
	_, g.offered, _ = receipt.Charge(0)
	g.checked, g.cause = now, s.lease.creditCause(req)
	d.allowance, d.stale = s.lease.bound.leastAllowance(&offer), false
	return d.coversLocked(req, now)
}

// policyLocked returns a copy of the policy of a request: its caller may change it later.
func (d *debt) policyLocked(c *hashtable.Cell[view], req *backend.Request) *limit.Policy {
	if d != nil {
		for _, i := range [...]int{d.current, 1 - d.current} {
			if p := d.segments[i].policy; p != nil && sameLimits(p, req.Policy) {
				return p
			}
		}
	}
	return &limit.Policy{Name: c.Policy(), Limits: slices.Clone(req.Policy.Limits)}
}

// unchangedLocked reports whether a renewal would change nothing.
func (d *debt) unchangedLocked(req *backend.Request, now int64) bool {
	g := &d.segments[d.current]
	return !d.stale && now < g.until && len(d.lost) == 0 && d.segments[1-d.current].empty() &&
		sameLimits(g.policy, req.Policy) && !hasBucket(req.Policy)
}

// leastAllowance is the least of a policy's limits, by what remains after an admission of 1.
func (e *BoundError) leastAllowance(offer *state.Verdict) int64 {
	least := int64(limit.MaxCount)
	for status := range offer.All() {
		least = min(least, e.allowance(&status.Limit, status.Remaining+1))
	}
	return least
}

// allowanceOrZero is how much the key may owe.
func (d *debt) allowanceOrZero() int64 {
	if d == nil {
		return 0
	}
	return d.allowance
}

// forgetDebtLocked drops what is owed to windows that are over. A pending charge of a bucket is sent however late it is.
func (s *shard) forgetDebtLocked(d *debt, earliest int64) {
	for i := range d.segments {
		g := &d.segments[i]
		if g.pending > 0 && !hasBucket(g.policy) && earliest >= g.mark.Until(g.policy) {
			s.stats.LostCharges += g.pending
			d.owed -= g.pending
			g.pending = 0
		}
	}
	d.lost = slices.DeleteFunc(d.lost, func(c lostCharge) bool {
		over := earliest >= c.until
		if over {
			d.owed -= c.cost
		}
		return over
	})
}

// loseLocked keeps a charge of unknown outcome as owed.
func (d *debt) loseLocked(p *limit.Policy, mark *state.Mark, cost int64) {
	until := mark.Until(p)
	if n := len(d.lost); n > 0 && (n == maxLostCharges || d.lost[n-1].until == until) {
		cost, until = cost+d.lost[n-1].cost, max(until, d.lost[n-1].until)
		d.lost = d.lost[:n-1]
	}
	d.lost = append(d.lost, lostCharge{p, *mark, until, cost})
}

// owesLocked reports whether a key owes, at the Lease's time now.
func (s *shard) owesLocked(v *view, now int64) bool {
	if v.debt == nil || v.debt.owed == 0 {
		return false
	}
	earliest, _ := s.serverSpan(v, now)
	s.forgetDebtLocked(v.debt, earliest)
	return v.debt.owed > 0
}

// forgiveLocked gives back what is owed, without a call, if a receipt is for the same windows, and returns the rest of amount. If
// the charge is not made yet, wait is true; with settled it is. A receipt of a lower position than all that a segment owes was
// charged before, such as ahead of a reset. One that is lower than some of it may have been: if it took what is pending, the server
// might not get as far as the position of what was admitted last, and would refuse that refund. Where a charge was lost the server
// is not asked: it may never have been charged.
func (d *debt) forgiveLocked(receipt *state.Receipt, amount int64, settled bool) (rest int64, wait bool) {
	p, mark, bucket := receipt.Policy(), receipt.Mark(), hasBucket(receipt.Policy())
	_, position, _ := receipt.Charge(0)
	for i := range d.segments {
		g := &d.segments[i]
		if settled || g.empty() || !g.isFor(p, &mark) {
			continue
		}
		if bucket { // what it gives back depends on when it was charged
			return amount, true
		}
		if position >= g.last && g.pending >= amount {
			g.pending -= amount
			d.owed -= amount
			return 0, false
		}
		if position >= g.first || g.underWay > 0 && position >= d.flush.first {
			return amount, true
		}
	}
	if bucket { // its receipt names no charge
		return amount, false
	}
	for i := range d.lost {
		if c := &d.lost[i]; sameLimits(c.policy, p) && c.mark.SameWindows(p, &mark) {
			given := min(amount, c.cost)
			c.cost -= given
			d.owed -= given
			amount -= given
		}
	}
	d.lost = slices.DeleteFunc(d.lost, func(c lostCharge) bool { return c.cost == 0 })
	return amount, false
}
