// Package limit declares rate limits: a [Limit], and a [Policy] of several, with their text forms and validation.
//
//	policy := limit.Policy{Name: "api", Limits: []limit.Limit{
//		limit.PerSecond(10),
//		limit.Sliding(240, time.Hour, time.Minute),
//	}}
//
// Package limit/state counts under limits.
//
// # What a limit does not promise
//
// Max is exact within the windows that a limit counts; an interval that lies across two of them may hold more, by the bounds
// that [Fixed], [Sliding] and [TokenBucket] give.
//
// # Concurrency
//
// Limit and Policy are values. A Policy must not be changed while it is in use.
package limit
