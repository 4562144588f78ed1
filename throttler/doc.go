// Package throttler answers one question for an application: may this key do this much more work now?
//
//	t, err := throttler.New(throttler.Config{
//		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerSecond(10), limit.PerHour(240)}},
//	})
//	...
//	decision, err := t.Allow(ctx, "user:42")
//
// Without a Backend it counts in memory, for this process alone. Give it a redisbackend.Redis or a router.Router and any
// number of processes share the limits.
//
// # Decisions and errors
//
// A denial is a [Decision], never an error. An error means that there is no verdict: bad input, a closed Throttler,
// a context that ended, or an outage under [FailError]. Under the other failure policies an outage gives a Decision, too:
// its Source is Fallback, its Guarantee says how far it can be off, and its Cause is the error. Contention at a key is no
// outage: the request is denied, and its Source is Unknown.
//
// # Policies
//
// A key has the policy of the Config, or that of [Config.Policies], such as a file that a registry.Registry follows, or what
// [Config.PolicyFor] returns. [Config.Allow] and [Config.Deny] list keys that are decided without a backend.
//
// # Observers
//
// An [Observer] is called around every operation. [Observers] makes one of several: those of package insight count decisions,
// notify of keys near their limits and try policies without enforcing them; that of package otelthrottle exports telemetry.
//
// # What it does not promise
//
// A Throttler is exact while one primary decides. What a failover, an eviction or an outage may admit above Max is
// bounded and reported by the decisions, but not zero. [Throttler.AllowAll] is not atomic across keys.
// [Throttler.Wait] is not fair.
//
// A Throttler is safe for concurrent use, as are its Reservations.
package throttler
