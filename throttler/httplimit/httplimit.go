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
	// Key names whom a request counts against.
	Key KeyFunc

	// Also are further keys that must admit the request too, such as the address beside the user; each has the
	// policy that the Throttler's PolicyFor gives it. Key and Also may be in any
	// order. See throttler.Throttler.AllowAll for what that promises.
	Also []KeyFunc

	// Skip names requests that are not limited at all, such as health checks. Nil: none.
	Skip func(r *http.Request) bool

	// Cost is what a request costs, from 1. It runs before the handler, so it must not read the body.
	// Nil: 1 for each.
	Cost func(r *http.Request) int64

	// Settle says, after the handler, what the request has cost in the end: from 0 to o.Cost. The rest is given
	// back to Key, which takes one more call to the backend. A client who can bring about an outcome that costs 0 has
	// unlimited requests: see GiveBack. Anything else is refused and leaves all of it charged, see
	// OnSettleError. It also runs after a panic, which then goes on. GiveBack makes simple ones. Nil: o.Cost, and
	// responses are not watched.
	Settle func(r *http.Request, o Outcome) int64

	// SettleAlso gives the rest back to the keys of Also, too. False: they stay charged in full, so that a limit on the
	// address counts requests, whatever comes of them.
	SettleAlso bool

	// Headers are the fields that tell a client its limits. Zero: Draft08.
	Headers Headers

	// Resource is the value of X-RateLimit-Resource. Empty: the name of the limit that the other fields are about.
	Resource string

	// Denied answers a request that is denied. The headers are set, Retry-After included, and FromContext gives
	// the Decision. Nil: WriteDenied.
	Denied http.Handler

	// OnError answers a request on which there is no verdict: it has no key, Cost or PolicyFor returned something
	// invalid, the Throttler is closed or fails under throttler.FailError. It is not called for a client who has
	// gone. Nil: WriteError.
	OnError func(w http.ResponseWriter, r *http.Request, err error)

	// OnSettleError is told why a charge could not be settled; what was to be given back stays charged until its
	// windows end. Nil: nobody.
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
		bad("Key", "nil", "must name whom a request counts against")
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

// New checks the configuration, and reports every problem in it at once. It leaves t open.
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

// Wrap returns a handler that asks first and calls next only if the request is admitted. It panics if next is nil.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	if next == nil {
		panic("httplimit: nil handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

type decisionKey struct{}

// FromContext returns the decision on the request whose context ctx is or comes from. Of nested Middlewares it is
// that of the innermost.
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
	m.tell(w.Header(), &d)
	switch {
	case !d.Allowed:
		m.cfg.Denied.ServeHTTP(w, r)
	case held == nil:
		next.ServeHTTP(w, r)
	default:
		m.serveAndSettle(w, r, next, held)
	}
}

// decide asks the Throttler. Beside a limit.ErrCostExceedsLimit the decision is a denial for ever.
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
		// What a client can drive beyond all limits is for the client to mend: a denial, not an error.
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
