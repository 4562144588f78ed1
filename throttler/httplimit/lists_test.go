package httplimit_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// What a list decides has no limit to tell of, and a key that is denied for good must not be asked to try again.
func TestLists(t *testing.T) {
	t.Parallel()
	for _, settle := range []bool{false, true} {
		for _, test := range []struct {
			allow, deny []string
			status      int
		}{
			{[]string{secret}, nil, http.StatusOK},
			{nil, []string{secret}, http.StatusForbidden},
		} {
			th := throttlertesting.New(t, throttler.Config{
				Policy: policy(limit.PerMinute(1)), Allow: test.allow, Deny: test.deny,
			})
			cfg := httplimit.Config{
				Headers: httplimit.Draft08 | httplimit.GitHub, Cost: func(*http.Request) int64 { return 5 },
				OnSettleError: func(_ *http.Request, err error) { t.Error(err) },
			}
			if settle {
				cfg.Settle = func(*http.Request, httplimit.Outcome) int64 { return 2 }
			}
			h := wrap(t, th, cfg, ok)
			for range 3 {
				w := get(h)
				if w.Code != test.status || strings.Contains(w.Body.String(), secret) {
					t.Errorf("%+v: %d %s", test, w.Code, w.Body)
				}
				for name := range w.Header() {
					if strings.Contains(strings.ToLower(name), "ratelimit") || name == "Retry-After" {
						t.Errorf("%+v: header %s", test, name)
					}
				}
			}
		}
	}
}

// Who is denied doesn't touch the quota of the others that the request names.
func TestListsDenyFirst(t *testing.T) {
	t.Parallel()
	for _, settle := range []func(*http.Request, httplimit.Outcome) int64{nil, httplimit.GiveBack(0)} {
		b := newCounts(t)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerMinute(1)), Deny: []string{"addr:*"}})
		h := wrap(t, th, httplimit.Config{Also: []httplimit.KeyFunc{httplimit.ClientAddr()}, Settle: settle}, ok)
		if w := get(h); w.Code != http.StatusForbidden {
			t.Errorf("%d, want 403", w.Code)
		}
		if n := b.calls.Load(); n != 0 {
			t.Errorf("%d calls to the backend, want none", n)
		}
	}
}
