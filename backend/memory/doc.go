// Package memory counts in this process, for one process alone and for tests.
//
//	counts, err := memory.New(memory.Config{})
//	...
//	defer counts.Close()
//	t, err := throttler.New(throttler.Config{Backend: counts, Policy: policy})
//
// A Throttler without a Backend makes a [Memory] of its own. It links no client of a server.
//
// # What it does not promise
//
// Processes don't share its counts, and a restart forgets them. It is bounded: beyond Config.MaxKeys it evicts keys whose windows
// are over, then live ones, whose decisions are Bounded with the cause [backend.ErrEvicted].
//
// # Concurrency
//
// A Memory is safe for concurrent use: keys are spread over shards, each with a lock that is never held across a call. It starts no
// goroutine, and allocates only for a new key.
package memory
