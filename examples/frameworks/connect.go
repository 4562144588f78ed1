package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// limitConnect is the adapter for connect-go, as an interceptor of handlers: it knows the procedure and the error of a call in
// every protocol. A denial is a connect.Error with CodeResourceExhausted, and the fields of the limits are in the header of the
// response. A stream is charged once, when it opens.
type limitConnect struct{ limited *httplimit.Middleware }

// WrapUnary implements connect.Interceptor.
func (l limitConnect) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (response connect.AnyResponse, err error) {
		info, ok := connect.CallInfoForHandlerContext(ctx)
		if !ok || req.Spec().IsClient {
			return next(ctx, req)
		}
		r := request(ctx, req.HTTPMethod(), req.Spec(), req.Peer(), req.Header())
		err = l.serve(info.ResponseHeader(), r, func(ctx context.Context) (err error) { // a header that goes with errors, too
			response, err = next(ctx, req)
			return err
		})
		return response, err
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (l limitConnect) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		r := request(ctx, http.MethodPost, conn.Spec(), conn.Peer(), conn.RequestHeader())
		return l.serve(conn.ResponseHeader(), r, func(ctx context.Context) error { return next(ctx, conn) })
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (limitConnect) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// request has what KeyFuncs and routes read.
func request(ctx context.Context, method string, spec connect.Spec, peer connect.Peer, header http.Header) *http.Request {
	r := &http.Request{Method: method, URL: &url.URL{Path: spec.Procedure}, Header: header, RemoteAddr: peer.Addr}
	return r.WithContext(ctx)
}

func (l limitConnect) serve(header http.Header, r *http.Request, next func(context.Context) error) error {
	call := l.limited.Begin(header, r)
	if !call.Allowed() {
		return refusal(call)
	}
	outcome := httplimit.Outcome{Panicked: true}
	defer func() { call.Done(outcome) }()
	err := next(call.Request().Context())
	outcome = httplimit.Outcome{Status: statusOf(err)}
	return err
}

// refusal is the error of a call that is not allowed.
func refusal(call *httplimit.Call) error {
	status, _ := call.Problem(http.Header{})
	code := connect.CodeUnavailable
	switch status {
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
		code = connect.CodeResourceExhausted
	case http.StatusUnauthorized:
		code = connect.CodeUnauthenticated
	case http.StatusForbidden:
		code = connect.CodePermissionDenied
	case http.StatusBadRequest:
		code = connect.CodeInvalidArgument
	case http.StatusInternalServerError:
		code = connect.CodeInternal
	case 499: // the client has left
		code = connect.CodeCanceled
	}
	return connect.NewError(code, errors.New("the call exceeds a rate limit, or has none"))
}

// statusOf tells the server's failures from the client's mistakes, as httplimit's Outcome does by status.
func statusOf(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case connect.IsNotModifiedError(err):
		return http.StatusNotModified
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss, connect.CodeUnavailable, connect.CodeUnimplemented:
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}

const (
	greet     = "/greet.v1.GreetService/Greet"
	greetMany = "/greet.v1.GreetService/GreetMany"
)

// errDown is shared by calls, so an interceptor must not put a call's header fields into it.
var errDown = connect.NewError(connect.CodeUnavailable, errors.New("the database is down"))

// newConnect serves two procedures without generated code. With it: greetv1connect.NewGreetServiceHandler(service, interceptors).
func newConnect(limited *httplimit.Middleware) http.Handler {
	interceptors := connect.WithInterceptors(limitConnect{limited})
	mux := http.NewServeMux()
	mux.Handle(greet, connect.NewUnaryHandler(greet,
		func(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
			if req.Msg.Value == "" {
				return nil, errDown
			}
			return connect.NewResponse(wrapperspb.String("hello, " + req.Msg.Value)), nil
		}, interceptors))
	mux.Handle(greetMany, connect.NewServerStreamHandler(greetMany, func(
		_ context.Context, req *connect.Request[wrapperspb.StringValue], stream *connect.ServerStream[wrapperspb.StringValue],
	) error {
		if req.Msg.Value == "" {
			return errDown
		}
		return errors.Join(stream.Send(wrapperspb.String("hello")), stream.Send(wrapperspb.String(req.Msg.Value)))
	}, interceptors))
	return mux
}
