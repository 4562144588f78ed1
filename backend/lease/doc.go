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
// # What it does not promise
//
// A process may deny although quota is left: the unspent part of another's batch is missing until it is returned, at most one
// batch less one for each process. Remaining, as decisions show it, is as old as the lease that decided. Small limits gain little:
// where Max is below 4 x Processes the server decides each request. A refund or a reset by another process is noticed after
// Config.Recheck, and after a reset the leases of other processes are still spent. Keys longer than 200 bytes are not leased.
//
// # Concurrency
//
// A Lease is safe for concurrent use. One goroutine returns what is left of batches, until Close; one fetch at a time is under way
// for a key, and no lock is held during it.
package lease
