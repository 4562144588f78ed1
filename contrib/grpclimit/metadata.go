package grpclimit

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-go/sluice/internal/limitview"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// answer is where a call's metadata go: a grpc.ServerStream, or its like for a unary call.
type answer interface {
	SetHeader(metadata.MD) error
	SetTrailer(metadata.MD)
}

type unaryAnswer struct{ ctx context.Context }

func (a unaryAnswer) SetHeader(md metadata.MD) error { return grpc.SetHeader(a.ctx, md) }

func (a unaryAnswer) SetTrailer(md metadata.MD) { _ = grpc.SetTrailer(a.ctx, md) }

// tell puts the limits into the header, or into the trailer if the call failed or its header is sent already.
func tell(w answer, limits metadata.MD, ok bool) {
	if !ok || w.SetHeader(limits) != nil {
		w.SetTrailer(limits)
	}
}

// limits are the fields of draft-ietf-httpapi-ratelimit-headers-06 for the binding limit of a decision:
//
//	ratelimit-limit      what it allows; a token bucket, its burst
//	ratelimit-remaining  what is left
//	ratelimit-reset      seconds until there is more, rounded up; of a window that admits, until all is back
//
// A decision without the backend has none: another process, or the next moment, would say otherwise. One of an allow or
// deny list, or of counters alone, is about no limit.
func (i *Interceptor) limits(d *throttler.Decision) metadata.MD {
	listed := d.Source == throttler.Listed
	if i.cfg.NoMetadata || listed || d.Limit.IsCounter() || withoutBackend(d) || d.RetryAfter == limit.Never {
		return nil
	}
	reset := limitview.UntilMore(&limit.Status{
		Limit: d.Limit, Remaining: d.Remaining, ResetAt: d.ResetAt, RetryAfter: d.RetryAfter,
	}, d.At)
	if !d.Allowed {
		reset = retryAfter(d)
	}
	values := []string{ // of all fields, in one allocation
		strconv.FormatInt(d.Limit.Quota(), 10), strconv.FormatInt(d.Remaining, 10),
		strconv.FormatInt(max(0, limitview.RoundUp(reset, time.Second)), 10),
	}
	return metadata.MD{"ratelimit-limit": values[:1:1], "ratelimit-remaining": values[1:2:2], "ratelimit-reset": values[2:]}
}

// withoutBackend reports whether the backend gave no verdict.
func withoutBackend(d *throttler.Decision) bool {
	return d.Source == throttler.Fallback || d.Source == throttler.Unknown && d.Cause != nil
}

// pushback tells the retries that grpc makes by itself when to come back, or with -1 not to (gRFC A6). A client that
// waited beyond its deadline would see that, in place of the denial.
func (i *Interceptor) pushback(ctx context.Context, wait time.Duration) metadata.MD {
	if i.cfg.MaxPushback < 0 {
		return nil
	}
	most := i.cfg.MaxPushback
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline))
	}
	ms := int64(-1)
	if wait != limit.Never && wait <= most {
		ms = max(1, limitview.RoundUp(wait, time.Millisecond))
	}
	return metadata.Pairs("grpc-retry-pushback-ms", strconv.FormatInt(ms, 10))
}
