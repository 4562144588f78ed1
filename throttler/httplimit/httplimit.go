package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// Config configures a Middleware. Key is required; the zero value of everything else is a documented default.
type Config struct {
	// Key returns the key that a request counts against.
	Key KeyFunc

	// Also are further keys that must admit the request, too, such as the address beside the user. Each has its own policy. The
	// order of the keys doesn't matter, and equal keys count once. See throttler.Throttler.AllowAll.
	Also []KeyFunc

	// Routes are the requests that differ, by pattern of http.ServeMux, such as "POST /login" or "/static/". The most specific
	// pattern applies. All other requests are those of the Config. If nil, all are alike.
	//
	// Paths match as in a ServeMux. Under a router that accepts more spellings of a path, as fiber ignores case, a client may
	// choose one that no pattern matches: give stricter routes a Middleware of their own there.
	Routes map[string]Route

	// Skip reports whether a request is exempt, such as a health check. If nil, no request is.
	Skip func(r *http.Request) bool

	// Cost returns the cost of a request, from 1. It runs before the handler, so it must not read the body. If nil, each costs 1.
	Cost func(r *http.Request) int64

	// Settle returns, after the handler, what the request has cost: from 0. What is below o.Cost is given back to Key, and what is
	// above is charged to it, by one more call to the backend. A client that can cause an outcome that costs 0 has unlimited
	// requests: see GiveBack, which makes simple ones. A negative cost leaves all of the cost charged, see OnSettleError. Settle
	// also runs after a panic, which then continues. If nil, the cost stays charged, and responses are not watched.
	Settle func(r *http.Request, o Outcome) int64

	// SettleAlso settles the keys of Also alike. False: they stay charged in full, so that a limit on the
	// address counts requests whatever their outcome.
	SettleAlso bool

	// Headers are the fields that show a client its limits. Zero: Draft08.
	Headers Headers

	// Resource is the value of X-RateLimit-Resource. Empty: the name of the limit that the other fields are about.
	Resource string

	// QuotaUnit is the parameter qu of RateLimit-Policy, what a cost of 1 stands for: "content-bytes" and "concurrent-requests" are
	// in the draft's registry. Empty: none, which stands for requests.
	QuotaUnit string

	// PartitionSecret adds the parameter pk to the fields of Draft08: 12 bytes of an HMAC-SHA256 of the request's keys, by which a
	// client with several keys tells their quotas apart. It must have at least 16 bytes and be the same in all processes. If nil,
	// there is no pk.
	PartitionSecret []byte

	// Hide lists limits that clients don't see, by Name, or by text form if they have none: no header field and no body shows them.
	// Retry-After still counts them. Nil: none.
	Hide []string

	// Challenge is the WWW-Authenticate of a 401, for a request without a key, such as "Bearer". Empty: "ApiKey".
	Challenge string

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
	return c
}

// validate reports every problem at once.
func (c Config) validate() error {
	var bad fielderrors.List
	if c.Key == nil {
		bad.Add("Key", "nil", "must not be nil")
	}
	checkKeys(&bad, c.Also)
	also := len(c.Also)
	for _, r := range c.Routes {
		also += len(r.Also)
	}
	if c.SettleAlso && (c.Settle == nil || also == 0) {
		bad.Add("SettleAlso", "true", "is for Settle and Also only")
	}
	switch {
	case c.Headers&^(Draft08|GitHub|NoHeaders) != 0:
		bad.Add("Headers", int(c.Headers), "must be Draft08, GitHub, both or NoHeaders")
	case c.Headers&NoHeaders != 0 && c.Headers != NoHeaders:
		bad.Add("Headers", int(c.Headers), "NoHeaders excludes the others")
	}
	if !consists(c.Resource, isVisible) {
		bad.Add("Resource", strconv.Quote(c.Resource), "must be visible ASCII")
	}
	if !consists(c.QuotaUnit, isUnit) {
		bad.Add("QuotaUnit", strconv.Quote(c.QuotaUnit), "must have only a-z, 0-9 and -")
	}
	if c.PartitionSecret != nil && len(c.PartitionSecret) < minSecret {
		bad.Add("PartitionSecret", strconv.Itoa(len(c.PartitionSecret))+" bytes", "must have at least 16 bytes, or be nil")
	}
	for i, name := range c.Hide {
		if name == "" {
			bad.Add("Hide["+strconv.Itoa(i)+"]", `""`, "must be the name of a limit")
		}
	}
	if !consists(c.Challenge, isPrintable) {
		bad.Add("Challenge", strconv.Quote(c.Challenge), "must be printable ASCII")
	}
	return bad.Err()
}

// checkKeys is about the Also of a Config or a Route.
func checkKeys(bad *fielderrors.List, also []KeyFunc) {
	for i, key := range also {
		if key == nil {
			bad.Add("Also["+strconv.Itoa(i)+"]", "nil", "must not be nil")
		}
	}
}

// consists reports whether s has only bytes of a kind.
func consists(s string, of func(byte) bool) bool {
	for i := range len(s) {
		if !of(s[i]) {
			return false
		}
	}
	return true
}

func isPrintable(b byte) bool { return b >= ' ' && b <= '~' }

func isVisible(b byte) bool { return b > ' ' && b <= '~' }

func isUnit(b byte) bool { return b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '-' }

// Middleware limits the requests of the handlers that it wraps.
type Middleware struct {
	cfg   Config
	texts limitTexts
	routes
}

// New makes a Middleware. It reports every problem of the configuration at once. It never closes t.
func New(t *throttler.Throttler, cfg Config) (*Middleware, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if t == nil {
		err = errors.Join(&limit.Error{Field: "throttler", Value: "nil", Bound: "must not be nil"}, err)
	}
	routes, bad := newRoutes(t, &cfg)
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	return &Middleware{cfg: cfg, routes: routes}, nil
}

// Wrap returns a handler that calls next only if the request is admitted. It panics if next is nil.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	if next == nil {
		panic("httplimit: nil handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch c := m.Begin(w.Header(), r); {
		case !c.Allowed():
			c.Refuse(w)
		case c.reserved == nil:
			next.ServeHTTP(w, c.Request())
		default:
			c.serve(w, next)
		}
	})
}

// serve serves a request that is settled. It doesn't recover from a panic, so that its stack trace stays complete.
func (c *Call) serve(w http.ResponseWriter, next http.Handler) {
	rec := &recorder{ResponseWriter: w}
	returned := false
	defer func() { c.Done(rec.outcome(!returned)) }()
	next.ServeHTTP(rec.shaped(), c.Request())
	returned = true
}
