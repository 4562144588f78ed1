// Package explorer searches small scopes of the pure protocols completely: every order of every step, and every fault that a
// network or a process can add. What package simulation samples in large scopes by seeds, this enumerates in small ones. It is
// for tests only.
//
//	report := explorer.Handover{Places: 2, Processes: 2, Takes: 2, Versions: 3, Faults: 1}.Explore(16)
//	fmt.Println(report) // 52341 states, 180265 steps, depth 16, complete
//
// There are three worlds:
//
//   - [Handover]: processes move one key between two places, by the real [dual.Dual], or among three, by the router's
//     protocol. Versions go forward and back. A message may be lost before or after it is carried out, come late, or come
//     twice, and a process may crash after any step.
//   - [Leases]: processes lease quota, spend it and give it back, around the end of a window and a reset, with readings of the
//     server's clock that are old, lost and late messages, crashes, and a host that sleeps.
//   - [Buckets]: takes and refunds of a token bucket out of order, with floors from any earlier moment.
//
// Each world runs the algebra of package limit, keeps a book of what was charged, given back and admitted, and compares both
// after every step. Each takes a [Plant], a bug that the search must find. The Dual is the real one. The router's protocol and the
// process with a lease are models of a page each: they show that the protocol is sound, not that router.Router and lease.Lease
// follow it, which is what package simulation is for. No server loses its memory here.
package explorer
