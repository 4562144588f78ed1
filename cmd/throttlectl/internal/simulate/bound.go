package simulate

import (
	"time"

	"github.com/sluice-go/sluice/limit"
)

// admissionBound is the most that a policy may admit to a key in any interval of a length, by what package limit says of each of
// its limits.
func admissionBound(p *limit.Policy, length time.Duration) int64 {
	least := limit.MaxCount
	for i := range p.Limits {
		least = min(least, limitBound(&p.Limits[i], length))
	}
	return least
}

func limitBound(l *limit.Limit, length time.Duration) int64 {
	times := func(n int64) int64 { // without overflow: more than MaxCount is as good as that
		if n > limit.MaxCount/l.Max {
			return limit.MaxCount
		}
		return n * l.Max
	}
	switch l.Algorithm {
	case limit.SlidingWindow: // touches so many sub-buckets, of which each Window/Precision in a row hold Max
		return times(ceil(ceil(int64(length), int64(l.Precision))+1, int64(l.Window/l.Precision)))
	case limit.Bucket:
		// An interval without its end holds Burst and what refills before the end. In floats, which are exact up to
		// MaxCount, and beyond it nobody counts.
		return int64(min(float64(l.Burst)+float64(l.Max)*(float64(length)/float64(l.Window)), float64(limit.MaxCount)))
	}
	return times(ceil(int64(length), int64(l.Window)) + 1)
}

func ceil(n, by int64) int64 { return (n + by - 1) / by }

// peak is the most that a key was admitted in any interval of a length, without its end, and when that began.
type peak struct {
	length int64 // in microseconds
	most   int64
	from   int64 // Unix microseconds
	key    string
}

// admissionLog is what a key was admitted lately: for as long as the longest interval.
type admissionLog struct {
	charges []charge
	windows []trailingWindow // for each length, shortest first
}

type charge struct{ at, cost int64 }

// trailingWindow is the charges within one length of now: from first on.
type trailingWindow struct {
	first int
	sum   int64
}

// record enters a charge, and what it makes of each peak. It returns by how many charges the ledger has grown.
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

// expired reports whether nothing that the ledger holds can be in an interval with a charge from now on.
func (l *admissionLog) expired(now, longest int64) bool {
	n := len(l.charges)
	return n == 0 || l.charges[n-1].at <= now-longest
}
