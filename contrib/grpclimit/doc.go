// Package grpclimit puts a throttler.Throttler in front of a grpc-go server.
//
//	limits, err := grpclimit.New(t, grpclimit.Config{Key: grpclimit.PeerAddr()})
//	...
//	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))
//
// A denial is codes.ResourceExhausted with a RetryInfo and a QuotaFailure in the status, and the trailer
// grpc-retry-pushback-ms: a client whose service config retries RESOURCE_EXHAUSTED waits as long as it says. Two denials
// differ: a caller on a deny list gets PermissionDenied, and what the failure policy denies without a limit is Unavailable. A
// call that is admitted carries its Decision in its context, see [FromContext], and its limits in the header metadata.
//
// A [KeyFunc] returns the key that a call counts against. Calls without a key are refused; only [Method.Exempt] exempts calls.
// Keys appear in no status, metadata or error. A call costs 1, or what [Method.Cost] or [Config.Cost] returns, charged before
// the handler runs; with [Config.Refund] it is given back by the code that the call ends with. A stream is charged once, when
// it opens, and with [Config.MessageCost] for each message from the client.
//
// # What it does not promise
//
// What the messages of a stream have cost is not given back. A call without a verdict is refused, whatever the error: the
// Throttler's failure policy decides what an outage admits. The metadata show the state at the moment of the charge, in the
// fields of an Internet-Draft, and claim no compliance. Retries by pushback need a response without headers: an interceptor or
// a handler that sets some before a denial ends them.
//
// # Concurrency
//
// An Interceptor is safe for concurrent use by any number of servers, and owns no goroutine.
//
// # Order
//
// Put it behind what authenticates, if its key depends on that, and behind what recovers from panics.
package grpclimit
