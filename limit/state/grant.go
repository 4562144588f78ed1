package state

import "github.com/sluice-go/sluice/limit"

// Grant gives back up to extra of what is used under each limit of the policy, whatever was charged: the key may then spend
// that much more until the window ends. It is a refund without a receipt, so used never falls below 0 and no key has more than
// its quota. Let true use be what was charged less what receipts gave back; then
//
//	true use - the sum of all grants <= used <= true use
//
// in every order of charges, refunds and grants, because a refund takes at most what is used (refunds of a bucket may give back
// less). A window therefore admits at most Max and what was granted in it. Copies join as ever: a grant only grows refunded, or
// credit.
//
// A sliding window gives back its newest sub-buckets first, because those count the longest. A bucket gives back at most its
// Burst.
func (s *State) Grant(p *limit.Policy, now At, extra int64) {
	s.alignTo(p)
	for i := range p.Limits {
		e, l := &s.entries[i], &p.Limits[i]
		switch {
		case e.empty(now):
		case l.Algorithm == limit.SlidingWindow:
			e.grantSliding(extra)
		case l.Algorithm == limit.Bucket:
			e.grantBucket(l, now, extra)
		default:
			e.count.grant(extra)
		}
	}
}

// grant refunds up to extra, and returns how much it refunded.
func (c *count) grant(extra int64) int64 {
	extra = min(extra, c.used())
	c.refunded += extra
	return extra
}

func (e *entry) grantSliding(extra int64) {
	for j := range e.subs {
		given := e.subs[j].grant(extra)
		e.used -= given
		extra -= given
	}
}

func (e *entry) grantBucket(l *limit.Limit, now At, extra int64) {
	now.Micros = max(now.Micros, e.lastCharge)
	left := e.fullAt(l, now).minus(span{micros: now.Micros}, l.Max)
	if give := refillTime(l, min(extra, l.Burst)); give.less(left) {
		left = give
	}
	e.addCredit(l, left)
}
