package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Headers are families of header fields that show a client its limits, as bits. A decision of the failure policy has none of
// them: another process, or the next moment, would show other values.
type Headers uint8

const (
	// Draft08 is RateLimit and RateLimit-Policy in the format of draft-ietf-httpapi-ratelimit-headers-08, which -09
	// to -11 share, with every limit of the policy:
	//
	//	RateLimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400
	//	RateLimit: "burst";r=50;t=30, "daily";r=940;t=7012
	//
	// A limit's name is its Name, or else its text form. Times are whole seconds, rounded up. t is the time until there is more
	// quota; of a sliding limit that admits, until all is back. A token bucket has its burst as q, and as w the time in which
	// it refills. Nested Middlewares both add their limits, which should have different names.
	Draft08 Headers = 1 << iota

	// GitHub is X-RateLimit-Limit, -Remaining, -Used, -Reset (Unix seconds, rounded up) and -Resource, about the
	// binding limit of the decision.
	GitHub

	// NoHeaders is none of them. A denial still has its Retry-After.
	NoHeaders
)

// setHeaders sets the header fields for a decision.
func (m *Middleware) setHeaders(h http.Header, d *throttler.Decision) {
	if !d.Allowed && d.RetryAfter != limit.Never {
		h.Set("Retry-After", strconv.FormatInt(max(1, seconds(d.RetryAfter)), 10))
	}
	if d.Source == throttler.Fallback || m.cfg.Headers == NoHeaders {
		return
	}
	var room [2][256]byte // for a few limits without an allocation
	policy, state := room[0][:0], room[1][:0]
	for s := range d.All() {
		policy = appendMember(policy, &s.Limit, 'q', s.Limit.Quota(), 'w', seconds(window(&s.Limit)))
		state = appendMember(state, &s.Limit, 'r', s.Remaining, 't', seconds(untilMore(&s, d.At)))
	}
	if len(policy) == 0 { // no limit decided
		return
	}
	if m.cfg.Headers&Draft08 != 0 {
		h.Add("RateLimit-Policy", string(policy))
		h.Add("RateLimit", string(state))
	}
	if m.cfg.Headers&GitHub != 0 {
		quota, resource := d.Limit.Quota(), m.cfg.Resource
		if resource == "" {
			resource = name(&d.Limit)
		}
		h.Set("X-RateLimit-Limit", strconv.FormatInt(quota, 10))
		h.Set("X-RateLimit-Remaining", strconv.FormatInt(d.Remaining, 10))
		h.Set("X-RateLimit-Used", strconv.FormatInt(max(0, quota-d.Remaining), 10))
		h.Set("X-RateLimit-Reset", strconv.FormatInt(d.ResetAt.Add(time.Second-1).Unix(), 10))
		h.Set("X-RateLimit-Resource", resource)
	}
}

// appendMember appends a member to a List of Structured Fields (RFC 9651): a String with two Integers.
func appendMember(b []byte, l *limit.Limit, key1 byte, value1 int64, key2 byte, value2 int64) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	b = append(b, '"')
	b = append(b, name(l)...) // holds nothing that a String escapes
	b = append(b, '"', ';', key1, '=')
	b = appendInteger(b, value1)
	b = append(b, ';', key2, '=')
	return appendInteger(b, value2)
}

// appendInteger keeps within the 15 digits of an Integer: a limit's largest Max has 16.
func appendInteger(b []byte, n int64) []byte {
	const most = 999_999_999_999_999
	return strconv.AppendInt(b, min(max(n, 0), most), 10)
}

// name is a limit's name in headers and bodies.
func name(l *limit.Limit) string {
	if l.Name != "" {
		return l.Name
	}
	return l.String()
}

// window is the time in which the whole quota comes back.
func window(l *limit.Limit) time.Duration {
	if l.Algorithm == limit.Bucket {
		micros, rest := l.Refill(l.Burst)
		if rest > 0 {
			micros++
		}
		return time.Duration(micros) * time.Microsecond
	}
	return l.Window
}

// untilMore is the time until a limit has more quota. Now is the time of the decision by the clock that decided: this host's own
// clock may differ.
func untilMore(s *limit.Status, now time.Time) time.Duration {
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

// seconds rounds up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
