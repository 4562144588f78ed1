package grpclimit

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
)

// settleTimeout bounds what is given back after the handler: it goes on after the client has left.
const settleTimeout = time.Second

// settle gives a call's charges back if its outcome says so, but for what is kept.
func (i *Interceptor) settle(ctx context.Context, c Call, a *admission, code codes.Code) {
	if a.held == nil || !i.cfg.Refund(code) {
		return
	}
	charged := a.held.Cost()
	actual := make([]int64, len(a.keys))
	for n := range actual {
		actual[n] = charged
		if n == 0 || i.cfg.RefundAlso {
			actual[n] = min(i.cfg.Keep, charged)
		}
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := a.held.SettleEach(back, actual); err != nil && i.cfg.OnError != nil {
		i.cfg.OnError(ctx, c, err)
	}
}
