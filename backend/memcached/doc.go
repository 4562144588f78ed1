// Package memcached counts on Memcached servers, to serve an application that has them until it moves to Redis by package dual.
//
//	counts, err := memcached.New([]string{"10.0.0.1:11211", "10.0.0.2:11211"}, memcached.Config{})
//	...
//	t, err := throttler.New(throttler.Config{Backend: counts, Policy: policy})
//
// A call reads an item and swaps it: two round trips, and more under contention.
//
// # What it does not promise
//
// Memcached doesn't report what it loses by restarts and evictions, so decisions are exact only as far as it keeps its items.
// Its clock can't be read: those of all processes must agree. A changed list of servers moves keys without their counts. A key
// that many processes change at once may end in an error of kind [backend.Contended], which charged nothing.
//
// # Concurrency
//
// A [Memcached] is safe for concurrent use. The calls to each server are bounded, and a server that hangs delays its own keys
// only. A caller who leaves returns at once; the call goes on in a goroutine until Config.Timeout, and Close waits for it.
package memcached
