// Package limitview renders limits and decisions for clients, as HTTP and gRPC both show them.
package limitview

import (
	"time"

	"github.com/sluice-go/sluice/limit"
)

// Name is a limit's name in headers, bodies and details: its Name, or else its text form. It holds nothing that a String of
// Structured Fields or of JSON escapes.
func Name(l *limit.Limit) string {
	if l.Name != "" {
		return l.Name
	}
	return l.String()
}

// Window is the time in which the whole quota comes back.
func Window(l *limit.Limit) time.Duration {
	if l.Algorithm == limit.Bucket {
		micros, rest := l.Refill(l.Burst)
		if rest > 0 {
			micros++
		}
		return time.Duration(micros) * time.Microsecond
	}
	return l.Window
}

// UntilMore is the time until a limit has more quota; of a window that admits, until all is back. Now is the time of the
// decision by the clock that decided: this host's own clock may differ.
func UntilMore(s *limit.Status, now time.Time) time.Duration {
	if s.RetryAfter > 0 {
		return s.RetryAfter
	}
	full := s.ResetAt.Sub(now)
	if missing := s.Limit.Burst - s.Remaining; s.Limit.Algorithm == limit.Bucket && missing > 0 {
		micros, _ := s.Limit.Refill(missing - 1)
		return full - time.Duration(micros)*time.Microsecond
	}
	return full
}

// RoundUp counts the units that cover d. Of a negative d it is at most 0.
func RoundUp(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}
