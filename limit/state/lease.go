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

// LongestLease is how long a lease under a policy can be held at most: its shortest window or sub-bucket.
func LongestLease(p *limit.Policy) time.Duration {
	longest := limit.MaxWindow
	for i := range p.Limits {
		switch l := &p.Limits[i]; l.Algorithm {
		case limit.SlidingWindow:
			longest = min(longest, l.Precision)
		case limit.Bucket:
			longest = min(longest, MaxBucketLease)
		default:
			longest = min(longest, l.Window)
		}
	}
	return longest
}

// HalfLife is how long half of what remains lasts at the mean rate of the window so far: elapsed x remaining / (2 x used), the
// least over all limits. A window in which nothing is used sets no bound; without any bound it is limit.MaxWindow. A bucket has
// no window, and no half-life: it is 0.
//
// At the beginning of a fixed window most of what is used is leased and not spent yet, so elapsed counts an eighth of the window
// more: without it a fleet made a half more calls.
func (v *Verdict) HalfLife(now int64) time.Duration {
	half := float64(limit.MaxWindow)
	for i := range v.policy.Limits {
		l, f := &v.policy.Limits[i], v.outcome(i)
		if l.Algorithm == limit.Bucket {
			return 0
		}
		used, elapsed := l.Max-f.remaining, l.Window
		if used <= 0 {
			continue
		}
		if l.Algorithm == limit.FixedWindow {
			elapsed = max(l.Window-time.Duration(f.reset-now)*time.Microsecond, 0) + l.Window/8
		}
		half = min(half, float64(elapsed)*float64(f.remaining)/(2*float64(used)))
	}
	return time.Duration(half)
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
