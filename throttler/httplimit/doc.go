// Package httplimit puts a throttler.Throttler in front of an http.Handler.
//
//	limits, err := httplimit.New(t, httplimit.Config{Key: httplimit.ClientAddr()})
//	...
//	http.ListenAndServe(":8080", limits.Wrap(mux))
//
// A request that is admitted carries its Decision in its context, see [FromContext], and the state of its limits in
// the response's headers. A denial is a 429 with Retry-After and a problem+json body (RFC 9457); one by a deny list a 403.
//
// # Who is limited
//
// A [KeyFunc] names whom a request counts against. No key is never a way past the limits: a request without one is
// refused. What is not to be limited is named by [Config.Skip] alone. [ClientAddr] never believes a header that a
// client can write. Keys appear in no header, body or error.
//
// # What a request costs
//
// Each costs 1, or what [Config.Cost] says, charged before the handler runs. With [Config.Settle] what the outcome
// makes cheaper is given back after it, as GitHub does with a 304.
//
// # What it does not promise
//
// The headers tell the state at the moment of the charge: what is given back later is not in them. The RateLimit
// fields follow an Internet-Draft, see [Draft08], and claim no compliance. A request whose limiter gives no verdict
// is not let through, whatever the error: what an outage may let through is the Throttler's failure policy.
//
// A Middleware is safe for concurrent use and may wrap any number of handlers.
package httplimit
