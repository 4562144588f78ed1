package backend

import (
	"time"
)

// Trace is the path of one request: each backend on it records where it sent the request. To trace a request, set
// [Request.Trace] to an empty Trace and read it after the call. Only the calling goroutine writes it, before the call returns.
//
// It is part of the request, because a lookup in the context of an HTTP request took 20 to 50 ns, traced or not; an untraced
// request costs a comparison with nil.
type Trace struct {
	Side        string // of a dual.Dual that the request went to: "old" or "new"
	Flag        string // that chose the side, as dual.Config.Flag names it
	FlagVersion uint64 // of the flag's answer; 0 if no counts are handed over
	Shadowed    bool   // whether the other side was called, too, without deciding

	HandedOver bool // whether the key and its counts were handed over from another side or group

	Group, Node string // of a router, that the request went to last
	Role        Source // of that node: Primary or Replica

	// Lease is what a lease.Lease did that did not decide by itself: "fetched" a batch for this request and others, or
	// "forwarded" the request. Empty otherwise; the decisions of a Lease have a Source.
	Lease string

	Calls []Call // to servers, in their order
}

// Call is one call to a server. It never holds a key.
type Call struct {
	System  string // "redis" or "memcached"
	Node    string // the server's address; of several, separated by commas
	Op      string // as in [Error]
	Command string // such as "EVALSHA"; empty for an operation of several
	Script  string // the name of the script, as in package scripts; empty if none was run
	Status  string // the first word of the server's error reply, such as "READONLY"; empty for any other outcome
	Shared  int    // how many calls shared this script call; 0 if that is not known

	Start    time.Time
	Duration time.Duration
	Err      error // nil if the server's reply tells the outcome, as a denial does
}
