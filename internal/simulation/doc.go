// Package simulation plays the whole library in one testing/synctest bubble: application instances, each a Throttler over a
// Lease over a Router, a network that is slow and loses messages, and servers that come and go. It is for tests only.
//
//	report := simulation.Play(seed, simulation.Scenario{Groups: 3, Instances: 4, Callers: 3, Keys: 2, Changes: 3})
//
// Everything follows from the seed: time is the bubble's, and each message's fate is a hash of the seed, of who sends it,
// and of when. A book keeps what was charged at the servers, asked back, and admitted, and is checked at every step:
//
//   - P1, P6, P9: what is admitted of a window and not given back is at most its Max; windows of a key don't overlap. Of a
//     bucket it is at most burst + rate x T in any interval T, and one batch for each instance with leases. Nothing is
//     spent from a lease after its time.
//   - P3: a call into the router is charged at most once, once if it was admitted, never if it was denied or its error says
//     that it was not charged. What is admitted of a charge is never more than the charge.
//   - P4: see [loss].
//   - P7: no server counts less than what was charged and not asked back.
//   - P8: clocks of instances are behind by up to a round trip, and those of leases are years off.
//   - P11: every call returns by its deadline; at the end no goroutine is left.
//   - P13: what is not Exact names its cause, and what was charged without a handover is not Exact.
//
// Heartbeats and the tenth second's conference of the routers are not played: package router spreads them by the
// runtime's own randomness, which no seed repeats.
//
// A [Credit] plays processes that admit before they charge, and checks P14: what a window may hold above its Max.
//
// A [Fleet] is another play: thousands of processes with leases, or on credit, to see what servers have to carry.
package simulation
