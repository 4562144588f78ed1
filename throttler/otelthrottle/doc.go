// Package otelthrottle is an observer of Throttlers on OpenTelemetry: spans of the decisions of requests that are traced, metrics
// of all decisions, and log events of outages and changes of state.
//
//	observer, err := otelthrottle.New(otelthrottle.Config{})
//	...
//	t, err := throttler.New(throttler.Config{Policy: policy, Backend: counts, Observer: observer})
//
// It imports only the API of OpenTelemetry. The providers are those of its Config, or the global ones. Without a provider it
// records nothing, and costs some 150 ns and no allocation for each decision.
//
// # Spans
//
// A decision has a span named "ratelimit POLICY" if the caller's span records, or always with Config.Always. It has the
// attributes sluice.policy, .cost, .outcome (allowed, denied, error), .source, .guarantee and, if known, .limit, .remaining,
// .cause, .retry_after, .lease, .side, .group, .node, .role, .script, .handed_over and .shadowed; of a flag that chose the side
// feature_flag.key, .result.variant and .version. Calls to servers are child spans of kind client by the conventions for
// databases, named "EVALSHA 10.0.0.1:6379"; db.response.status_code is the first word of the server's error, such as READONLY.
// They are made after the decision, when its calls are known. A call for several requests is in the spans of all of them.
//
// # Metrics
//
//	sluice.decisions             by policy, outcome, source, guarantee
//	sluice.decision.duration     seconds, from 100 us, by policy, outcome, source
//	sluice.decisions.near_limit  admissions that left at most Config.NearLimit of the quota, by policy
//	sluice.exposure              cost that was admitted without being Exact, by policy, source, guarantee, cause
//	sluice.refunds               cost that was given back, by policy, outcome
//	sluice.overruns              cost that Settle charged above what was reserved, by policy, outcome
//	sluice.outages               by policy, cause and failure policy, at most one a minute for each cause
//	sluice.shadow.decisions      decisions of shadow policies, by policy, shadow_policy, outcome
//	sluice.operation.duration    seconds of Peek, Usage, Reset and Grant, by policy, operation
//
// [Observer.WatchLease], [Observer.WatchDual], [Observer.WatchRouter], [Observer.WatchNodes] and [Observer.WatchFlag] add others.
// There is no convention for rate limits yet; the nearest one, aspnetcore.rate_limiting, has policy and result. The repository's
// docs/telemetry.md lists all metrics as Prometheus shows them, and its folder dashboards has a dashboard and alerts on them.
//
// # Events
//
// Log events are sluice.outage and sluice.outage_end; those of nodes, see [Observer.EmitNode]; and feature_flag.evaluation, see
// [Observer.EmitFlag].
//
// # What it does not export
//
// Keys are never exported: they are personal data and unbounded. After Config.MaxPolicies names of policies further ones are
// called "_OTHER".
//
// An Observer is safe for concurrent use.
package otelthrottle
