// Package limit is the algebra of rate limits: what a limit is, what is remembered of a key, and how a request
// is checked, charged, given back and merged.
//
//	policy := limit.Policy{Name: "api", Limits: []limit.Limit{
//		limit.PerSecond(10),
//		limit.Sliding(240, time.Hour, time.Minute),
//	}}
//	var state limit.State
//	verdict := state.Take(&policy, limit.At{Micros: nowMicros}, 1)
//
// Everything here is pure: no I/O, no clock, no goroutine; time is an argument. Memory and replica reads run this code,
// and the Lua scripts mirror it, so that a key's [State] means the same
// wherever it is stored. Applications meet [Limit] and [Policy]; the rest is for backends.
//
// # Invariants
//
// A policy is checked as a whole, then charged as a whole: a denied request changes nothing.
//
// Within a window charged and refunded only grow, and used = charged - refunded. That makes State a
// join-semilattice under [Merge], so any two copies of a key's state can be joined in any order, any number of
// times.
//
// Every entry says when it is over. Whoever reads it judges that by its own now; what is over counts as absent.
//
// # What it does not promise
//
// Max is exact within the windows that a limit counts; an interval that lies across two of them may hold more, by the bounds
// that [Fixed], [Sliding] and [TokenBucket] give. A clock that steps back opens no window again, but one that runs ahead ends
// them early.
//
// # Concurrency
//
// Limit, Policy and Verdict are values to be read; a Policy in use must not be changed. A State belongs to one
// goroutine at a time.
package limit
