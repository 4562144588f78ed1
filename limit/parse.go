package limit

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/durationtext"
)

// Parse reads the text form of a limit:
//
//	100/1m             fixed, 100 a minute from the first request
//	100/1m@aligned     fixed, windows at multiples of a minute
//	100/1m@staggered   fixed, aligned and shifted by a hash of the key
//	240/1h~1m          sliding, in sub-buckets of a minute
//	count/1h~1m        counter, in sub-buckets of a minute
//	10/1s+20           token bucket, 10 a second, burst 20
//	daily=1000/24h     any of them with a name
//
// Durations are Go's ("90s", "1h30m"). The limit returned is valid.
func Parse(s string) (Limit, error) {
	l, err := parse(s)
	if err != nil {
		return Limit{}, fmt.Errorf("limit: %w", err)
	}
	if err := l.Validate(); err != nil {
		return Limit{}, fmt.Errorf("limit: parse %s: %w", quoted(s), err)
	}
	return l, nil
}

func parse(s string) (Limit, error) {
	fail := func(bound string) (Limit, error) { return Limit{}, refuse("text", quoted(s), "%s", bound) }

	l := Limit{Algorithm: FixedWindow}
	rest := s
	if name, after, ok := strings.Cut(rest, "="); ok {
		if !validName(name) {
			return fail("the name before = must match [a-z0-9_-]{1,32}")
		}
		l.Name, rest = name, after
	}
	max, window, ok := strings.Cut(rest, "/")
	if !ok {
		return fail(`must look like 100/1m, 240/1h~1m or 10/1s+20`)
	}
	var err error
	if max == counted {
		l.Max = maxSliding
		if !strings.Contains(window, "~") {
			return fail("a counter needs a precision, as in count/1h~1m")
		}
	} else if l.Max, err = parseCount(max); err != nil {
		return fail("the part before / must be a whole number, or count")
	}
	if i := strings.IndexAny(window, "~+@"); i >= 0 {
		suffix := window[i+1:]
		switch window[i] {
		case '~':
			l.Algorithm = SlidingWindow
			if l.Precision, err = parseDuration(suffix); err != nil {
				return fail("the part after ~ must be a duration, such as 1s")
			}
		case '+':
			l.Algorithm = Bucket
			if l.Burst, err = parseCount(suffix); err != nil {
				return fail("the part after + must be a whole number")
			}
		case '@':
			switch suffix {
			case ClockAligned.String():
				l.Alignment = ClockAligned
			case KeyStaggered.String():
				l.Alignment = KeyStaggered
			default:
				return fail("the part after @ must be aligned or staggered")
			}
		}
		window = window[:i]
	}
	if l.Window, err = parseDuration(window); err != nil {
		return fail("the part after / must be a duration, such as 90s or 1h30m")
	}
	return l, nil
}

// counted is the text of a counter in the place of Max.
const counted = "count"

// parseCount takes digits only: no sign, no underscore.
func parseCount(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err
}

// parseDuration takes Go's durations without a sign.
func parseDuration(s string) (time.Duration, error) {
	if strings.HasPrefix(s, "+") || strings.HasPrefix(s, "-") {
		return 0, strconv.ErrSyntax
	}
	return time.ParseDuration(s)
}

// String returns the text form that [Parse] reads.
func (l Limit) String() string {
	var b []byte
	if l.Name != "" {
		b = append(append(b, l.Name...), '=')
	}
	if l.IsCounter() {
		b = append(b, counted...)
	} else {
		b = strconv.AppendInt(b, l.Max, 10)
	}
	b = append(b, '/')
	b = durationtext.Append(b, l.Window)
	switch {
	case l.Algorithm == SlidingWindow:
		b = durationtext.Append(append(b, '~'), l.Precision)
	case l.Algorithm == Bucket:
		b = strconv.AppendInt(append(b, '+'), l.Burst, 10)
	case l.Alignment != FirstRequest:
		b = append(append(b, '@'), l.Alignment.String()...)
	}
	return string(b)
}

// MarshalText and UnmarshalText let limits stand in JSON and flags in their text form.
func (l Limit) MarshalText() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return []byte(l.String()), nil
}

// UnmarshalText is [Parse].
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err == nil {
		*l = parsed
	}
	return err
}

func (a Algorithm) String() string {
	switch a {
	case FixedWindow:
		return "fixed"
	case SlidingWindow:
		return "sliding"
	case Bucket:
		return "bucket"
	}
	return "algorithm(" + strconv.Itoa(int(a)) + ")"
}

func (a Alignment) String() string {
	switch a {
	case FirstRequest:
		return "first"
	case ClockAligned:
		return "aligned"
	case KeyStaggered:
		return "staggered"
	}
	return "alignment(" + strconv.Itoa(int(a)) + ")"
}

func quoted(s string) string {
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return strconv.Quote(s)
}
