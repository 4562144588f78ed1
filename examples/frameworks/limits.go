package main

import (
	"context"
	"net/http"
	"strings"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// newThrottler gives API keys and addresses policies of their own. Both must admit a request.
func newThrottler() (*throttler.Throttler, error) {
	addresses := limit.Policy{Name: "addresses", Limits: []limit.Limit{limit.PerMinute(10_000).Named("address")}}
	return throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "keys", Limits: []limit.Limit{limit.PerMinute(30).Named("minute")}},
		PolicyFor: func(_ context.Context, key string) *limit.Policy {
			if strings.HasPrefix(key, "addr:") {
				return &addresses
			}
			return nil
		},
	})
}

// newLimits makes the middleware of all frameworks.
func newLimits(t *throttler.Throttler) (*httplimit.Middleware, error) {
	return httplimit.New(t, httplimit.Config{
		Key:    httplimit.Header("X-Api-Key", nil),
		Also:   []httplimit.KeyFunc{httplimit.ClientAddr()},
		Routes: map[string]httplimit.Route{"/healthz": {Exempt: true}},
		Cost:   func(*http.Request) int64 { return 10 },
		Settle: httplimit.GiveBack(1, httplimit.Outcome.NotModified, httplimit.Outcome.Failed),
	})
}
