package grpclimit

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sluice-go/sluice/throttler"
)

// settleTimeout bounds what is given back after the handler: it goes on when the client has gone.
const settleTimeout = time.Second

// settle gives a call's charges back if its outcome says so.
func (i *Interceptor) settle(ctx context.Context, c Call, held *throttler.Reservation, code codes.Code) {
	if held == nil || !i.cfg.Refund(code) {
		return
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := held.Cancel(back); err != nil && i.cfg.OnError != nil {
		i.cfg.OnError(ctx, c, err)
	}
}
