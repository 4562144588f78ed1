// Package httplimit puts a throttler.Throttler in front of an http.Handler.
//
//	limits, err := httplimit.New(t, httplimit.Config{Key: httplimit.ClientAddr()})
//	...
//	http.ListenAndServe(":8080", limits.Wrap(mux))
//
// A request that is admitted carries its Decision in its context, see [FromContext], and the state of its limits in
// the response's headers. A denial is a 429 with Retry-After and a problem+json body (RFC 9457); one by a deny list a 403, a
// missing key a 401.
//
// [Config.Routes] gives routes keys, costs and Throttlers of their own. Frameworks whose handlers are no http.Handler, or whose
// errors become responses after the middleware, use [Middleware.Begin], on which Wrap is built: an adapter is ten lines.
//
// # Keys
//
// A [KeyFunc] returns the key that a request counts against. Requests without a key are refused; only [Config.Skip] exempts
// requests. [ClientAddr] never trusts a header that a client can write. Keys appear in no header, body or error. Preflights of
// browsers (CORS) carry no API key: what answers them belongs in front.
//
// # What a request costs
//
// Each costs 1, or what [Config.Cost] returns, charged before the handler runs. [Config.Settle] gives some of it back by
// outcome, as GitHub does with a 304, or charges what it has cost beyond.
//
// # What it does not promise
//
// The headers show the state at the moment of the charge, before anything is given back. The RateLimit fields follow an
// Internet-Draft, see [Draft08], and claim no compliance. A request without a verdict is refused, whatever the error: the
// Throttler's failure policy decides what an outage admits.
//
// A Middleware is safe for concurrent use and may wrap any number of handlers.
package httplimit
