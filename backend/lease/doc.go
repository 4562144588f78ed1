// Package lease answers most requests without a call to the server: a [Lease] admits from batches that it has charged in
// advance, and denies what it knows to be exhausted.
//
//	counts, err := redisbackend.Open(&redis.Options{Addr: "localhost:6379"}, redisbackend.Config{})
//	...
//	leased, err := lease.New(counts, lease.Config{Processes: 20})
//	...
//	t, err := throttler.New(throttler.Config{Backend: leased, Policy: policy})
//
// A Lease owns the backend that it holds, and is the outermost of those that hold another. Leases never exceed a limit, except
// that the bound of a token bucket grows by the leases on it.
//
// With Config.Slack a Lease also admits on credit: it decides by what it knows to remain, without a call, and charges a little
// later. A window may then hold more than its Max, by at most what [BoundError] says.
//
//	leased, err := lease.New(counts, lease.Config{Processes: 20, Slack: 0.05})
//
// # What it does not promise
//
// A process may deny although quota is left: the unspent part of another's batch is missing until it is returned, at most one
// batch less one for each process. Remaining, as decisions show it, is as old as the lease that decided. Small limits gain little:
// where Max is below 4 x Processes the server decides each request. A refund or a reset by another process is noticed after
// Config.Recheck, and after a reset the leases of other processes are still spent. Keys longer than 200 bytes are not leased.
//
// # Concurrency
//
// A Lease is safe for concurrent use. Until Close one goroutine returns what is left of batches, and with Config.Slack another one
// charges what is owed. For a key one fetch and one charge at a time are under way, and no lock is held during them.
package lease
