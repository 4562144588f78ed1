package limit

import (
	"errors"
	"math"
	"math/bits"
	"time"
)

const (
	// MaxCount is the largest cost, Max and Burst: 2^53-1, the largest integer that Lua's numbers hold exactly.
	MaxCount int64 = 1<<53 - 1

	// MaxWindow is the longest Window, and the longest time in which a bucket may refill.
	MaxWindow = 10 * 366 * 24 * time.Hour

	// MaxSubBuckets is the largest Window / Precision of a sliding window.
	MaxSubBuckets = 120

	// Never is the RetryAfter of a request that can never pass.
	Never = time.Duration(math.MaxInt64)

	maxRate    int64 = 1 << 52 // of a bucket: two fractions of a microsecond must add up exactly in a Lua number
	maxSliding int64 = 1 << 46 // Max of a sliding window
)

// Lua's numbers hold the sum of all sub-buckets of a window, and a cost, exactly: a negative constant doesn't compile.
const _ = uint64(MaxCount - (MaxSubBuckets+1)*maxSliding)

// Algorithm is how a limit counts.
type Algorithm uint8

const (
	FixedWindow   Algorithm = iota + 1 // one count per window
	SlidingWindow                      // one count per sub-bucket of the window
	Bucket                             // a token bucket (GCRA)
)

// Alignment is when the windows of a fixed limit start.
type Alignment uint8

const (
	FirstRequest Alignment = iota // at the first admitted request; the zero value
	ClockAligned                  // at multiples of Window since the Unix epoch
	KeyStaggered                  // as ClockAligned, shifted by a hash of the key
)

// Limit is at most Max cost per Window, under one algorithm. Make one with [Fixed], [Sliding], [TokenBucket], a
// shorthand such as [PerSecond], or [Parse]. The zero value is not a valid limit. Limits are comparable.
//
// What a limit has counted belongs to its algorithm, window, precision and alignment: a changed Max or Burst
// applies at once to the running window; a change of another field starts with empty counts.
type Limit struct {
	Name      string // [a-z0-9_-]{1,32}, or empty
	Max       int64  // per Window; for a bucket the tokens that come back per Window
	Burst     int64  // bucket only: the tokens it holds
	Window    time.Duration
	Precision time.Duration // sliding only: the width of a sub-bucket
	Algorithm Algorithm
	Alignment Alignment // fixed only
}

// Fixed allows max per window. The window starts at the first admitted request and ends window later; whatever
// the moment, no interval T admits more than max x (ceil(T/window) + 1). The window is a whole number of
// milliseconds.
func Fixed(max int64, window time.Duration) Limit {
	return Limit{Algorithm: FixedWindow, Max: max, Window: window}
}

// Sliding allows max in any window, blurred by one precision: requests are counted in sub-buckets of that width, and
// count for the length of window from the start of their sub-bucket. So any window - precision holds at most max.
// Precision must divide window into at most [MaxSubBuckets]; both are whole milliseconds. Precision = window is the
// same as an aligned fixed window. The idea is Josiah Carlson's ("Introduction to rate limiting with Redis").
func Sliding(max int64, window, precision time.Duration) Limit {
	return Limit{Algorithm: SlidingWindow, Max: max, Window: window, Precision: precision}
}

// Counter counts and doesn't deny: with Throttler.Usage it says how often a key did something within any time up to window, blurred
// by precision. The idea is Chris O'Hara's add and count ("Rate limiting with Redis"). It stands alone in a policy, or beside
// limits, and counts what passes those.
//
// It is a Sliding limit with the largest Max that one can have, 2^46 in a window: a thousand units a millisecond for two years.
// Only what is above that it denies. It shares the counts of Sliding limits with the same window and precision. Headers don't
// show it, and NearLimit observers and leases leave it out of account.
func Counter(window, precision time.Duration) Limit { return Sliding(maxSliding, window, precision) }

// IsCounter reports whether the limit is a [Counter].
func (l *Limit) IsCounter() bool { return l.Algorithm == SlidingWindow && l.Max == maxSliding }

// TokenBucket holds up to burst tokens, of which rate come back evenly per per. No interval T admits more than
// burst + rate x T/per. It is exact GCRA: fractions of a microsecond are kept. Per is a whole number of
// microseconds.
func TokenBucket(rate int64, per time.Duration, burst int64) Limit {
	return Limit{Algorithm: Bucket, Max: rate, Window: per, Burst: burst}
}

// PerSecond is Fixed(max, time.Second).
func PerSecond(max int64) Limit { return Fixed(max, time.Second) }

// PerMinute is Fixed(max, time.Minute).
func PerMinute(max int64) Limit { return Fixed(max, time.Minute) }

// PerHour is Fixed(max, time.Hour).
func PerHour(max int64) Limit { return Fixed(max, time.Hour) }

// PerDay is Fixed(max, 24*time.Hour).
func PerDay(max int64) Limit { return Fixed(max, 24*time.Hour) }

// Named returns the limit with a name for decisions, headers and metrics.
func (l Limit) Named(name string) Limit { l.Name = name; return l }

// Aligned makes the windows of a fixed limit start at multiples of Window since the Unix epoch, in UTC.
func (l Limit) Aligned() Limit { l.Alignment = ClockAligned; return l }

// Staggered makes the windows of a fixed limit start at multiples of Window shifted by a hash of the key, so
// that not every key gets its quota back in the same instant.
func (l Limit) Staggered() Limit { l.Alignment = KeyStaggered; return l }

// Quota is what a key that has used nothing may spend at once: Burst for a bucket, else Max.
func (l *Limit) Quota() int64 {
	if l.Algorithm == Bucket {
		return l.Burst
	}
	return l.Max
}

// Validate reports everything that is wrong with the limit, as [*Error] values joined.
func (l Limit) Validate() error {
	var errs []error
	bad := func(field string, value any, format string, args ...any) {
		errs = append(errs, refuse(field, value, format, args...))
	}
	if l.Name != "" && !validName(l.Name) {
		bad("name", quoted(l.Name), "must match [a-z0-9_-]{1,32}")
	}
	if l.Max < 1 || l.Max > MaxCount {
		bad("max", l.Max, "must be from 1 to %d", MaxCount)
	}
	unit := time.Millisecond
	if l.Algorithm == Bucket {
		unit = time.Microsecond
	}
	windowOK := l.Window >= unit && l.Window <= MaxWindow && l.Window%unit == 0
	if !windowOK {
		bad("window", l.Window, "must be a whole number of %s from %s to %s", unit, unit, MaxWindow)
	}
	if l.Alignment != FirstRequest && l.Algorithm != FixedWindow {
		bad("alignment", l.Alignment, "only fixed windows can be aligned or staggered")
	}
	if l.Alignment > KeyStaggered {
		bad("alignment", l.Alignment, "unknown")
	}
	if l.Algorithm != SlidingWindow && l.Precision != 0 {
		bad("precision", l.Precision, "only sliding windows have one")
	}
	if l.Algorithm != Bucket && l.Burst != 0 {
		bad("burst", l.Burst, "only token buckets have one")
	}
	switch l.Algorithm {
	case FixedWindow:
	case SlidingWindow:
		if l.Max > maxSliding {
			bad("max", l.Max, "of a sliding window must be from 1 to %d", maxSliding)
		}
		switch {
		case l.Precision < time.Millisecond || l.Precision%time.Millisecond != 0:
			bad("precision", l.Precision, "must be a whole number of %s from %s", time.Millisecond, time.Millisecond)
		case windowOK && (l.Precision > l.Window || l.Window%l.Precision != 0):
			bad("precision", l.Precision, "must divide the window of %s", l.Window)
		case windowOK && l.Window/l.Precision > MaxSubBuckets:
			bad("precision", l.Precision, "must be at least %s: at most %d sub-buckets", l.Window/MaxSubBuckets, MaxSubBuckets)
		}
	case Bucket:
		if l.Max > maxRate {
			bad("max", l.Max, "of a bucket must be from 1 to %d", maxRate)
		}
		if l.Burst < 1 || l.Burst > MaxCount {
			bad("burst", l.Burst, "must be from 1 to %d", MaxCount)
		} else if windowOK && l.Max >= 1 && !l.refillsWithin(MaxWindow) {
			bad("burst", l.Burst, "must refill within %s", MaxWindow)
		}
	default:
		bad("algorithm", l.Algorithm, "unknown: use Fixed, Sliding, TokenBucket or Parse")
	}
	return errors.Join(errs...)
}

// refillsWithin reports whether Burst x Window / Max <= d, exactly.
func (l *Limit) refillsWithin(d time.Duration) bool {
	hi, lo := bits.Mul64(uint64(l.Burst), uint64(l.Window/time.Microsecond))
	limitHi, limitLo := bits.Mul64(uint64(l.Max), uint64(d/time.Microsecond))
	return hi < limitHi || hi == limitHi && lo <= limitLo
}

func validName(s string) bool {
	if len(s) == 0 || len(s) > 32 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// Refill is the time in which a bucket gets cost tokens back: micros + fraction/Max microseconds, at most [MaxCount] of them. For
// a valid limit and a cost up to its Burst that is at most [MaxWindow].
func (l *Limit) Refill(cost int64) (micros, fraction int64) {
	const longest = uint64(MaxCount)
	hi, lo := bits.Mul64(uint64(cost), uint64(l.Window/time.Microsecond))
	if hi < uint64(l.Max) { // else the quotient has more than 64 bits
		if whole, rest := bits.Div64(hi, lo, uint64(l.Max)); whole < longest {
			return int64(whole), int64(rest)
		}
	}
	return int64(longest), 0
}
