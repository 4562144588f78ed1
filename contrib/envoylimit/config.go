package envoylimit

import (
	"log/slog"

	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/throttler"
)

// Config configures a Service. Rules is required; the zero value of everything else is a documented default.
type Config struct {
	// Rules are the limits at first; Service.SetRules replaces them.
	Rules *rules.Set

	// Throttler configures what decides: its Backend, which the Service doesn't close, its failure policy, its observers, its lists
	// of keys, which have the form of rules.Match.Key. Policy, Policies and PolicyFor must be zero, because the rules say what
	// applies. The Backend must be a backend.Refunder; it should be a backend.Peeker and, for negative hits, a backend.Granter, for
	// overruns a backend.Charger. Without a Backend limits hold for this process alone. Domains that lease alike share a Throttler:
	// with throttler.FailOpen each such group of domains has an OpenCap of its own.
	Throttler throttler.Config

	// Lease makes this process hold batches, or with a negative Batch a local view, for domains whose file says nothing of
	// leases. If nil, their requests are decided by the Backend.
	Lease *lease.Config

	// Shadow makes every response OK, whatever the limits say. Requests are counted where they fit. The statuses of
	// descriptors show what would have been denied.
	Shadow bool

	// Quota puts all rules into quota_mode.
	Quota bool

	// Headers are added to responses for the limit that is nearest its end. The zero value adds none.
	Headers Headers

	// FullStatuses looks at the descriptors of a denied request that were not asked, so that their statuses have a limit, too: one
	// more round trip for each denied request of several descriptors. False: a denial is answered from the reply that denied,
	// and such a status is OK without a limit.
	FullStatuses bool

	// Metadata fills the dynamic metadata of responses: the request, and the descriptors above a quota.
	Metadata bool

	// NearLimit is the share of a limit above which its hits count as near it. Zero: 0.8.
	NearLimit float64

	// MaxRequests bounds how many requests are under way at once. Further ones get RESOURCE_EXHAUSTED with an ErrorInfo of the
	// reason OVERLOADED and a RetryInfo, which Envoy treats as a failure of the service. Zero: 4,096.
	MaxRequests int

	// MaxDescriptors bounds the descriptors of a request; more are INVALID_ARGUMENT. Zero: 64.
	MaxDescriptors int

	// MaxSeries bounds the names in Service.RuleStats that hold values of requests, those of overrides and of rules with
	// detailed_metric or value_to_metric. Further ones are counted as _OTHER; the names of other rules never are. Zero: 10,000.
	MaxSeries int
}

// Headers are the headers that Envoy adds to its responses.
type Headers struct {
	// Limit, Remaining and Reset are the names of three headers, as the reference has them: requests of the unit, what is left, and
	// the seconds until there is more. Those without a name are left out.
	Limit, Remaining, Reset string

	// IETF adds RateLimit-Policy and RateLimit, in the format of draft-ietf-httpapi-ratelimit-headers, for all limits that apply.
	IETF bool
}

// DefaultHeaders are the names that the reference has by default.
var DefaultHeaders = Headers{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"}

// lists reports whether keys may be on a list.
func (c *Config) lists() bool { return len(c.Throttler.Allow)+len(c.Throttler.Deny) > 0 }

func (c Config) withDefaults() Config {
	if c.NearLimit == 0 {
		c.NearLimit = 0.8
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = 4096
	}
	if c.MaxDescriptors == 0 {
		c.MaxDescriptors = 64
	}
	if c.MaxSeries == 0 {
		c.MaxSeries = 10_000
	}
	if c.Throttler.Logger == nil {
		c.Throttler.Logger = slog.Default()
	}
	return c
}

// validate reports every problem of its own; the Throttler reports those of its part.
func (c *Config) validate() error {
	problems := fielderrors.List{Prefix: "envoylimit: "}
	if c.Rules == nil {
		problems.Add("Rules", "nil", "must not be nil")
	}
	t := &c.Throttler
	if t.Policy.Name != "" || len(t.Policy.Limits) > 0 {
		problems.Add("Throttler.Policy", t.Policy.Name, "must be zero: Rules say what applies")
	}
	if t.Policies != nil {
		problems.Add("Throttler.Policies", "set", "must be nil: Rules say what applies")
	}
	if t.PolicyFor != nil {
		problems.Add("Throttler.PolicyFor", "set", "must be nil: Rules say what applies")
	}
	if !(c.NearLimit >= 0 && c.NearLimit <= 1) {
		problems.Add("NearLimit", c.NearLimit, "must be from 0 to 1")
	}
	fielderrors.NotNegative(&problems, "MaxRequests", c.MaxRequests)
	fielderrors.NotNegative(&problems, "MaxDescriptors", c.MaxDescriptors)
	fielderrors.NotNegative(&problems, "MaxSeries", c.MaxSeries)
	return problems.Err()
}
