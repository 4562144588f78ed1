package simulate

import (
	"time"

	"github.com/sluice-go/sluice/limit"
)

// admissionBound is the most that a policy may admit to a key in any interval of a length, as package limit documents for each
// limit.
func admissionBound(p *limit.Policy, length time.Duration) int64 {
	least := limit.MaxCount
	for i := range p.Limits {
		least = min(least, limitBound(&p.Limits[i], length))
	}
	return least
}

func limitBound(l *limit.Limit, length time.Duration) int64 {
	times := func(n int64) int64 { // at most MaxCount
		if n > limit.MaxCount/l.Max {
			return limit.MaxCount
		}
		return n * l.Max
	}
	switch l.Algorithm {
	case limit.SlidingWindow: // the sub-buckets that it touches, of which each Window/Precision in a row hold Max
		return times(ceil(ceil(int64(length), int64(l.Precision))+1, int64(l.Window/l.Precision)))
	case limit.Bucket:
		// Burst, and what refills before the end, which is not part of the interval. Floats are exact up to MaxCount.
		return int64(min(float64(l.Burst)+float64(l.Max)*(float64(length)/float64(l.Window)), float64(limit.MaxCount)))
	}
	return times(ceil(int64(length), int64(l.Window)) + 1)
}

func ceil(n, by int64) int64 { return (n + by - 1) / by }

// peak is the most that was admitted to a key in any interval of a length, without its end, and when that began.
type peak struct {
	length int64 // in microseconds
	most   int64
	from   int64 // Unix microseconds
	key    string
}

// admissionLog is what was admitted to a key within the longest interval.
type admissionLog struct {
	charges []charge
	windows []trailingWindow // by length, the shortest first
}

type charge struct{ at, cost int64 }

// trailingWindow is the charges within one length before now, from the index first on.
type trailingWindow struct {
	first int
	sum   int64
}

// record adds a charge and updates the peaks. It returns by how many charges the log has grown.
func (l *admissionLog) record(key string, at, cost int64, peaks []peak) int {
	before := len(l.charges)
	if last := before - 1; last >= 0 && l.charges[last].at == at {
		l.charges[last].cost += cost
	} else {
		l.charges = append(l.charges, charge{at, cost})
	}
	if l.windows == nil {
		l.windows = make([]trailingWindow, len(peaks))
	}
	for i := range peaks {
		t, p := &l.windows[i], &peaks[i]
		t.sum += cost
		for l.charges[t.first].at <= at-p.length {
			t.sum -= l.charges[t.first].cost
			t.first++
		}
		if t.sum > p.most {
			p.most, p.from, p.key = t.sum, l.charges[t.first].at, key
		}
	}
	if gone := l.windows[len(peaks)-1].first; gone > 64 && gone > len(l.charges)/2 {
		l.charges = l.charges[:copy(l.charges, l.charges[gone:])]
		for i := range l.windows {
			l.windows[i].first -= gone
		}
	}
	return len(l.charges) - before
}

// expired reports whether no charge can be in one interval with a later one.
func (l *admissionLog) expired(now, longest int64) bool {
	n := len(l.charges)
	return n == 0 || l.charges[n-1].at <= now-longest
}
