package throttler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
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
	// Backend counts. Throttlers may share one, and don't close it. If nil, the Throttler has a memory.Memory of its own, and
	// limits hold for this process alone.
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

	// Failure decides a request when the backend gives no verdict. Zero: FailLocal.
	Failure FailurePolicy

	// Processes is how many processes share the limits, those of a rolling deploy included, as in lease.Config. Under
	// FailLocal each admits its share while the backend is down, ceil(Max / Processes): with too small a number all together
	// admit more than Max, with too large a number less. Zero: 10.
	Processes int

	// FallbackKeys bounds how many keys FailLocal counts in this process, as memory.Config.MaxKeys does. With more keys
	// in an outage some are evicted, and get more than their share. Zero: 1,048,576. Negative: no bound.
	FallbackKeys int

	// OpenCap bounds what FailOpen admits in this process, over all keys together. FailOpen requires it.
	OpenCap limit.Limit

	// RetryAfter is that of a denial that no limit decided, and the longest pause of Wait in an outage. Zero: 1 s.
	RetryAfter time.Duration

	// Timeout bounds each call to the backend, beside the caller's context. A later reply is an outage. A backend can't tell it
	// from the caller's deadline, which shows nothing about its servers: with a Timeout below the backend's own, only heartbeats
	// find a frozen node. Zero: the backend's own.
	Timeout time.Duration

	// ClampReserve makes Reserve and ReserveAll reserve at most what every limit of their keys can ever hold. An estimate above
	// that then waits for a full quota, and Settle charges the rest. False: it is refused, with a limit.ErrCostExceedsLimit.
	ClampReserve bool

	// RequireReachable makes New call Ping, for 5 s at most, and fail with its error: a wrong password, an untrusted certificate
	// or a wrong address then prevents the start, and is not left to the failure policy. Ping asks every server of the
	// Backend, so one server that is down prevents the start, too. To start in spite of that call Ping and check the Kind of
	// its errors. False: New does no network I/O.
	RequireReachable bool

	// Observer is called around every operation: for metrics, traces, statistics, notices and shadow policies. Observers makes
	// one of several. The Throttler doesn't close it. If nil, no observer is called.
	Observer Observer

	// Logger logs outages: at level Warn at most once a minute for each kind of cause. Causes that only a person can fix
	// (backend.Misconfigured and backend.Corrupt: credentials, certificates, rights, foreign values) are logged at level Error
	// every five seconds while requests meet them. If nil, slog.Default() is used.
	Logger *slog.Logger
}

const defaultProcesses = 10 // as of a lease.Config

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
	within := func(field string, err error) { // the field names the policy
		for _, e := range fielderrors.All(err) {
			inner := strings.TrimPrefix(e.Field, "policy ")
			if i := strings.Index(inner, ": limit "); i >= 0 {
				inner = inner[i+len(": "):]
			}
			bad(field+": "+inner, e.Value, e.Bound)
		}
	}
	// An ignored error of a constructor leaves a typed nil.
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
	if c.Processes < 0 || c.Processes > math.MaxInt32 {
		bad("Processes", strconv.Itoa(c.Processes), fmt.Sprintf("must be from 0 to %d", math.MaxInt32))
	}
	switch {
	case c.Failure == FailOpen && c.OpenCap == limit.Limit{}:
		bad("OpenCap", "none", "must be set for FailOpen: an outage must not admit without a bound")
	case c.Failure == FailOpen:
		within("OpenCap", c.OpenCap.Validate())
		if c.OpenCap.IsCounter() {
			bad("OpenCap", c.OpenCap.String(), "must be a limit: a counter bounds nothing")
		}
	case c.OpenCap != limit.Limit{}:
		bad("OpenCap", c.OpenCap.String(), "is for FailOpen only")
	}
	if c.RetryAfter < 0 {
		bad("RetryAfter", c.RetryAfter.String(), "must not be negative")
	}
	if c.Timeout < 0 {
		bad("Timeout", c.Timeout.String(), "must not be negative")
	}
	for _, o := range typednil.Within(c.Observer) {
		bad("Observer", typednil.Name(o), "must not be a nil pointer")
	}
	return errors.Join(errs...)
}

func emptyView(v PolicyView) bool { return v == nil || typednil.Is(v) || v.Default() == nil }
