package main

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// limitConnect is the adapter for connect-go's unary calls. An interceptor knows the procedure and the error of a call in every
// protocol: a denial is a connect.Error with CodeResourceExhausted and the header fields of the limits in its metadata.
func limitConnect(limited *httplimit.Middleware) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (response connect.AnyResponse, err error) {
			if req.Spec().IsClient {
				return next(ctx, req)
			}
			r := &http.Request{
				Method: req.HTTPMethod(), URL: &url.URL{Path: req.Spec().Procedure}, Header: req.Header(), RemoteAddr: req.Peer().Addr,
			}
			header := http.Header{}
			call := limited.Begin(header, r.WithContext(ctx))
			if !call.Allowed() {
				return nil, refusal(call, header)
			}
			outcome := httplimit.Outcome{Panicked: true}
			defer func() {
				if err != nil {
					outcome.Status = statusOf(connect.CodeOf(err))
				}
				call.Done(outcome)
			}()
			response, err = next(call.Request().Context(), req)
			outcome.Panicked = false
			if failed, ok := errors.AsType[*connect.Error](err); ok {
				maps.Copy(failed.Meta(), header)
			} else if err == nil {
				maps.Copy(response.Header(), header)
			}
			return response, err
		}
	}
}

// refusal is the error of a call that is not allowed.
func refusal(call *httplimit.Call, header http.Header) error {
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
	}
	err := connect.NewError(code, errors.New("the call exceeds a rate limit, or has none"))
	maps.Copy(err.Meta(), header)
	return err
}

// statusOf tells the server's failures from the client's mistakes, as httplimit's Outcome does by status.
func statusOf(code connect.Code) int {
	switch code {
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss, connect.CodeUnavailable, connect.CodeUnimplemented:
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}

const greet = "/greet.v1.GreetService/Greet"

// newConnect serves a procedure without generated code. With it: greetv1connect.NewGreetServiceHandler(service, interceptors).
func newConnect(limited *httplimit.Middleware) http.Handler {
	interceptors := connect.WithInterceptors(limitConnect(limited))
	mux := http.NewServeMux()
	mux.Handle(greet, connect.NewUnaryHandler(greet,
		func(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
			if req.Msg.Value == "" {
				return nil, connect.NewError(connect.CodeUnavailable, errors.New("the database is away"))
			}
			return connect.NewResponse(wrapperspb.String("hello, " + req.Msg.Value)), nil
		}, interceptors))
	return mux
}
