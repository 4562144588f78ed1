package throttler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/limit"
)

// Config configures a Throttler. Policy or Registry is required; the zero value of everything else is a documented default.
type Config struct {
	// Backend is what counts. The Throttler doesn't close it: several may share one.
	// Nil: a backend.Memory of the Throttler's own, limits hold for this process alone.
	Backend backend.Backend

	// Policy is the policy of every key that PolicyFor doesn't give another. With a Registry it must be zero.
	Policy limit.Policy

	// PolicyFor gives a key its policy: tiers, limits per key. A nil result means that of the Registry, or Policy. It is called for every
	// request and must be fast and safe for concurrent use; a policy that it returned must not be changed. Policies
	// of one name share their counts, so that a key that moves to another tier keeps what it has used, limit by
	// limit. Nil: all have that of the Registry, or Policy.
	PolicyFor func(ctx context.Context, key string) *limit.Policy

	// Registry gives keys their policies, and has lists of keys to allow and deny: what a file says, and can be changed
	// while the Throttler runs. Throttlers may share one, and don't close it. Nil: none.
	Registry *Registry

	// Allow and Deny are keys that are decided without a call to the Backend: admitted and not counted, or denied with a
	// RetryAfter of limit.Never, whatever their cost. An entry that ends in * lists all keys with that prefix, * alone
	// lists all. Who is on both is denied. The Source of such a Decision is Listed. Nil: nobody.
	//
	// Entries are written as keys are counted. One that no key will ever match can't be told from others: those of package
	// httplimit say what they are, as in "addr:10.0.*", some are hashes, and an IPv6 client is its /64, as in
	// "addr:2001:db8:1:2::/64" (httplimit.AddrKey).
	Allow, Deny []string

	// Shadow is a policy that is counted and told of, and enforced on nobody: to see what limits would do before they
	// are set. It should be stricter: only what the Backend has admitted is asked again, in the background, so that of
	// looser limits it says nothing. No request waits for it or fails by it; a ShadowObserver is told. Its counts are its own,
	// whatever its name; what a Reservation gives back goes back to it, too. A policy of a Registry may have a shadow of
	// its own. Zero: none.
	//
	// At most four calls are under way at a time, so that with a server 1 ms away some 4,000 requests a second are asked
	// again at most. What waits beyond 1,024, or 1 MiB of keys longer than 200 bytes, is dropped, and counted in Throttler.ShadowStats: what was dropped wasn't
	// charged either, so that later requests are denied less often than they would be.
	Shadow limit.Policy

	// ShadowBackend is what counts shadows. The Throttler doesn't close it. Nil: the Backend, so that those who share it share
	// the shadow's counts, too. There each key of the shadow takes as much room and as many calls again, which the limits
	// themselves may lack: in a Memory or Lease that is full, by MaxKeys, it pushes out keys that are enforced, which
	// then begin anew, and so it may in a Redis at its maxmemory and in Memcached. Where that may be, give it one of its own.
	ShadowBackend backend.Backend

	// Failure says what becomes of a request when the backend gives no verdict. Zero: FailLocal.
	Failure FailurePolicy

	// Processes is how many processes share the limits, for FailLocal: each admits its share, ceil(Max /
	// Processes). Set it where many share a backend. Zero: 1, so that each admits the whole Max while the backend
	// is away.
	Processes int

	// FallbackKeys bounds how many keys FailLocal counts in this process, as backend.MemoryConfig.MaxKeys does. Where more are
	// asked for in an outage, some begin anew, and get more than their share. Zero: 1,048,576. Negative: no bound.
	FallbackKeys int

	// OpenCap is what FailOpen admits at most, in this process, over all keys together. FailOpen requires it.
	OpenCap limit.Limit

	// RetryAfter is what a denial without a better answer tells the caller to wait. Zero: 1 s.
	RetryAfter time.Duration

	// Timeout bounds each call to the backend, beside the caller's context; what is later is an outage. A backend takes it for the
	// caller's own deadline, which says nothing about its servers: one that is shorter than the backend's timeout
	// leaves it to heartbeats to find a frozen node. Zero: the backend's own.
	Timeout time.Duration

	// RequireReachable makes New call Ping, for 5 s at most, and fail with its error: a wrong password, a certificate that is not
	// trusted or an address that nobody listens at then ends the start, and not one decision is left to the failure policy
	// because of it. It asks every server of the Backend, so that one that is down keeps a process from starting; whoever
	// wants to start all the same calls Ping and looks at the Kind of its errors. ShadowBackend isn't asked. False: New does
	// no network I/O.
	RequireReachable bool

	// Observer is told of every decision, for metrics and traces; see package otelthrottle. Nil: none.
	Observer Observer

	// OnNearLimit is told when the backend admits a request that leaves at most the share NearLimit of a limit's quota: to
	// warn a customer, say. It is told once for each key, limit and window (of a sliding limit or a bucket: until the
	// quota would have been back). One goroutine calls it, one call after the other, and Close waits for it, so that
	// it must not close the Throttler; it delays no request. Notices are
	// dropped where many thousands of keys are near their limits at once, and when 256 of them wait, or 1 MiB of keys longer
	// than 200 bytes. If nil, no notice is made.
	OnNearLimit func(NearLimitData)

	// NearLimit is the share of a quota, up to 1. Zero: 0.1.
	NearLimit float64

	// Stats says what the Throttler counts of its own decisions, for an operator to see. Zero: nothing.
	Stats StatsConfig

	// Logger is told of outages: at level Warn at most once a minute for each kind of cause. What only a person can fix
	// (backend.Misconfigured and backend.Corrupt: credentials, certificates, rights, foreign values) is logged at level Error
	// every five seconds for as long as requests meet it. Nil: slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Processes == 0 {
		c.Processes = 1
	}
	if c.RetryAfter == 0 {
		c.RetryAfter = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// validate reports every problem at once.
func (c Config) validate() error {
	var errs []error
	bad := func(field, value, bound string) {
		errs = append(errs, &limit.Error{Field: field, Value: value, Bound: bound})
	}
	within := func(field string, err error) { // its name is enough to find the policy by
		for _, e := range refusals(err) {
			inner := strings.TrimPrefix(e.Field, "policy ")
			if i := strings.Index(inner, ": limit "); i >= 0 {
				inner = inner[i+len(": "):]
			}
			bad(field+": "+inner, e.Value, e.Bound)
		}
	}
	// A typed nil is what an ignored error of a constructor leaves.
	present := func(field string, v any) {
		if v != nil && typednil.Is(v) {
			bad(field, fmt.Sprintf("nil %T", v), "must not be a nil pointer")
		}
	}
	present("Backend", c.Backend)
	noPolicy := c.Policy.Name == "" && len(c.Policy.Limits) == 0
	switch {
	case c.Registry == nil && noPolicy:
		bad("Policy", "none", fmt.Sprintf("must have 1 to %d limits, or Registry must be set", limit.MaxLimits))
	case c.Registry == nil:
		within("Policy", c.Policy.Validate())
	case c.Registry.held.Load() == nil:
		bad("Registry", "empty", "must be made by NewRegistry or OpenRegistry")
	case !noPolicy:
		bad("Policy", strconv.Quote(c.Policy.Name), "must be zero beside a Registry, which has a default")
	}
	noShadow := c.Shadow.Name == "" && len(c.Shadow.Limits) == 0
	if !noShadow {
		within("Shadow", c.Shadow.Validate())
	}
	present("ShadowBackend", c.ShadowBackend)
	if c.ShadowBackend != nil && noShadow && c.Registry == nil {
		bad("ShadowBackend", fmt.Sprintf("%T", c.ShadowBackend), "is for a shadow only: Shadow or one of a Registry")
	}
	errs = append(errs, checkList("Allow", c.Allow)...)
	errs = append(errs, checkList("Deny", c.Deny)...)
	if c.Failure > FailError {
		bad("Failure", c.Failure.String(), "must be FailLocal, FailClosed, FailOpen or FailError")
	}
	if c.Processes < 0 {
		bad("Processes", strconv.Itoa(c.Processes), "must not be negative")
	}
	switch {
	case c.Failure == FailOpen && c.OpenCap == limit.Limit{}:
		bad("OpenCap", "none", "FailOpen must have a limit: an outage must not admit without end")
	case c.Failure == FailOpen:
		within("OpenCap", c.OpenCap.Validate())
	case c.OpenCap != limit.Limit{}:
		bad("OpenCap", c.OpenCap.String(), "is for FailOpen only")
	}
	if c.RetryAfter < 0 {
		bad("RetryAfter", c.RetryAfter.String(), "must not be negative")
	}
	if c.Timeout < 0 {
		bad("Timeout", c.Timeout.String(), "must not be negative")
	}
	present("Observer", c.Observer)
	switch {
	case c.NearLimit != 0 && c.OnNearLimit == nil:
		bad("NearLimit", fmt.Sprint(c.NearLimit), "is for OnNearLimit only")
	case !(c.NearLimit >= 0 && c.NearLimit <= 1): // nor NaN
		bad("NearLimit", fmt.Sprint(c.NearLimit), "must be from 0 to 1")
	}
	errs = append(errs, c.Stats.validate()...)
	return errors.Join(errs...)
}
