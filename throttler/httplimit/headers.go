package httplimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/limitview"
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
	// it refills. Config.QuotaUnit adds qu to each policy, Config.PartitionSecret pk to each policy and limit. Nested Middlewares
	// both add their limits, which should have different names.
	Draft08 Headers = 1 << iota

	// GitHub is X-RateLimit-Limit, -Remaining, -Used, -Reset (Unix seconds, rounded up) and -Resource, about the
	// binding limit of the decision, or if Config.Hide names it, about the one with the least left of the others.
	GitHub

	// NoHeaders is none of them. A denial still has its Retry-After.
	NoHeaders
)

// The names as http.Header stores them.
const (
	rateLimit       = "Ratelimit"
	rateLimitPolicy = "Ratelimit-Policy"
	xLimit          = "X-Ratelimit-Limit"
	xRemaining      = "X-Ratelimit-Remaining"
	xUsed           = "X-Ratelimit-Used"
	xReset          = "X-Ratelimit-Reset"
	xResource       = "X-Ratelimit-Resource"
)

// set sets a field. The slices of a Call's fields share few allocations.
func (c *Call) set(h http.Header, name, value string) {
	if len(c.values) == 0 {
		c.values = make([]string, 5) // GitHub's, or those of a problem
	}
	c.values[0] = value
	h[name] = c.values[:1:1]
	c.values = c.values[1:]
}

func (c *Call) add(h http.Header, name, value string) {
	if before := h[name]; len(before) > 0 {
		h[name] = append(before, value)
		return
	}
	c.set(h, name, value)
}

// setHeaders sets the fields of every response, whatever answers it.
func (c *Call) setHeaders(h http.Header) {
	if !c.Allowed() && !c.disconnected() {
		c.setRetryAfter(h, c.retryAfter())
	}
	if c.decided && c.decision.Source != throttler.Fallback && c.m.cfg.Headers != NoHeaders {
		c.setLimits(h)
	}
}

// retryAfter is how long a refused request should wait; limit.Never if waiting changes nothing.
func (c *Call) retryAfter() time.Duration {
	if c.err != nil {
		return noVerdict(c.err, "").retryAfter
	}
	return c.decision.RetryAfter
}

// setRetryAfter is the one place that writes Retry-After.
func (c *Call) setRetryAfter(h http.Header, wait time.Duration) {
	if wait != limit.Never {
		c.set(h, "Retry-After", strconv.FormatInt(max(1, limitview.RoundUp(wait, time.Second)), 10))
	}
}

// setLimits sets the fields about limits.
func (c *Call) setLimits(h http.Header) {
	d, cfg := &c.decision, &c.m.cfg
	var room [2][256]byte // for a few limits without an allocation
	policies, states := room[0][:0], room[1][:0]
	var shown struct {
		text      *limitText
		remaining int64
		reset     time.Time
	}
	partition, several := c.partition(), false
	for s := range d.All() {
		text := c.m.texts.of(&s.Limit, cfg)
		if text.hidden {
			continue
		}
		if several = len(states) > 0; several {
			policies, states = append(policies, ", "...), append(states, ", "...)
		}
		policies = append(append(policies, text.member...), partition...)
		states = appendMember(states, text.name, ";r=", s.Remaining, ";t=", limitview.RoundUp(limitview.UntilMore(&s, d.At), time.Second))
		states = append(states, partition...)
		if shown.text == nil || s.Limit == d.Limit || s.Remaining < shown.remaining && shown.text.limit != d.Limit {
			shown.text, shown.remaining, shown.reset = text, s.Remaining, s.ResetAt
		}
	}
	if shown.text == nil { // no limit decided, or all are hidden
		return
	}
	if cfg.Headers&Draft08 != 0 {
		policy := shown.text.member // of the only limit: no allocation
		if several || partition != "" {
			policy = string(policies)
		}
		c.add(h, rateLimitPolicy, policy)
		c.add(h, rateLimit, string(states))
	}
	if cfg.Headers&GitHub != 0 {
		resource := cfg.Resource
		if resource == "" {
			resource = shown.text.name
		}
		c.set(h, xLimit, shown.text.quota)
		c.set(h, xRemaining, strconv.FormatInt(shown.remaining, 10))
		c.set(h, xUsed, strconv.FormatInt(max(0, shown.text.limit.Quota()-shown.remaining), 10))
		c.set(h, xReset, strconv.FormatInt(shown.reset.Add(time.Second-1).Unix(), 10))
		c.set(h, xResource, resource)
	}
}

// appendMember appends a member of a List of Structured Fields (RFC 9651): a String with two Integers.
func appendMember(b []byte, name, key1 string, value1 int64, key2 string, value2 int64) []byte {
	b = append(b, '"')
	b = append(b, name...) // holds nothing that a String escapes
	b = append(b, '"')
	b = append(b, key1...)
	b = appendInteger(b, value1)
	b = append(b, key2...)
	return appendInteger(b, value2)
}

// appendInteger keeps within the 15 digits of an Integer: a limit's largest Max has 16.
func appendInteger(b []byte, n int64) []byte {
	const most = 999_999_999_999_999
	return strconv.AppendInt(b, min(max(n, 0), most), 10)
}

// partition is the parameter pk, or empty. The decision doesn't tell its key from the others, so all are hashed.
func (c *Call) partition() string {
	secret := c.m.cfg.PartitionSecret
	if secret == nil {
		return ""
	}
	mac := hmac.New(sha256.New, secret)
	for _, key := range c.keys {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(key))) // so that no two lists of keys are the same bytes
		_, _ = mac.Write(size[:])
		_, _ = mac.Write([]byte(key))
	}
	return ";pk=:" + base64.StdEncoding.EncodeToString(mac.Sum(nil)[:12]) + ":"
}
