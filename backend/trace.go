package backend

import (
	"time"

	"github.com/sluice-go/sluice/limit/state"
)

// Trace is the way that one request takes: the backends that it passes write into it where they sent it. Whoever wants to
// know sets [Request.Trace] to an empty one and reads it after the call. It is written by the goroutine that makes the
// call, never after that has returned.
//
// It goes with the request rather than with the context. Looking it up in the context of an HTTP request took 20 to 50 ns,
// traced or not; this takes those that nobody traces a comparison with nil.
type Trace struct {
	Side        string // of a [Dual] that the request went to: "old" or "new"
	Flag        string // that chose the side, as its DualConfig names it
	FlagVersion uint64 // of the answer that decided; 0 if nothing is carried over
	Shadowed    bool   // whether the other side was asked, too, without deciding

	HandedOver bool // whether the key came from another side, or group, with the counts of that

	Group, Node string // of a router, that the request went to last
	Role        Source // of that node: Primary or Replica

	Lease LeaseUse // what a [Lease] did that did not decide by itself

	Calls []Call // to servers, in their order
}

// LeaseUse is what a [Lease] did with a request that it passed on. Where it decided by itself the Source says so.
type LeaseUse uint8

const (
	NoLease LeaseUse = iota
	Fetched          // admitted or denied with a batch that was fetched for it and others
	Passed           // sent on by itself
)

func (u LeaseUse) String() string {
	names := [...]string{"", "fetched", "passed"}
	if int(u) < len(names) {
		return names[u]
	}
	return "lease use?"
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
	Err      error // nil for every answer of the server that says what became of the request, a denial too
}

// Visit notes to which node the request goes. Like all methods of a Trace it does nothing if that is nil.
func (t *Trace) Visit(group, node string, role Source) {
	if t != nil {
		t.Group, t.Node, t.Role = group, node, role
	}
}

// HandOver notes that the key came from elsewhere, with its counts.
func (t *Trace) HandOver() {
	if t != nil {
		t.HandedOver = true
	}
}

// Record adds a call that has ended, and sets its Duration and its Err.
func (t *Trace) Record(c Call, err error) {
	c.Duration = time.Since(c.Start)
	if !state.IsRedirect(err) {
		c.Err = err
	}
	t.Calls = append(t.Calls, c)
}
