// Package otelthrottle tells OpenTelemetry what a Throttler decides: a span for each decision of a request that is traced
// anyway, metrics of all, and log events of outages and changes of state.
//
//	observer, err := otelthrottle.New(otelthrottle.Config{})
//	...
//	t, err := throttler.New(throttler.Config{Policy: policy, Backend: counts, Observer: observer})
//
// It imports the API of OpenTelemetry only. The providers are those of its Config, or the global ones; where none is set
// it records nothing, and costs some 150 ns for a decision and no allocation.
//
// # Spans
//
// A span named "ratelimit POLICY" is made where the caller's span records, or for all with Config.Always. It has
// the attributes sluice.policy, .cost, .outcome (allowed, denied, error), .source, .guarantee and, as far as they are
// known, .limit, .remaining, .cause, .retry_after, .lease, .side, .group, .node, .role, .script, .handed_over and .shadowed; of
// a flag that chose the side feature_flag.key, .result.variant and .version. Calls to servers are child spans of kind client
// by the conventions for databases, named "EVALSHA 10.0.0.1:6379"; db.response.status_code is the word that the server's
// error began with, such as READONLY. They are made when the decision is known: only then is it known which calls it took.
// Calls of a batch that was fetched for several requests are in the spans of all of them.
//
// # Metrics
//
//	sluice.decisions             by policy, outcome, source, guarantee
//	sluice.decision.duration     seconds, from 100 us, by policy, outcome, source
//	sluice.decisions.near_limit  admissions that left at most Config.NearLimit of the quota, by policy
//	sluice.exposure              cost that was admitted without being Exact, by policy, source, guarantee
//	sluice.refunds               cost that was given back, by policy, outcome
//	sluice.outages               by policy and cause, at most one a minute for each cause
//	sluice.shadow.decisions      what shadow policies would have decided, by policy, shadow_policy, outcome
//	sluice.operation.duration    seconds that Peek, Usage and Reset take, by policy, operation
//
// and what [Observer.WatchLease], [Observer.WatchDual], [Observer.WatchRouter], [Observer.WatchNodes] and
// [Observer.WatchFlag] read. There is no convention for rate limits yet; the nearest one, aspnetcore.rate_limiting, has
// policy and result. The repository's docs/telemetry.md lists all as Prometheus sees them, and its folder dashboards holds
// a dashboard and alerts on them.
//
// # Events
//
// Log events tell of outages, sluice.outage and sluice.outage_end; of changes of nodes, see [Observer.EmitNode]; and of changes of a flag,
// feature_flag.evaluation, see [Observer.EmitFlag].
//
// # What it does not tell
//
// A key is never told: keys are personal data, and there is no end of them. After Config.MaxPolicies names of policies
// further ones are called "_OTHER".
//
// An Observer is safe for concurrent use.
package otelthrottle
