package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// BenchmarkWrap is what the middleware adds to a request, on a Throttler that counts in memory.
func BenchmarkWrap(b *testing.B) {
	for _, bench := range []struct {
		name string
		cfg  httplimit.Config
	}{
		{"no headers", httplimit.Config{Headers: httplimit.NoHeaders}},
		{"draft headers", httplimit.Config{}},
		{"all headers", httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub}},
		{"settled", httplimit.Config{
			Headers: httplimit.NoHeaders, Settle: httplimit.GiveBack(0, httplimit.Outcome.NotModified),
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			th := newThrottler(b, throttler.Config{Policy: policy(limit.PerHour(limit.MaxCount))})
			bench.cfg.Key = httplimit.ClientAddr()
			h := wrap(b, th, bench.cfg, ok)
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				clear(w.Header())
				h.ServeHTTP(w, r)
			}
		})
	}
}
