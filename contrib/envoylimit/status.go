package envoylimit

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// shedRetry is the RetryInfo of a request that was shed.
const shedRetry = 100 * time.Millisecond

// overloaded is the status of a request beyond Config.MaxRequests.
func overloaded() error {
	s := status.New(codes.ResourceExhausted, "too many requests are under way")
	if detailed, err := s.WithDetails(
		&errdetails.ErrorInfo{Reason: "OVERLOADED", Domain: "github.com/sluice-go/sluice"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(shedRetry)},
	); err == nil {
		s = detailed
	}
	return s.Err()
}

// noVerdict is the status of a request without a verdict. The client doesn't see the error itself.
//
//	Canceled, DeadlineExceeded  the request's context ended
//	Internal                    the backend can't do what the request needs, or refuses the policy: the server's mistake
//	Unavailable                 the rest: an outage under throttler.FailError, a closed Service
func noVerdict(ctx context.Context, err error) error {
	if end := deadline.Ended(ctx); end != nil {
		return status.FromContextError(end).Err()
	}
	if _, invalid := errors.AsType[*limit.Error](err); invalid || errors.Is(err, throttler.ErrUnsupported) {
		return status.Error(codes.Internal, "the rate limit can't be determined")
	}
	return status.Error(codes.Unavailable, "the rate limit can't be checked at the moment")
}
