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
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/limit"
)

// Config configures a Throttler. Policy or Policies is required; the zero value of everything else is a documented default.
type Config struct {
	// Backend is what counts. The Throttler doesn't close it: several may share one.
	// Nil: a backend.Memory of the Throttler's own, limits hold for this process alone.
	Backend backend.Backend

	// Policy is the policy of every key that PolicyFor doesn't give another. It must be zero beside Policies.
	Policy limit.Policy

	// Policies gives keys their policies and lists keys to allow and deny, such as a registry.Registry. Throttlers may share
	// one, and don't close it. If nil, Policy applies.
	Policies PolicySource

	// PolicyFor overrides Policy and Policies for a key: tiers, limits per key. A nil result overrides nothing. It is called for
	// every request and must be fast and safe for concurrent use. A policy that it returned must not be changed. Policies of
	// one name share their counts, so a key that moves to another tier keeps what it has used, limit by limit. Nil: nothing
	// is overridden.
	PolicyFor func(ctx context.Context, key string) *limit.Policy

	// Allow and Deny list keys that are decided without a call to the Backend: admitted and not counted, or denied with a
	// RetryAfter of limit.Never, whatever their cost. They add to the lists of Policies. An entry that ends in * lists all keys
	// with that prefix, * alone lists all. A key on both lists is denied. The Source of such a Decision is Listed. Nil: no key.
	//
	// Write entries as keys are counted. An entry that never matches a key is not detected. The KeyFuncs of package httplimit
	// document their keys, as in "addr:10.0.*"; some are hashes, and an IPv6 client is its /64, as in "addr:2001:db8:1:2::/64"
	// (httplimit.AddrKey).
	Allow, Deny []string

	// Failure says what becomes of a request when the backend gives no verdict. Zero: FailLocal.
	Failure FailurePolicy

	// Processes is how many processes share the limits, those of a rolling deploy included, as in backend.LeaseConfig. Under
	// FailLocal each admits its share while the backend is down, ceil(Max / Processes): with too small a number all together
	// admit more than Max, with too large a number less. Zero: 10.
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

	// Observer is called around every operation: for metrics, traces, statistics, notices and shadow policies. Observers makes
	// one of several. The Throttler doesn't close it. If nil, no observer is called.
	Observer Observer

	// Logger is told of outages: at level Warn at most once a minute for each kind of cause. What only a person can fix
	// (backend.Misconfigured and backend.Corrupt: credentials, certificates, rights, foreign values) is logged at level Error
	// every five seconds for as long as requests meet it. Nil: slog.Default().
	Logger *slog.Logger
}

const defaultProcesses = 10 // as of a backend.LeaseConfig

func (c Config) withDefaults() Config {
	if c.Processes == 0 {
		c.Processes = defaultProcesses
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
		for _, e := range fielderrors.All(err) {
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
	case c.Policies == nil && noPolicy:
		bad("Policy", "none", fmt.Sprintf("must have 1 to %d limits, or Policies must be set", limit.MaxLimits))
	case c.Policies == nil:
		within("Policy", c.Policy.Validate())
	case typednil.Is(c.Policies):
		bad("Policies", fmt.Sprintf("nil %T", c.Policies), "must not be a nil pointer")
	case emptyView(c.Policies.View()):
		bad("Policies", "empty", "must have a view with a default policy")
	case !noPolicy:
		bad("Policy", strconv.Quote(c.Policy.Name), "must be zero beside Policies, which have a default")
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
	observers, ok := c.Observer.(chain)
	if !ok {
		observers = chain{c.Observer}
	}
	for _, o := range observers {
		present("Observer", o)
	}
	return errors.Join(errs...)
}

func emptyView(v PolicyView) bool { return v == nil || typednil.Is(v) || v.Default() == nil }
