// Package state is the algebra of rate limits: what is counted of a key, and how a request is checked, charged, given back,
// joined and handed over. It is for backends; applications meet package limit.
//
//	var counts state.State
//	verdict := counts.Take(&policy, state.At{Micros: nowMicros}, 1)
//
// Everything here is pure: no I/O, no clock, no goroutine; time is an argument. Memory, Memcached and replica reads run this
// code, and the Lua scripts mirror it, so a key's [State] means the same wherever it is stored.
//
// # Invariants
//
// A [State.Charge] counts what has happened, so used may exceed Max; a take never makes it so. [Mark] says where it counts.
//
// A policy is checked as a whole, then charged as a whole: a denied request changes nothing.
//
// Within a window charged and refunded only grow, and used = charged - refunded. That makes State a join-semilattice under
// [Merge], so any two copies of a key's state can be joined in any order, any number of times.
//
// Every entry says when it is over. Every reader judges that by its own now; an entry that is over counts as absent.
//
// # What it does not promise
//
// A clock that steps back opens no window again, but one that runs ahead ends windows early.
//
// # Concurrency
//
// A Verdict is a value. A State belongs to one goroutine at a time.
package state
