package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

func TestNewReportsEveryProblem(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
	for _, test := range []struct {
		name string
		th   *throttler.Throttler
		cfg  httplimit.Config
		want []string // fields
	}{
		{"no key", th, httplimit.Config{}, []string{"Key"}},
		{"unknown headers", th, httplimit.Config{Key: secretKey, Headers: 1 << 7}, []string{"Headers"}},
		{"a resource that is no header value", th, httplimit.Config{Key: secretKey, Resource: "a\r\nb"}, []string{"Resource"}},
		{"all at once", nil, httplimit.Config{
			Also: []httplimit.KeyFunc{secretKey, nil}, Headers: httplimit.NoHeaders | httplimit.GitHub, Resource: "é",
			SettleAlso: true, QuotaUnit: `a"`, PartitionSecret: []byte("fifteen bytes!!"), Hide: []string{""}, Challenge: "a\nb",
			Routes: map[string]httplimit.Route{"/": {Cost: -1}},
		}, []string{"throttler", "Key", "Also[1]", "SettleAlso", "Headers", "Resource", "QuotaUnit", "PartitionSecret", "Hide[0]",
			"Challenge", `Routes["/"].Cost`}},
	} {
		m, err := httplimit.New(test.th, test.cfg)
		if m != nil || err == nil {
			t.Errorf("%s: %v, %v, want an error alone", test.name, m, err)
			continue
		}
		var got []string
		for line := range strings.Lines(err.Error()) {
			line = strings.TrimPrefix(line, "httplimit: ")
			field, _, _ := strings.Cut(line, " =")
			got = append(got, field)
		}
		if !errors.As(err, new(*limit.Error)) || !slices.Equal(got, test.want) {
			t.Errorf("%s: fields %q of %v, want %q", test.name, got, err, test.want)
		}
	}
	if _, err := httplimit.New(th, httplimit.Config{
		Key: secretKey, Headers: httplimit.Draft08 | httplimit.GitHub, Resource: "core",
	}); err != nil {
		t.Errorf("a good configuration: %v", err)
	}

	m, err := httplimit.New(th, httplimit.Config{Key: secretKey})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("Wrap(nil) gave a handler")
		}
	}()
	m.Wrap(nil)
}

func TestServe(t *testing.T) {
	t.Parallel()
	b := newCounts(t)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerMinute(2))})
	calls := 0
	h := wrap(t, th, httplimit.Config{}, func(w http.ResponseWriter, r *http.Request) {
		calls++
		d, ok := httplimit.FromContext(r.Context())
		if !ok || !d.Allowed || d.Remaining != int64(2-calls) {
			t.Errorf("FromContext = %+v, %v", d, ok)
		}
		w.WriteHeader(http.StatusTeapot)
	})
	for i, want := range []int{http.StatusTeapot, http.StatusTeapot, http.StatusTooManyRequests} {
		if w := get(h); w.Code != want {
			t.Errorf("request %d: %d, want %d", i+1, w.Code, want)
		}
	}
	if calls != 2 || b.calls.Load() != 3 {
		t.Errorf("the handler ran %d times after %d calls, want 2 after 3", calls, b.calls.Load())
	}
	if d, ok := httplimit.FromContext(t.Context()); ok {
		t.Errorf("FromContext = %+v outside of a request", d)
	}
}

func TestSkip(t *testing.T) {
	t.Parallel()
	b := newCounts(t)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerMinute(1))})
	h := wrap(t, th, httplimit.Config{
		Key:  func(*http.Request) (string, error) { return "", httplimit.ErrNoKey },
		Skip: func(r *http.Request) bool { return r.Method == http.MethodOptions },
	}, ok)
	for range 3 {
		if w := do(h, http.MethodOptions); w.Code != http.StatusOK || len(w.Header()) != 0 {
			t.Errorf("skipped: %d, %v", w.Code, w.Header())
		}
	}
	if w := get(h); w.Code != http.StatusUnauthorized {
		t.Errorf("not skipped: %d", w.Code)
	}
	if n := b.calls.Load(); n != 0 {
		t.Errorf("%d calls reached the backend", n)
	}
}

func TestCost(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerMinute(10))})
	h := wrap(t, th, httplimit.Config{
		Cost: func(r *http.Request) int64 { return int64(len(r.Method)) },
	}, ok)
	get(h)
	do(h, http.MethodPatch)
	if got := used(t, th, secret); got != 8 {
		t.Errorf("%d used, want 8", got)
	}
}

// Further keys must admit the request too; what was charged goes back if one denies.
func TestAlso(t *testing.T) {
	t.Parallel()
	small := policy(limit.PerHour(2))
	for _, settle := range []func(*http.Request, httplimit.Outcome) int64{nil, httplimit.GiveBack(0)} {
		b := newCounts(t)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerHour(10)),
			PolicyFor: func(_ context.Context, key string) *limit.Policy {
				if strings.HasPrefix(key, "addr:") {
					return &small
				}
				return nil
			}})
		h := wrap(t, th, httplimit.Config{Also: []httplimit.KeyFunc{httplimit.ClientAddr()}, Settle: settle}, ok)
		for i, want := range []int{200, 200, 429, 429} {
			w := get(h)
			if w.Code != want {
				t.Errorf("request %d: %d, want %d", i+1, w.Code, want)
			}
			if got, want := w.Header().Get("RateLimit"), fmt.Sprintf(`"2/1h";r=%d;t=3600`, max(0, 1-i)); got != want {
				t.Errorf("request %d: RateLimit = %s, want %s: that of the key with the least left", i+1, got, want)
			}
		}
		if user, addr := used(t, th, secret), used(t, th, "addr:192.0.2.1"); user != 2 || addr != 2 {
			t.Errorf("%d and %d used, want 2 and 2", user, addr)
		}
	}
}

// An IPv4 address is the same key whatever the prefix of IPv6 addresses: a second limit on a shorter one must not halve its quota.
func TestEqualKeysCountOnce(t *testing.T) {
	t.Parallel()
	for _, settle := range []func(*http.Request, httplimit.Outcome) int64{nil, httplimit.GiveBack(0, httplimit.Outcome.NotModified)} {
		for addr, keys := range map[string][]string{
			"192.0.2.1:4711": {"addr:192.0.2.1"}, "[2001:db8::1]:4711": {"addr:2001:db8::/64", "addr:2001:db8::/48"},
		} {
			th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(100))})
			h := wrap(t, th, httplimit.Config{
				Key: httplimit.ClientAddr(), Also: []httplimit.KeyFunc{httplimit.AddrConfig{IPv6Prefix: 48}.ClientAddr()}, Settle: settle,
			}, ok)
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = addr
			h.ServeHTTP(httptest.NewRecorder(), r)
			for _, key := range keys {
				if n := used(t, th, key); n != 1 {
					t.Errorf("%s: %d used, want 1", key, n)
				}
			}
		}
	}
}

// Reserving for several keys keeps the weakest guarantee, and gives back when a later key has no verdict.
func TestAlsoWithSettleDuringAnOutage(t *testing.T) {
	t.Parallel()
	for _, failure := range []throttler.FailurePolicy{throttler.FailLocal, throttler.FailError} {
		b := newCounts(t)
		th := throttlertesting.New(t, throttler.Config{
			Backend: &secondAway{counts: b}, Policy: policy(limit.PerHour(10)), Failure: failure,
		})
		h := wrap(t, th, httplimit.Config{
			Also:   []httplimit.KeyFunc{func(*http.Request) (string, error) { return "second", nil }},
			Settle: httplimit.GiveBack(0),
		}, func(_ http.ResponseWriter, r *http.Request) {
			if d, _ := httplimit.FromContext(r.Context()); d.Guarantee != throttler.Bounded || !errors.Is(d.Cause, errAway) {
				t.Errorf("%+v, want Bounded because of the outage", d)
			}
		})
		want, left := http.StatusOK, int64(1)
		if failure == throttler.FailError {
			want, left = http.StatusServiceUnavailable, 0
		}
		if w := get(h); w.Code != want {
			t.Errorf("%v: %d, want %d", failure, w.Code, want)
		}
		if got := used(t, th, secret); got != left {
			t.Errorf("%v: %d used, want %d", failure, got, left)
		}
	}
}

// secondAway fails the second take.
type secondAway struct {
	*counts
	takes atomic.Int64
}

func (s *secondAway) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if s.takes.Add(1) == 2 {
		return backend.Result{}, errAway
	}
	return s.counts.Take(ctx, req)
}

// No response names a key.
func TestKeysStayInside(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
	h := wrap(t, th, httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub}, ok)
	for range 2 {
		w := get(h)
		if all := fmt.Sprint(w.Header(), w.Body); strings.Contains(all, secret) || strings.Contains(all, "alice") {
			t.Errorf("the response names the key: %s", all)
		}
	}
}

// A standard client that does as Retry-After says gets all it wants, and is denied once a window.
func TestClientHonoursRetryAfter(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]limit.Limit{
		"fixed":   limit.Fixed(4, 2500*time.Millisecond),
		"sliding": limit.Sliding(4, 2500*time.Millisecond, 500*time.Millisecond),
		"bucket":  limit.TokenBucket(3, time.Second, 4),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, err := memory.New(memory.Config{Now: time.Now})
				if err != nil {
					t.Fatal(err)
				}
				th := throttlertesting.New(t, throttler.Config{Backend: mem, Policy: policy(l)})
				client := http.Client{Transport: transport{wrap(t, th, httplimit.Config{}, ok)}}
				denied := 0
				for range 20 {
					for tries := 1; ; tries++ {
						response, err := client.Get("http://example.com/")
						if err != nil {
							t.Fatal(err)
						}
						_ = response.Body.Close()
						if response.StatusCode == http.StatusOK {
							break
						}
						denied++
						wait, err := time.ParseDuration(response.Header.Get("Retry-After") + "s")
						if err != nil || wait < time.Second || tries > 1 {
							t.Fatalf("try %d: %d, Retry-After %v, %v", tries, response.StatusCode, wait, err)
						}
						time.Sleep(wait)
					}
				}
				if denied == 0 {
					t.Error("never denied")
				}
			})
		})
	}
}

// transport calls a handler as if it were far away.
type transport struct{ http.Handler }

func (h transport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	r.RemoteAddr = "203.0.113.7:4711"
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

func TestConcurrently(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(100))})
	h := wrap(t, th, httplimit.Config{Settle: httplimit.GiveBack(0, httplimit.Outcome.NotModified)},
		func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusNotModified)
			}
		})
	s := server(t, h)
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range 16 {
				method := http.MethodGet
				if i%2 == 0 {
					method = http.MethodHead
				}
				r, err := http.NewRequest(method, s.URL, nil)
				if err != nil {
					t.Error(err)
					return
				}
				response, err := s.Client().Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				_ = response.Body.Close()
				mu.Lock()
				statuses[response.StatusCode]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if got, n := used(t, th, secret), statuses[http.StatusOK]; got != int64(n) || n > 100 || n+statuses[304]+statuses[429] != 256 {
		t.Errorf("%d used after %v", got, statuses)
	}
}
