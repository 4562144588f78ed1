package httplimit

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// statusClientClosed is the status that nginx logs when the client has disconnected. It keeps access logs from showing a 200.
const statusClientClosed = 499

// The problem types of the RateLimit draft.
const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	abnormalUsage   = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
)

// problem is an application/problem+json body (RFC 9457). Without a type the title is that of the status.
type problem struct {
	status        int
	kind          string // the type
	title, detail string
	violated      []string      // violated-policies
	retryAfter    time.Duration // of a request without a verdict; limit.Never: none
	challenge     string        // WWW-Authenticate
	only          *limitText    // the only limit in violated, whose body is known
}

// exceeded is the problem of most denials.
var exceeded = problem{
	status: http.StatusTooManyRequests, kind: quotaExceeded, title: "Quota exceeded",
	detail: "The request exceeds a rate limit. See Retry-After.",
}

// defaultChallenge is for keys in header fields, which have no scheme of their own.
const defaultChallenge = "ApiKey"

// WriteDenied answers a denied request by the decision in its context. Its body names the limits that denied, never the key.
//
//	429  a limit denied: quota-exceeded
//	429  the failure policy denied, by the counts of this process: temporary-reduced-capacity
//	503  no limit decided, as under throttler.FailClosed or after contention: temporary-reduced-capacity
//	403  the key is on a deny list: abnormal-usage-detected
//	413  the cost can never fit (limit.Never). There is no Retry-After: after a 429 many clients would try again
//
// The words are problem types of the RateLimit draft. violated-policies names limits as RateLimit does, except those of
// [Config.Hide]; with temporary-reduced-capacity only those that have a Name.
func WriteDenied(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(decisionKey{}).(*Call)
	if !ok {
		c = &Call{m: &Middleware{}}
	}
	c.write(w, c.denied())
}

// WriteError answers a request without a verdict. A [Config.OnError] that only logs calls it, too. The client doesn't see the
// error.
//
//	401  the request has no key: ErrNoKey, with Config.Challenge in WWW-Authenticate
//	400  the request has several keys of a kind
//	500  the key, the cost or the policy is invalid: the server's mistake
//	503  anything else, with Retry-After: an outage, a closed Throttler, a deadline of the server
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	c, ok := r.Context().Value(callKey{}).(*Call)
	if !ok {
		c = &Call{m: &Middleware{}}
	}
	p := noVerdict(err, c.m.cfg.Challenge)
	c.setRetryAfter(w.Header(), p.retryAfter)
	c.write(w, p)
}

// problem is the answer to a request that is refused.
func (c *Call) problem() problem {
	if c.err != nil {
		return noVerdict(c.err, c.m.cfg.Challenge)
	}
	return c.denied()
}

// denied is the problem of a denial.
func (c *Call) denied() problem {
	d := &c.decision
	var only *limitText
	var violated []string // if there are several
	asked, fallback := false, d.Source == throttler.Fallback
	for s := range d.All() {
		asked = true
		if s.RetryAfter == 0 || fallback && s.Limit.Name == "" { // the share of a limit has a text form of its own
			continue
		}
		text := c.m.texts.of(&s.Limit, &c.m.cfg)
		switch {
		case text.hidden:
		case only == nil:
			only = text
		case violated == nil:
			violated = append(make([]string, 0, limit.MaxLimits), only.name, text.name)
		default:
			violated = append(violated, text.name)
		}
	}
	if violated == nil && only != nil && (fallback || d.Source == throttler.Unknown) {
		violated = []string{only.name}
	}
	switch {
	case d.Source == throttler.Listed:
		return problem{
			status: http.StatusForbidden, kind: abnormalUsage, title: "Abnormal usage detected",
			detail: "The client is on a deny list.",
		}
	case d.RetryAfter == limit.Never:
		return problem{
			status: http.StatusRequestEntityTooLarge, title: http.StatusText(http.StatusRequestEntityTooLarge),
			detail: "The request costs more than its rate limit can ever hold.",
		}
	case fallback, d.Source == throttler.Unknown && d.Cause != nil:
		p := problem{
			status: http.StatusTooManyRequests, kind: reducedCapacity, title: "Temporary reduced capacity",
			detail: "The service can admit fewer requests than usual. See Retry-After.", violated: violated,
		}
		if !asked {
			p.status = http.StatusServiceUnavailable
		}
		return p
	}
	p := exceeded
	if p.violated = violated; violated == nil {
		p.only = only
	}
	return p
}

// noVerdict is the problem of a request without a verdict.
func noVerdict(err error, challenge string) problem {
	p := problem{retryAfter: limit.Never}
	var key *keyError
	var invalid *limit.Error
	switch {
	case errors.Is(err, ErrNoKey):
		p.status = http.StatusUnauthorized
		p.detail = "The request carries no rate-limit key."
		if p.challenge = challenge; challenge == "" {
			p.challenge = defaultChallenge
		}
	case errors.Is(err, errManyKeys):
		p.status = http.StatusBadRequest
		p.detail = "The request carries several rate-limit keys of a kind."
	case errors.As(err, &key), errors.As(err, &invalid), errors.Is(err, throttler.ErrUnsupported):
		p.status = http.StatusInternalServerError
		p.detail = "The request's rate limit can't be determined."
	default:
		p.status = http.StatusServiceUnavailable
		p.detail = "The request's rate limit can't be checked at the moment. See Retry-After."
		p.retryAfter = time.Second
	}
	p.title = http.StatusText(p.status)
	return p
}

func (c *Call) write(w http.ResponseWriter, p problem) {
	body := c.render(w.Header(), &p)
	w.WriteHeader(p.status)
	_, _ = w.Write(body) // the client may have disconnected
}

// render returns the body of a problem, and sets its header fields.
func (c *Call) render(h http.Header, p *problem) []byte {
	c.set(h, "Content-Type", "application/problem+json")
	delete(h, "Content-Length")           // that of another body; the server finds this one's, which a middleware may compress
	c.set(h, "Cache-Control", "no-store") // RFC 6585 wants that for a 429
	if p.challenge != "" {
		c.set(h, "Www-Authenticate", p.challenge)
	}
	if p.only != nil {
		return p.only.denial
	}
	return p.json()
}

// json escapes nothing: titles, details and the names of limits hold nothing that JSON escapes.
func (p *problem) json() []byte {
	b := make([]byte, 0, 320)
	b = append(b, '{')
	if p.kind != "" {
		b = append(b, `"type":"`...)
		b = append(b, p.kind...)
		b = append(b, `",`...)
	}
	b = append(b, `"title":"`...)
	b = append(b, p.title...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(p.status), 10)
	b = append(b, `,"detail":"`...)
	b = append(b, p.detail...)
	b = append(b, '"')
	for i, name := range p.violated {
		if i == 0 {
			b = append(b, `,"violated-policies":["`...)
		} else {
			b = append(b, `","`...)
		}
		b = append(b, name...)
	}
	if len(p.violated) > 0 {
		b = append(b, `"]`...)
	}
	return append(b, '}')
}
