package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Config configures a Middleware. Key is required; the zero value of everything else is a documented default.
type Config struct {
	// Key returns the key that a request counts against.
	Key KeyFunc

	// Also are further keys that must admit the request, too, such as the address beside the user. Each has its own policy. The
	// order of the keys doesn't matter. See throttler.Throttler.AllowAll.
	Also []KeyFunc

	// Skip reports whether a request is exempt, such as a health check. If nil, no request is.
	Skip func(r *http.Request) bool

	// Cost returns the cost of a request, from 1. It runs before the handler, so it must not read the body. If nil, each costs 1.
	Cost func(r *http.Request) int64

	// Settle returns, after the handler, what the request has cost: from 0 to o.Cost. The rest is given back to Key, by one more
	// call to the backend. A client that can cause an outcome that costs 0 has unlimited requests: see GiveBack, which makes
	// simple ones. Another value leaves all of the cost charged, see OnSettleError. Settle also runs after a panic, which then
	// continues. If nil, nothing is given back, and responses are not watched.
	Settle func(r *http.Request, o Outcome) int64

	// SettleAlso gives the rest back to the keys of Also, too. False: they stay charged in full, so that a limit on the
	// address counts requests whatever their outcome.
	SettleAlso bool

	// Headers are the fields that show a client its limits. Zero: Draft08.
	Headers Headers

	// Resource is the value of X-RateLimit-Resource. Empty: the name of the limit that the other fields are about.
	Resource string

	// Denied answers a denied request. The headers are set, including Retry-After, and FromContext returns the Decision. If nil,
	// WriteDenied is used.
	Denied http.Handler

	// OnError answers a request without a verdict: it has no key, Cost or PolicyFor returned something invalid, the Throttler is
	// closed or fails under throttler.FailError. It is not called for a client that has disconnected. If nil, WriteError is used.
	OnError func(w http.ResponseWriter, r *http.Request, err error)

	// OnSettleError is called when a charge could not be settled and stays until its windows end. If nil, nothing is called.
	OnSettleError func(r *http.Request, err error)
}

func (c Config) withDefaults() Config {
	if c.Headers == 0 {
		c.Headers = Draft08
	}
	if c.Denied == nil {
		c.Denied = http.HandlerFunc(WriteDenied)
	}
	if c.OnError == nil {
		c.OnError = WriteError
	}
	return c
}

// validate reports every problem at once.
func (c Config) validate() error {
	var errs []error
	bad := func(field, value, bound string) {
		errs = append(errs, &limit.Error{Field: field, Value: value, Bound: bound})
	}
	if c.SettleAlso && (c.Settle == nil || len(c.Also) == 0) {
		bad("SettleAlso", "true", "is for Settle and Also only")
	}
	if c.Key == nil {
		bad("Key", "nil", "must not be nil")
	}
	for i, key := range c.Also {
		if key == nil {
			bad("Also["+strconv.Itoa(i)+"]", "nil", "must not be nil")
		}
	}
	switch {
	case c.Headers&^(Draft08|GitHub|NoHeaders) != 0:
		bad("Headers", strconv.Itoa(int(c.Headers)), "must be Draft08, GitHub, both or NoHeaders")
	case c.Headers&NoHeaders != 0 && c.Headers != NoHeaders:
		bad("Headers", strconv.Itoa(int(c.Headers)), "NoHeaders excludes the others")
	}
	for i := range len(c.Resource) {
		if b := c.Resource[i]; b <= ' ' || b > '~' {
			bad("Resource", strconv.Quote(c.Resource), "must be visible ASCII")
			break
		}
	}
	return errors.Join(errs...)
}

// Middleware limits the requests of the handlers that it wraps.
type Middleware struct {
	cfg      Config
	throttle *throttler.Throttler
	keys     []KeyFunc
}

// New makes a Middleware. It reports every problem of the configuration at once. It never closes t.
func New(t *throttler.Throttler, cfg Config) (*Middleware, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if t == nil {
		err = errors.Join(&limit.Error{Field: "throttler", Value: "nil", Bound: "must not be nil"}, err)
	}
	if err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	return &Middleware{cfg: cfg, throttle: t, keys: append([]KeyFunc{cfg.Key}, cfg.Also...)}, nil
}

// Wrap returns a handler that calls next only if the request is admitted. It panics if next is nil.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	if next == nil {
		panic("httplimit: nil handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

type decisionKey struct{}

// FromContext returns the decision on the request of a context. With nested Middlewares it is that of the innermost.
func FromContext(ctx context.Context) (throttler.Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(throttler.Decision)
	return d, ok
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.cfg.Skip != nil && m.cfg.Skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	d, held, err := m.decide(r)
	if err != nil && !errors.Is(err, limit.ErrCostExceedsLimit) {
		m.fail(w, r, err)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), decisionKey{}, d))
	m.setHeaders(w.Header(), &d)
	switch {
	case !d.Allowed:
		m.cfg.Denied.ServeHTTP(w, r)
	case held == nil:
		next.ServeHTTP(w, r)
	default:
		m.serveAndSettle(w, r, next, held)
	}
}

// decide decides a request. Beside a limit.ErrCostExceedsLimit the decision is a permanent denial.
func (m *Middleware) decide(r *http.Request) (throttler.Decision, *charges, error) {
	keys := make([]string, len(m.keys))
	for i, key := range m.keys {
		var err error
		if keys[i], err = key(r); err == nil && keys[i] == "" {
			err = ErrNoKey
		}
		if err != nil {
			return throttler.Decision{}, nil, &keyError{err}
		}
	}
	cost := int64(1)
	if m.cfg.Cost != nil {
		// A cost above all limits is the client's mistake: a denial, not an error.
		cost = min(m.cfg.Cost(r), limit.MaxCount)
	}
	var d throttler.Decision
	var held *charges
	var err error
	switch {
	case m.cfg.Settle != nil:
		d, held, err = m.reserve(r.Context(), keys, cost)
	case len(keys) > 1:
		d, err = m.throttle.AllowAll(r.Context(), keys, cost)
	default:
		d, err = m.throttle.AllowN(r.Context(), keys[0], cost)
	}
	if errors.Is(err, limit.ErrCostExceedsLimit) {
		d.RetryAfter = limit.Never
	}
	return d, held, err
}
