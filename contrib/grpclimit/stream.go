package grpclimit

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-go/sluice/throttler"
)

// Stream asks first and calls the handler only if the stream may open. It is a grpc.StreamServerInterceptor.
func (i *Interceptor) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	m := i.method(info.FullMethod)
	if m.Exempt {
		return handler(srv, ss)
	}
	ctx, c := ss.Context(), Call{Method: info.FullMethod}
	a, err := i.admit(ctx, c, m, ss)
	if err != nil {
		return err
	}
	code := codes.Internal // of a panic
	defer func() { i.settle(ctx, c, a, code) }()
	s := &stream{
		ServerStream: ss, ctx: context.WithValue(ctx, decisionKey{}, a.decision),
		interceptor: i, call: c, throttle: m.Throttler, keys: a.keys, limits: a.limits,
	}
	err = handler(srv, s)
	code = codeOf(err)
	s.tell(err == nil)
	return err
}

// stream tells the limits with the headers that the handler sends, and no earlier: headers keep the client from retrying
// when the handler fails. It charges messages if the configuration says so.
type stream struct {
	grpc.ServerStream
	ctx         context.Context
	interceptor *Interceptor
	call        Call
	throttle    *throttler.Throttler
	keys        []string
	limits      metadata.MD
	limitsSent  sync.Once
	refused     error // of a message; only for who receives, and that is one goroutine at a time
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) SendHeader(md metadata.MD) error {
	s.tell(true)
	return s.ServerStream.SendHeader(md)
}

func (s *stream) SendMsg(m any) error {
	s.tell(true)
	return s.ServerStream.SendMsg(m)
}

func (s *stream) tell(ok bool) { s.limitsSent.Do(func() { tell(s.ServerStream, s.limits, ok) }) }

// RecvMsg charges a message when it has come, for it is the message that says what it costs.
func (s *stream) RecvMsg(m any) error {
	if s.refused != nil {
		return s.refused
	}
	if err := s.ServerStream.RecvMsg(m); err != nil || s.interceptor.cfg.MessageCost == nil {
		return err
	}
	message := Call{Method: s.call.Method, Request: m}
	cost := clampCost(s.interceptor.cfg.MessageCost(s.ctx, message))
	if cost == 0 {
		return nil
	}
	d, err := allow(s.ctx, s.throttle, s.keys, cost)
	if s.refused = s.interceptor.refusal(s.ctx, message, s.ServerStream, &d, err); s.refused != nil {
		s.limitsSent.Do(func() {}) // the trailer has the limits of the denial
	}
	return s.refused
}
