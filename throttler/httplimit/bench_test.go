package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// work is a middleware on a Throttler that counts in memory, and what it may allocate for a request: the Call, the key, the
// request with its context, and the value of RateLimit; of a denial no request, but Retry-After and the problem's fields.
var work = []struct {
	name   string
	cfg    httplimit.Config
	limits []limit.Limit
	allocs float64
}{
	{"admitted, no headers", httplimit.Config{Headers: httplimit.NoHeaders}, []limit.Limit{limit.PerHour(limit.MaxCount)}, 3},
	{"admitted", httplimit.Config{}, []limit.Limit{limit.PerHour(limit.MaxCount)}, 4},
	{"admitted, three limits", httplimit.Config{}, []limit.Limit{
		limit.PerHour(limit.MaxCount), limit.PerMinute(limit.MaxCount), limit.PerDay(limit.MaxCount),
	}, 5},
	{"admitted, all headers", httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub},
		[]limit.Limit{limit.PerHour(limit.MaxCount)}, 7},
	{"denied", httplimit.Config{}, []limit.Limit{limit.PerHour(1)}, 5},
	{"settled", httplimit.Config{Settle: httplimit.GiveBack(0, httplimit.Outcome.NotModified)},
		[]limit.Limit{limit.PerHour(limit.MaxCount)}, 7},
}

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// once returns a function that serves a request. The first request has been served.
func once(t testing.TB, cfg httplimit.Config, limits []limit.Limit) func() {
	cfg.Key = httplimit.ClientAddr()
	h := wrap(t, throttlertesting.New(t, throttler.Config{Policy: policy(limits...)}), cfg, ok)
	w, r := discard{http.Header{}}, httptest.NewRequest(http.MethodGet, "/", nil)
	serve := func() {
		clear(w.header)
		h.ServeHTTP(w, r)
	}
	serve()
	return serve
}

func TestAllocations(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	for _, row := range work {
		if got := testing.AllocsPerRun(1000, once(t, row.cfg, row.limits)); got > row.allocs {
			t.Errorf("%s: %v allocations, want at most %v", row.name, got, row.allocs)
		}
	}
}

// BenchmarkWrap is what the middleware adds to a request.
func BenchmarkWrap(b *testing.B) {
	for _, row := range work {
		b.Run(row.name, func(b *testing.B) {
			serve := once(b, row.cfg, row.limits)
			b.ReportAllocs()
			for b.Loop() {
				serve()
			}
		})
	}
}
