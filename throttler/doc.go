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
// a context that ended, or an outage under [FailError]. Under the other failure policies an outage gives a Decision
// too: its Source is Fallback, its Guarantee says how far it can be off, and its Cause is the error. A backend that is well
// but has too many callers at one key is no outage: the request is denied, and its Source is Unknown.
//
// # Policies
//
// Keys have the policy of the Config, or what [Config.PolicyFor] says, or what stands in a file that a [Registry] follows.
// [Config.Allow] and [Config.Deny] are lists of keys that are decided without a backend. [Config.Shadow] tries limits
// that are not enforced yet.
//
// # What it tells
//
// An [Observer] is told of every decision; [Config.OnNearLimit] of keys that come near a limit. [Throttler.Stats] and
// [Throttler.TopDenied] are for an operator, and count only where [Config.Stats] says so.
//
// # What it does not promise
//
// A Throttler is exact while one primary decides. What a failover, an eviction or an outage may admit above Max is
// bounded, and the decisions say so, but it is not nothing. [Throttler.AllowAll] is not atomic across keys.
// [Throttler.Wait] is not fair.
//
// A Throttler is safe for concurrent use, as are its Reservations.
package throttler
