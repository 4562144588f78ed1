package httplimit

import (
	"context"
	"net/http"
	"time"

	"github.com/sluice-go/sluice/throttler"
)

// Outcome is how a request ended.
type Outcome struct {
	// Status is the status code of the response: 200 if the handler wrote none, 500 if it panicked before it did,
	// 0 if it took the connection over (Hijack) before it did.
	Status int

	// Written is the size of the body, in bytes before any transfer encoding; 0 for HEAD.
	Written int64

	// Cost is what was charged at the start.
	Cost int64

	// Panicked is whether the handler panicked; with http.ErrAbortHandler, for one, after it found that it could
	// not go on.
	Panicked bool

	// Hijacked is whether the handler took the connection over.
	Hijacked bool
}

// NotModified reports a 304: the client had the answer already.
func (o Outcome) NotModified() bool { return o.Status == http.StatusNotModified }

// Failed reports that the server failed: a 5xx or a panic. Give failures back only where no client can cause them
// at will.
func (o Outcome) Failed() bool { return o.Status >= 500 || o.Panicked }

// GiveBack makes a [Config.Settle] that gives all of the cost back if any of the conditions holds, and none of it
// otherwise:
//
//	Settle: httplimit.GiveBack(httplimit.Outcome.NotModified, httplimit.Outcome.Failed)
func GiveBack(when ...func(Outcome) bool) func(*http.Request, Outcome) int64 {
	return func(_ *http.Request, o Outcome) int64 {
		for _, holds := range when {
			if holds(o) {
				return 0
			}
		}
		return o.Cost
	}
}

// settleTimeout bounds what is given back after the handler: it goes on when the client has gone.
const settleTimeout = time.Second

// charges is what one request was charged.
type charges struct {
	reserved *throttler.Reservation
	cost     int64
}

// reserve is decide for charges that can be settled.
func (m *Middleware) reserve(ctx context.Context, keys []string, cost int64) (throttler.Decision, *charges, error) {
	r, err := m.throttle.ReserveAll(ctx, keys, cost)
	if err != nil {
		return throttler.Decision{}, nil, err
	}
	return r.Decision(), &charges{reserved: r, cost: cost}, nil
}

// settle gives back what the request did not cost, also for a client who has gone.
func (c *charges) settle(ctx context.Context, actual int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	return c.reserved.Settle(ctx, actual)
}

// serveAndSettle lets a panic pass by without recovering from it, so that its trace stays whole.
func (m *Middleware) serveAndSettle(w http.ResponseWriter, r *http.Request, next http.Handler, held *charges) {
	rec := &recorder{ResponseWriter: w}
	returned := false
	defer func() {
		actual := m.cfg.Settle(r, rec.outcome(r, held.cost, !returned))
		if err := held.settle(r.Context(), actual); err != nil && m.cfg.OnSettleError != nil {
			m.cfg.OnSettleError(r, err)
		}
	}()
	next.ServeHTTP(rec.shaped(), r)
	returned = true
}
