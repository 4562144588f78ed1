package state

import (
	"time"

	"github.com/sluice-go/sluice/limit"
)

// A lease is a charge that its holder spends later, in parts. It never exceeds a limit as long as each part is spent before a
// charge made at that time would count for longer than the lease does: within one window, or one sub-bucket of a sliding
// limit. A bucket has no windows. Its tokens refill while they are leased, so its bound grows by the lease; MaxBucketLease
// keeps that short.

// MaxBucketLease is how long a lease on a token bucket may be held.
const MaxBucketLease = time.Second

// SpendBefore is the moment, in Unix microseconds, before which all that an admission at now charged must be spent,
// if it is a lease.
func (v *Verdict) SpendBefore(now int64) int64 {
	before := never
	for i := range v.policy.Limits {
		l, end := &v.policy.Limits[i], v.outcome(i).reset
		switch l.Algorithm {
		case limit.SlidingWindow:
			end -= (l.Window - l.Precision).Microseconds()
		case limit.Bucket:
			end = now + MaxBucketLease.Microseconds()
		}
		before = min(before, end)
	}
	return before
}

// CountsUntil is the moment, in Unix microseconds, from which on nothing counts of what an admission charged.
func (v *Verdict) CountsUntil() int64 {
	var until int64
	for i := range v.policy.Limits {
		until = max(until, v.outcome(i).reset)
	}
	return until
}

// Part fills in the verdict on a part of what an admission charged in advance, when spare of that is left behind it.
func (v *Verdict) Part(part *Verdict, cost, spare int64) {
	*part = *v
	part.cost, part.spare = cost, spare
}

// Offer is the verdict on a request that would be a part of what an admission charged in advance, of which spare is left.
func (v *Verdict) Offer(spare int64) (offer Verdict) {
	offer.of(v.policy)
	offer.Allowed, offer.binding, offer.spare = true, v.binding, spare
	for i := range v.policy.Limits {
		f := v.outcome(i)
		*offer.outcome(i) = outcome{remaining: f.remaining, reset: f.reset}
	}
	return offer
}

// Covers reports whether a receipt is for a part of what v charged.
func (v *Verdict) Covers(r *Receipt) bool {
	if v.cost == 0 || r.policy != v.policy {
		return false
	}
	for i := range v.policy.Limits {
		if v.chargeRef(i) != r.chargeRef(i) {
			return false
		}
	}
	return true
}
