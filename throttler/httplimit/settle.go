package httplimit

import "net/http"

// Outcome is how a request ended. Wrap observes it; another adapter reports it, see [Call.Done].
type Outcome struct {
	// Status is the status code of the response: 200 if the handler wrote none, 500 if it panicked before it did,
	// 0 if it took the connection over (Hijack) before it did.
	Status int

	// Written is the size of the body, in bytes before any transfer encoding; 0 for HEAD.
	Written int64

	// Cost is what was charged at the start. Done sets it.
	Cost int64

	// Panicked is whether the handler panicked, also with http.ErrAbortHandler.
	Panicked bool

	// Hijacked is whether the handler took the connection over.
	Hijacked bool
}

// NotModified reports a 304. A client can get one from http.ServeContent and most frameworks with If-None-Match: *, so let
// GiveBack keep some of the cost.
func (o Outcome) NotModified() bool { return o.Status == http.StatusNotModified }

// Failed reports a 5xx or a panic. Give failures back only if clients can't cause them at will.
func (o Outcome) Failed() bool { return o.Status >= 500 || o.Panicked }

// GiveBack makes a [Config.Settle] that gives the cost back except for keep if any of the conditions holds, and nothing otherwise:
//
//	Cost:   func(*http.Request) int64 { return 10 }, // the limits count tenths of a request
//	Settle: httplimit.GiveBack(1, httplimit.Outcome.NotModified, httplimit.Outcome.Failed),
//
// Keep bounds the requests of a client that always causes the outcome: it gets at most Max / keep of them from a limit of Max,
// here ten times as many as a client that never does. A request that costs no more than keep gets nothing back, so give requests
// a Cost above it. With a keep of 0 everything is given back, and a client that can cause the outcome has no limit. GiveBack
// panics if keep is negative.
//
// A bound on how often the cost is given back would need a second count for each key, one more call for each request, and a
// policy that the headers don't show.
func GiveBack(keep int64, when ...func(Outcome) bool) func(*http.Request, Outcome) int64 {
	if keep < 0 {
		panic("httplimit: GiveBack: keep must not be negative")
	}
	return func(_ *http.Request, o Outcome) int64 {
		for _, holds := range when {
			if holds(o) {
				return min(keep, o.Cost)
			}
		}
		return o.Cost
	}
}
