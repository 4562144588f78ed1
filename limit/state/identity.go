package state

import (
	"time"

	"github.com/sluice-go/sluice/internal/keyhash"
	"github.com/sluice-go/sluice/limit"
)

// identity is what a limit's counts belong to.
type identity struct {
	window    time.Duration
	parts     uint8 // sliding: window / precision, the number of sub-buckets
	algorithm limit.Algorithm
	alignment limit.Alignment
}

func identityOf(l *limit.Limit) identity {
	id := identity{window: l.Window, algorithm: l.Algorithm, alignment: l.Alignment}
	if l.Precision > 0 {
		id.parts = uint8(l.Window / l.Precision)
	}
	return id
}

// precision is the width of a sub-bucket; 0 unless the limit is sliding.
func (id identity) precision() time.Duration {
	if id.parts == 0 {
		return 0
	}
	return id.window / time.Duration(id.parts)
}

// has reports whether a limit of the policy has this identity.
func has(p *limit.Policy, id identity) bool {
	for i := range p.Limits {
		if identityOf(&p.Limits[i]) == id {
			return true
		}
	}
	return false
}

// AppendID appends the limit's identity as it stands in a stored state, such as "f1m" or "s1h~1m".
func AppendID(b []byte, l *limit.Limit) []byte { return identityOf(l).appendText(b) }

// End is the end, in Unix milliseconds, of the window that the first charge at now would open; of a sliding limit, the
// moment at which the sub-bucket of now leaves the window. It is 0 for a bucket, which has no windows.
func End(l *limit.Limit, now At) int64 {
	switch l.Algorithm {
	case limit.SlidingWindow:
		return slidingEnd(identityOf(l), now) / 1000
	case limit.Bucket:
		return 0
	}
	return fixedEnd(identityOf(l), now) / 1000
}

// Horizon is the longest time for which a charge can count: the longest window, or the time in which a full burst
// refills.
func Horizon(p *limit.Policy) time.Duration {
	var longest time.Duration
	for i := range p.Limits {
		l := &p.Limits[i]
		counts := l.Window
		if l.Algorithm == limit.Bucket {
			micros, _ := l.Refill(l.Burst)
			counts = time.Duration(micros+1) * time.Microsecond
		}
		longest = max(longest, counts)
	}
	return longest
}

// Moment is the moment micros, in Unix microseconds, for a key. It hashes the key only if a limit of the policy is
// staggered.
func Moment(p *limit.Policy, key string, micros int64) At {
	at := At{Micros: micros}
	for i := range p.Limits {
		if p.Limits[i].Alignment == limit.KeyStaggered {
			at.Phase = keyhash.Sum(key)
			break
		}
	}
	return at
}
