// Package grpclimit puts a throttler.Throttler in front of a grpc-go server.
//
//	limits, err := grpclimit.New(t, grpclimit.Config{Key: grpclimit.PeerAddr()})
//	...
//	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))
//
// A denial is codes.ResourceExhausted with a RetryInfo and a QuotaFailure in the status, and the trailer
// grpc-retry-pushback-ms: a client whose service config retries RESOURCE_EXHAUSTED waits as long as it says. Two are not: a
// caller on a deny list gets PermissionDenied, and what the failure policy denies without asking a limit is Unavailable. A call
// that is admitted carries its Decision in its context, see [FromContext], and its limits in the header metadata.
//
// Who is limited is named by a [KeyFunc]. No key is never a way past the limits: what is not to be limited is named by
// [Method.Exempt] alone. Keys appear in no status, metadata or error. A call costs 1, or what [Method.Cost] or
// [Config.Cost] says, charged before the handler runs; with [Config.Refund] it is given back by the code that the call
// ends with. A stream is charged once, when it opens, and with [Config.MessageCost] for each message from the client.
//
// # What it does not promise
//
// What the messages of a stream have cost is not given back. A call on which there is no verdict is not let through,
// whatever the error: what an outage may let through is the Throttler's failure policy. The metadata tell the state at
// the moment of the charge, in the fields of an Internet-Draft, and claim no compliance. Retries by pushback need a
// response without headers: an interceptor or a handler that sets some before a denial ends them.
//
// # Concurrency
//
// An Interceptor is safe for concurrent use by any number of servers, and owns no goroutine.
//
// # Order
//
// Put it behind what authenticates, if its key depends on that, and behind what recovers from panics.
package grpclimit
