//go:build unix

package httplimit_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/redisbackend"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// Two processes' worth of servers share their limits through redis-server, and a 304 is given back to both.
func TestOnRedis(t *testing.T) {
	t.Parallel()
	store := testserver.Redis(t)
	var urls [2]string
	var clients [2]*http.Client
	for i := range urls {
		b, err := redisbackend.Open(&redis.Options{Addr: store.Addr}, redisbackend.Config{Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		th := throttlertesting.New(t, throttler.Config{
			Backend: b, Failure: throttler.FailError,
			Policy: policy(limit.Fixed(4, 1000*time.Hour).Named("hours"), limit.Sliding(8, time.Hour, time.Minute)),
		})
		s := server(t, wrap(t, th, httplimit.Config{
			Key:    httplimit.FirstOf(httplimit.Header("X-Api-Key", nil), httplimit.ClientAddr()),
			Settle: httplimit.GiveBack(0, httplimit.Outcome.NotModified),
		}, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
			}
		}))
		urls[i], clients[i] = s.URL, s.Client()
	}
	for i, step := range []struct {
		fresh         bool // the client has the answer already
		status        int
		policy, state string
	}{
		{false, 200, `"hours";q=4;w=3600000, "8/1h~1m";q=8;w=3600`, `"hours";r=3;t=`},
		{true, 304, "", `"hours";r=2;t=`},
		{false, 200, "", `"hours";r=2;t=`},
		{true, 304, "", `"hours";r=1;t=`},
		{false, 200, "", `"hours";r=1;t=`},
		{false, 200, "", `"hours";r=0;t=`},
		{true, 429, "", `"hours";r=0;t=`},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, urls[i%2], nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", secret)
		if step.fresh {
			r.Header.Set("If-None-Match", "x")
		}
		response, err := clients[i%2].Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		state := response.Header.Get("RateLimit")
		if response.StatusCode != step.status || len(state) < len(step.state) || state[:len(step.state)] != step.state {
			t.Errorf("request %d: %d, RateLimit: %s, want %d, %s", i+1, response.StatusCode, state, step.status, step.state)
		}
		if got := response.Header.Get("RateLimit-Policy"); step.policy != "" && got != step.policy {
			t.Errorf("request %d: RateLimit-Policy: %s, want %s", i+1, got, step.policy)
		}
	}
	names, err := store.Client().Keys(t.Context(), "sl:test:*").Result()
	if err != nil || len(names) != 1 || names[0] != "sl:test:"+httplimit.HeaderKey("X-Api-Key", secret, nil) {
		t.Errorf("stored keys: %q, %v, want one, and not the API key itself", names, err)
	}
}
