package httplimit

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// statusClientClosed is the status that nginx logs when the client has disconnected. It keeps access logs from showing a 200.
const statusClientClosed = 499

// problem is an application/problem+json body (RFC 9457). Its types are those of the RateLimit draft; without a type the title
// is that of the status.
type problem struct {
	Type             string   `json:"type,omitempty"`
	Title            string   `json:"title"`
	Status           int      `json:"status"`
	Detail           string   `json:"detail"`
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

func (p *problem) write(w http.ResponseWriter) {
	body, _ := json.Marshal(p) // strings and numbers don't fail
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store") // RFC 6585 wants that for a 429
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the client may have disconnected
}

// WriteDenied answers a denied request by the decision in its context. Its body names the limits that denied, never the key.
//
//	429  a limit denied
//	429  the failure policy denied, by the counts of this process
//	503  no limit decided, as under throttler.FailClosed or after contention
//	403  the key is on a deny list
//	413  the cost can never fit (limit.Never). There is no Retry-After: after a 429 many clients would try again
func WriteDenied(w http.ResponseWriter, r *http.Request) {
	d, _ := FromContext(r.Context())
	var violated []string
	asked := false
	for s := range d.All() {
		asked = true
		if s.RetryAfter > 0 {
			violated = append(violated, name(&s.Limit))
		}
	}
	p := problem{Status: http.StatusTooManyRequests}
	switch {
	case d.Source == throttler.Listed:
		p.Status = http.StatusForbidden
		p.Title = http.StatusText(p.Status)
		p.Detail = "The client is on a deny list."
	case d.RetryAfter == limit.Never:
		p.Status = http.StatusRequestEntityTooLarge
		p.Title = http.StatusText(p.Status)
		p.Detail = "The request costs more than its rate limit can ever hold."
	case d.Source == throttler.Fallback, d.Source == throttler.Unknown && d.Cause != nil:
		if !asked {
			p.Status = http.StatusServiceUnavailable
		}
		p.Type = reducedCapacity
		p.Title = "Temporary reduced capacity"
		p.Detail = "The service can admit fewer requests than usual. See Retry-After."
	default:
		p.Type = quotaExceeded
		p.Title = "Quota exceeded"
		p.Detail = "The request exceeds a rate limit. See Retry-After."
		p.ViolatedPolicies = violated
	}
	p.write(w)
}

// WriteError answers a request without a verdict. A [Config.OnError] that only logs calls it, too. The client doesn't see the
// error.
//
//	400  the request carries no usable key
//	500  the key, the cost or the policy is invalid: the server's mistake
//	503  anything else, with Retry-After: an outage, a closed Throttler, a deadline of the server
func WriteError(w http.ResponseWriter, _ *http.Request, err error) {
	var p problem
	var key *keyError
	var invalid *limit.Error
	switch {
	case errors.Is(err, ErrNoKey), errors.Is(err, errManyKeys):
		p.Status = http.StatusBadRequest
		p.Detail = "The request carries no usable rate-limit key."
	case errors.As(err, &key), errors.As(err, &invalid), errors.Is(err, throttler.ErrUnsupported):
		p.Status = http.StatusInternalServerError
		p.Detail = "The request's rate limit can't be determined."
	default:
		p.Status = http.StatusServiceUnavailable
		p.Detail = "The request's rate limit can't be checked at the moment. See Retry-After."
		w.Header().Set("Retry-After", "1")
	}
	p.Title = http.StatusText(p.Status)
	p.write(w)
}

// fail answers a request without a verdict.
func (m *Middleware) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(r.Context().Err(), context.Canceled) {
		w.WriteHeader(statusClientClosed)
		return
	}
	m.cfg.OnError(w, r, err)
}
