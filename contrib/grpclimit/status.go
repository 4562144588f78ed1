package grpclimit

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/internal/limitview"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// refusal is the status of a call that must not go on, nil for one that may. It sets the trailer of a denial.
func (i *Interceptor) refusal(ctx context.Context, c Call, w answer, d *throttler.Decision, err error) error {
	switch {
	case errors.Is(err, limit.ErrCostExceedsLimit):
		d.RetryAfter = limit.Never
	case err != nil:
		return i.noVerdict(ctx, c, err)
	case d.Allowed:
		return nil
	}
	// All of it in the trailer: grpc's own retries take only a response that has no headers.
	w.SetTrailer(i.limits(d))
	w.SetTrailer(i.pushback(ctx, d.RetryAfter))
	return denied(d)
}

// denied is the status of a denial. Its details name the limits in question, never the key.
//
//	ResourceExhausted  a limit denied: RetryInfo, and a QuotaFailure with every limit that did
//	ResourceExhausted  the cost can never fit (limit.Never): a QuotaFailure alone, for no waiting helps
//	ResourceExhausted  the failure policy denied, from what this process counts by itself: RetryInfo
//	Unavailable        denied without asking any limit, as under throttler.FailClosed, or because too many asked for the
//	                   key at once: RetryInfo
//	PermissionDenied   the key is on a deny list
func denied(d *throttler.Decision) error {
	if d.Source == throttler.Listed {
		return status.Error(codes.PermissionDenied, "the caller is denied")
	}
	code, message := codes.ResourceExhausted, "the call exceeds a rate limit"
	var quota errdetails.QuotaFailure
	violated := func(l *limit.Limit, how string) {
		v := &errdetails.QuotaFailure_Violation{Subject: limitview.Name(l), Description: how + l.String()}
		quota.Violations = append(quota.Violations, v)
	}
	asked := false
	for s := range d.All() {
		asked = true
		if s.RetryAfter > 0 && d.Source != throttler.Fallback {
			violated(&s.Limit, "the call exceeds the limit ")
		}
	}
	switch {
	case d.RetryAfter == limit.Never:
		message = "the call costs more than its rate limit can ever hold"
		if d.Limit != (limit.Limit{}) { // a reservation doesn't tell
			violated(&d.Limit, "the call costs more than can ever fit the limit ")
		}
	case withoutBackend(d):
		message = "the service can admit fewer calls than usual"
		if !asked {
			code = codes.Unavailable
		}
	}
	var details []protoadapt.MessageV1
	if d.RetryAfter != limit.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter(d))})
	}
	if len(quota.Violations) > 0 {
		details = append(details, &quota)
	}
	s, err := status.New(code, message).WithDetails(details...)
	if err != nil { // details that can't be marshalled
		s = status.New(code, message)
	}
	return s.Err()
}

// retryAfter is never 0, which would invite to try again at once.
func retryAfter(d *throttler.Decision) time.Duration { return max(d.RetryAfter, time.Millisecond) }

// noVerdict is the status of a call on which there is none. The client doesn't see the error itself.
//
//	Canceled, DeadlineExceeded  the call's context ended
//	Config.NoKey                the call has no key, or more than one of a kind
//	Internal                    the key, the cost or the policy can't be made out: the server's mistake
//	Unavailable                 the rest: an outage, a closed Throttler
func (i *Interceptor) noVerdict(ctx context.Context, c Call, err error) error {
	if end := deadline.Ended(ctx); end != nil {
		return status.FromContextError(end).Err()
	}
	if i.cfg.OnError != nil {
		i.cfg.OnError(ctx, c, err)
	}
	var key *keyError
	var own interface{ GRPCStatus() *status.Status }
	var invalid *limit.Error
	switch {
	case errors.Is(err, ErrNoKey), errors.Is(err, errManyKeys):
		return status.Error(i.cfg.NoKey, "the call carries no usable rate-limit key")
	case errors.As(err, &key) && errors.As(err, &own) && own.GRPCStatus().Code() != codes.OK:
		return own.GRPCStatus().Err()
	case key != nil, errors.As(err, &invalid), errors.Is(err, throttler.ErrUnsupported):
		return status.Error(codes.Internal, "the call's rate limit can't be determined")
	}
	return status.Error(codes.Unavailable, "the call's rate limit can't be checked at the moment")
}

// codeOf is the code that grpc makes of what a handler returned.
func codeOf(err error) codes.Code {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	return s.Code()
}
