package httplimit

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Call is a request that [Middleware.Begin] has decided on. Adapters for frameworks use it where [Middleware.Wrap] doesn't fit:
//
//	call := limited.Begin(w.Header(), r)
//	if !call.Allowed() {
//		call.Refuse(w)
//		return
//	}
//	outcome := httplimit.Outcome{Panicked: true}
//	defer func() { call.Done(outcome) }()
//	outcome.Status = next(w, call.Request())
//	outcome.Panicked = false
//
// A Call is for one goroutine at a time.
type Call struct {
	m        *Middleware
	ctx      *callContext
	request  *http.Request
	bound    *http.Request // request with ctx, once it is needed
	route    *route
	decision throttler.Decision
	err      error
	exempt   bool
	decided  bool

	keys     []string
	few      [2]string // room for keys
	cost     int64
	reserved *throttler.Reservation // until Done; nil if nothing can be given back

	values []string  // room for the values of further header fields
	first  [3]string // room for values: RateLimit, RateLimit-Policy and Retry-After
}

// callContext is the context of a request and its Call in one allocation.
type callContext struct {
	context.Context
	call Call
}

type (
	decisionKey struct{}
	callKey     struct{}
)

func (c *callContext) Value(key any) any {
	if key == (callKey{}) || key == (decisionKey{}) && c.call.decided {
		return &c.call
	}
	return c.Context.Value(key)
}

// FromContext returns the decision on the request of a context. With nested Middlewares it is that of the innermost.
func FromContext(ctx context.Context) (throttler.Decision, bool) {
	if c, ok := ctx.Value(decisionKey{}).(*Call); ok {
		return c.decision, true
	}
	return throttler.Decision{}, false
}

// Begin decides on a request, charges it, and sets the header fields of the response in h: those of the limits, and Retry-After.
// It reads the request's context, and of the request what the KeyFuncs and functions of the Config read, so an adapter for a
// server without *http.Request fills in Method, URL, Host, Header and RemoteAddr, and must not reuse their memory before Done.
func (m *Middleware) Begin(h http.Header, r *http.Request) *Call {
	ctx := &callContext{Context: r.Context(), call: Call{m: m, request: r}}
	c := &ctx.call
	c.ctx, c.values = ctx, c.first[:]
	if m.cfg.Skip != nil && m.cfg.Skip(r) {
		c.exempt = true
		return c
	}
	c.route = m.route(r)
	if c.route.exempt {
		c.exempt = true
		return c
	}
	c.err = c.decide()
	c.decided = c.err == nil
	c.setHeaders(h)
	return c
}

// decide fills in the decision. A cost that can never fit is a permanent denial.
func (c *Call) decide() error {
	cfg, keys := &c.m.cfg, c.few[:0]
	for _, key := range c.route.keys {
		k, err := key(c.request)
		if err == nil && k == "" {
			err = ErrNoKey
		}
		if err != nil {
			return &keyError{err}
		}
		if !slices.Contains(keys, k) { // which would be charged twice
			keys = append(keys, k)
		}
	}
	c.keys, c.cost = keys, 1
	switch {
	case c.route.cost != 0:
		c.cost = c.route.cost
	case cfg.Cost != nil:
		// A cost above all limits is the client's mistake: a denial, not an error.
		c.cost = min(cfg.Cost(c.request), limit.MaxCount)
	}
	ctx, t := c.ctx.Context, c.route.throttle
	var err error
	switch {
	case cfg.Settle != nil:
		var r *throttler.Reservation
		if len(keys) == 1 {
			r, err = t.Reserve(ctx, keys[0], c.cost)
		} else {
			r, err = t.ReserveAll(ctx, keys, c.cost)
		}
		if err == nil {
			c.decision, c.cost = r.Decision(), r.Cost()
			if c.decision.Allowed {
				c.reserved = r
			}
		}
	case len(keys) > 1:
		c.decision, err = t.AllowAll(ctx, keys, c.cost)
	default:
		c.decision, err = t.AllowN(ctx, keys[0], c.cost)
	}
	if errors.Is(err, limit.ErrCostExceedsLimit) {
		c.decision.RetryAfter = limit.Never
		return nil
	}
	return err
}

// Allowed is whether the request may go on: it was admitted, or is exempt.
func (c *Call) Allowed() bool { return c.exempt || c.err == nil && c.decision.Allowed }

// Decision returns the decision. It is zero if there is none: the request is exempt, or Err says why.
func (c *Call) Decision() throttler.Decision { return c.decision }

// Err returns why there is no verdict, see Config.OnError, and nil if there is one or the request is exempt.
func (c *Call) Err() error { return c.err }

// Request returns the request for the next handler. Its context has the Decision, see [FromContext].
func (c *Call) Request() *http.Request {
	if c.exempt {
		return c.request
	}
	if c.bound == nil {
		c.bound = c.request.WithContext(c.ctx)
	}
	return c.bound
}

// Refuse answers a request that is not allowed, by Config.Denied or Config.OnError. It does nothing if the request is allowed.
func (c *Call) Refuse(w http.ResponseWriter) {
	switch cfg := &c.m.cfg; {
	case c.Allowed():
	case c.disconnected():
		w.WriteHeader(statusClientClosed)
	case c.err != nil && cfg.OnError != nil:
		cfg.OnError(w, c.Request(), c.err)
	case c.err == nil && cfg.Denied != nil:
		cfg.Denied.ServeHTTP(w, c.Request())
	default:
		c.write(w, c.problem())
	}
}

// Problem returns the answer to a request that is not allowed, as WriteDenied and WriteError write it, and sets its header fields
// in h. It is for servers without http.ResponseWriter, and calls neither Config.Denied nor Config.OnError. Don't change the body:
// requests share it.
func (c *Call) Problem(h http.Header) (status int, body []byte) {
	if c.disconnected() {
		return statusClientClosed, nil
	}
	p := c.problem()
	return p.status, c.render(h, &p)
}

// disconnected reports whether there is no verdict because the client has left.
func (c *Call) disconnected() bool {
	return c.err != nil && errors.Is(c.ctx.Context.Err(), context.Canceled)
}

// settleTimeout bounds the refund after the handler, which outlives the request's context.
const settleTimeout = time.Second

// Done settles the charge by Config.Settle, even if the client has disconnected. Call it once, when the handler has returned or
// panicked; later calls do nothing, nor does one for a request that was not charged. An adapter sets what it knows of Status,
// Written, Panicked and Hijacked. A Status of 0 becomes 200, or 500 after a panic.
func (c *Call) Done(o Outcome) {
	r := c.reserved
	if r == nil {
		return
	}
	c.reserved = nil
	o.Cost = c.cost
	if o.Status == 0 && !o.Hijacked {
		o.Status = http.StatusOK
		if o.Panicked {
			o.Status = http.StatusInternalServerError
		}
	}
	if c.request.Method == http.MethodHead {
		o.Written = 0 // net/http accepts a body and sends none
	}
	cfg := &c.m.cfg
	actual := cfg.Settle(c.Request(), o)
	if actual == c.cost {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx.Context), settleTimeout)
	defer cancel()
	var err error
	if cfg.SettleAlso || len(c.keys) == 1 {
		err = r.Settle(ctx, actual)
	} else {
		each := make([]int64, len(c.keys))
		each[0] = actual
		for i := 1; i < len(each); i++ {
			each[i] = c.cost
		}
		err = r.SettleEach(ctx, each)
	}
	if err != nil && cfg.OnSettleError != nil {
		cfg.OnSettleError(c.Request(), err)
	}
}
