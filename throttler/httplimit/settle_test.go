package httplimit_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// settling is a handler that costs 5 of 100, and where its outcome goes.
func settling(t testing.TB, cfg httplimit.Config, next http.HandlerFunc) (http.Handler, *throttler.Throttler, *httplimit.Outcome) {
	t.Helper()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(100))})
	var outcome httplimit.Outcome
	settle := cfg.Settle
	cfg.Cost = func(*http.Request) int64 { return 5 }
	cfg.Settle = func(r *http.Request, o httplimit.Outcome) int64 {
		outcome = o
		if settle == nil {
			return o.Cost
		}
		return settle(r, o)
	}
	return wrap(t, th, cfg, next), th, &outcome
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestGiveBack(t *testing.T) {
	t.Parallel()
	keep := httplimit.GiveBack(0)
	free304 := httplimit.GiveBack(0, httplimit.Outcome.NotModified)
	freeFailures := httplimit.GiveBack(0, httplimit.Outcome.NotModified, httplimit.Outcome.Failed)
	for _, test := range []struct {
		name   string
		settle func(*http.Request, httplimit.Outcome) int64
		next   http.HandlerFunc
		want   int64 // used
	}{
		{"200", freeFailures, ok, 5},
		{"404", freeFailures, status(404), 5},
		{"304 kept", keep, status(304), 5},
		{"304 given back", free304, status(304), 0},
		{"500 kept", free304, status(500), 5},
		{"500 given back", freeFailures, status(500), 0},
		{"503 given back", freeFailures, status(503), 0},
		{"panic kept", free304, func(http.ResponseWriter, *http.Request) { panic("boom") }, 5},
		{"panic given back", freeFailures, func(http.ResponseWriter, *http.Request) { panic("boom") }, 0},
		{"panic after a 200 given back", freeFailures, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(200)
			panic("boom")
		}, 0},
		{"by what was written", func(_ *http.Request, o httplimit.Outcome) int64 { return o.Written }, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("abc"))
		}, 3},
		{"by the request", func(r *http.Request, _ httplimit.Outcome) int64 { return int64(len(r.Method)) }, ok, 3},
	} {
		h, th, _ := settling(t, httplimit.Config{Settle: test.settle}, test.next)
		func() {
			defer func() { _ = recover() }()
			get(h)
		}()
		if got := used(t, th, secret); got != test.want {
			t.Errorf("%s: %d used, want %d", test.name, got, test.want)
		}
	}
}

// A client can bring a 304 about whenever it likes. What is kept of the cost bounds how much it gets for that, and the limit on
// its address counts each request in full.
func TestNotModifiedIsNoWayPastTheLimit(t *testing.T) {
	t.Parallel()
	page := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		http.ServeContent(w, r, "page.html", time.Time{}, strings.NewReader("a page"))
	}
	for name, test := range map[string]struct {
		cost, keep, max int64
		also            int64 // Max of the address; 0 for none
		settleAlso      bool
		want            int
	}{
		"nothing kept":                 {1, 0, 3, 0, false, 1000},
		"cost 1":                       {1, 1, 3, 0, false, 3},
		"a tenth":                      {10, 1, 30, 0, false, 21}, // each has to find 10
		"half":                         {10, 5, 30, 0, false, 5},
		"nothing, and an address":      {1, 0, 3, 50, false, 50},
		"a tenth, and an address":      {10, 1, 1000, 100, false, 10},
		"a tenth of the address's too": {10, 1, 1000, 100, true, 91},
	} {
		th := throttlertesting.New(t, throttler.Config{
			Policy: policy(limit.PerHour(test.max)),
			PolicyFor: func(_ context.Context, key string) *limit.Policy {
				if strings.HasPrefix(key, "addr:") {
					return &limit.Policy{Name: "address", Limits: []limit.Limit{limit.PerHour(test.also)}}
				}
				return nil
			},
		})
		cfg := httplimit.Config{
			Key:        httplimit.Header("X-User", nil),
			Cost:       func(*http.Request) int64 { return test.cost },
			Settle:     httplimit.GiveBack(test.keep, httplimit.Outcome.NotModified),
			SettleAlso: test.settleAlso,
		}
		if test.also > 0 {
			cfg.Also = []httplimit.KeyFunc{httplimit.ClientAddr()}
		}
		h := wrap(t, th, cfg, page)
		served := 0
		for range 1000 {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("If-None-Match", "*")
			r.Header.Set("X-User", "42")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code == http.StatusNotModified {
				served++
			} else if w.Code != http.StatusTooManyRequests {
				t.Fatalf("%s: status %d", name, w.Code)
			}
		}
		if served != test.want {
			t.Errorf("%s: %d of 1,000 served, want %d", name, served, test.want)
		}
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		method string
		next   http.HandlerFunc
		want   httplimit.Outcome
	}{
		{"nothing written", "GET", ok, httplimit.Outcome{Status: 200}},
		{"a body", "GET", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("abc"))
			_, _ = io.WriteString(w, "defg")
		}, httplimit.Outcome{Status: 200, Written: 7}},
		{"a body by io.Copy", "GET", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader("abcdef")})
		}, httplimit.Outcome{Status: 200, Written: 6}},
		{"a status and a body", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(404)
			_, _ = w.Write([]byte("abc"))
		}, httplimit.Outcome{Status: 404, Written: 3}},
		{"the first status counts", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			w.WriteHeader(500)
		}, httplimit.Outcome{Status: 201}},
		{"a body is a 200", "GET", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a")
			w.WriteHeader(500)
		}, httplimit.Outcome{Status: 200, Written: 1}},
		{"so is one by Write", "GET", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("a"))
			w.WriteHeader(500)
		}, httplimit.Outcome{Status: 200, Written: 1}},
		{"and one by io.Copy", "GET", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader("a")})
			w.WriteHeader(500)
		}, httplimit.Outcome{Status: 200, Written: 1}},
		{"a source that fails leaves the status to the handler", "GET", func(w http.ResponseWriter, _ *http.Request) {
			_, err := io.Copy(w, iotest.ErrReader(io.ErrUnexpectedEOF))
			http.Error(w, err.Error(), http.StatusBadGateway)
		}, httplimit.Outcome{Status: 502, Written: int64(len("unexpected EOF\n"))}},
		{"and so does an empty one", "GET", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader("")})
			w.WriteHeader(404)
		}, httplimit.Outcome{Status: 404}},
		{"a source that breaks off is a 200", "GET", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, io.MultiReader(strings.NewReader(strings.Repeat("a", 1000)), iotest.ErrReader(io.ErrUnexpectedEOF)))
			w.WriteHeader(500)
		}, httplimit.Outcome{Status: 200, Written: 1000}},
		{"a flush is a 200", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			w.WriteHeader(500)
		}, httplimit.Outcome{Status: 200}},
		{"so is one by the controller", "GET", func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			w.WriteHeader(500)
		}, httplimit.Outcome{Status: 200}},
		{"early hints come before the status", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(404)
		}, httplimit.Outcome{Status: 404}},
		{"but for the one that changes the protocol", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusSwitchingProtocols)
			w.WriteHeader(404)
		}, httplimit.Outcome{Status: 101}},
		{"HEAD has no body", "HEAD", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("abc"))
		}, httplimit.Outcome{Status: 200}},
		{"a panic", "GET", func(http.ResponseWriter, *http.Request) { panic("boom") },
			httplimit.Outcome{Status: 500, Panicked: true}},
		{"a panic after the header", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(202)
			panic(http.ErrAbortHandler)
		}, httplimit.Outcome{Status: 202, Panicked: true}},
		{"a panic with nil", "GET", func(http.ResponseWriter, *http.Request) {
			var err error
			panic(err)
		}, httplimit.Outcome{Status: 500, Panicked: true}},
		{"a handler that ends its goroutine", "GET", func(http.ResponseWriter, *http.Request) { runtime.Goexit() },
			httplimit.Outcome{Status: 500, Panicked: true}},
	} {
		h, _, got := settling(t, httplimit.Config{}, test.next)
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			do(h, test.method)
		}()
		<-done
		test.want.Cost = 5
		if *got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, *got, test.want)
		}
	}
}

// With ClampReserve less may be charged than the request costs. That is what Settle is called with and settles, and what the
// keys of Also keep.
func TestSettleOfAClampedCost(t *testing.T) {
	t.Parallel()
	const address = "address"
	for _, test := range []struct {
		actual, used, also int64
	}{{1, 1, 100}, {40, 40, 100}, {100, 100, 100}, {450, 450, 100}, {500, 500, 100}} {
		th := throttlertesting.New(t, throttler.Config{ // the bucket refills a second for each that was charged
			Backend: newCounts(t), ClampReserve: true, Policy: policy(limit.TokenBucket(1, time.Second, 100)),
		})
		h := wrap(t, th, httplimit.Config{
			Also: []httplimit.KeyFunc{func(*http.Request) (string, error) { return address, nil }},
			Cost: func(*http.Request) int64 { return 500 },
			Settle: func(_ *http.Request, o httplimit.Outcome) int64 {
				if o.Cost != 100 {
					t.Errorf("Outcome.Cost = %d, want what was charged, 100", o.Cost)
				}
				return test.actual
			},
		}, ok)
		if w := get(h); w.Code != http.StatusOK {
			t.Fatal(w.Code)
		}
		for key, want := range map[string]int64{secret: test.used, address: test.also} {
			if d, err := th.Peek(t.Context(), key); err != nil || int64(d.ResetAt.Sub(d.At)/time.Second) != want {
				t.Errorf("settled as %d: %s refills for %s, %v, want %d s", test.actual, key, d.ResetAt.Sub(d.At), err, want)
			}
		}
	}
}

// A panic goes on as it was.
func TestPanicPasses(t *testing.T) {
	t.Parallel()
	for _, value := range []any{"boom", http.ErrAbortHandler} {
		h, _, _ := settling(t, httplimit.Config{}, func(http.ResponseWriter, *http.Request) { panicWith(value) })
		func() {
			defer func() {
				if got := recover(); got != value {
					t.Errorf("recovered %v, want %v", got, value)
				}
				stack := make([]byte, 16<<10)
				if stack = stack[:runtime.Stack(stack, false)]; !bytes.Contains(stack, []byte("panicWith")) {
					t.Errorf("the trace has lost where it came from:\n%s", stack)
				}
			}()
			get(h)
		}()
	}
}

//go:noinline
func panicWith(value any) { panic(value) }

// What is to be given back is, also when the client has gone.
func TestSettleAfterTheClientHasGone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	b := newCounts(t)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerHour(10))})
	h := wrap(t, th, httplimit.Config{Settle: httplimit.GiveBack(0, httplimit.Outcome.Failed)},
		func(w http.ResponseWriter, _ *http.Request) {
			cancel()
			w.WriteHeader(500)
		})
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	if got := used(t, th, secret); got != 0 {
		t.Errorf("%d used, want 0", got)
	}
	if b.refunds.Load() != 1 || b.endless.Load() != 0 {
		t.Errorf("%d refunds, %d of them without a deadline, want one with", b.refunds.Load(), b.endless.Load())
	}
}

// What can't be settled stays charged, and somebody hears of it.
func TestOnSettleError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		actual int64
		down   bool
		is     error // nil: none
	}{
		{"all of it", 5, false, nil},
		{"all of it, during an outage", 5, true, nil}, // there is nothing to send
		{"more than can be counted", limit.MaxCount + 1, false, errAny},
		{"less than nothing", -1, false, errAny},
		{"an outage", 0, true, errAway},
	} {
		b := newCounts(t)
		th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerHour(10))})
		var notified error
		for _, hook := range []func(*http.Request, error){nil, func(r *http.Request, err error) {
			if _, ok := httplimit.FromContext(r.Context()); !ok {
				t.Error("OnSettleError got another request")
			}
			notified = err
		}} {
			h := wrap(t, th, httplimit.Config{
				Cost:          func(*http.Request) int64 { return 5 },
				Settle:        func(*http.Request, httplimit.Outcome) int64 { return test.actual },
				OnSettleError: hook,
			}, func(http.ResponseWriter, *http.Request) { b.down.Store(test.down) })
			if w := get(h); w.Code != http.StatusOK {
				t.Errorf("%s: %d", test.name, w.Code)
			}
			b.down.Store(false)
		}
		if (notified == nil) != (test.is == nil) || test.is != errAny && !errors.Is(notified, test.is) {
			t.Errorf("%s: OnSettleError got %v, want %v", test.name, notified, test.is)
		}
		if got := used(t, th, secret); got != 10 {
			t.Errorf("%s: %d used, want 10: all stays charged", test.name, got)
		}
	}
}

// A backend that can't give back is the server's mistake, found by the first request.
func TestSettleNeedsARefunder(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{
		Backend: struct{ backend.Backend }{newCounts(t)}, Policy: policy(limit.PerHour(10)),
	})
	h := wrap(t, th, httplimit.Config{Settle: httplimit.GiveBack(0)}, func(http.ResponseWriter, *http.Request) {
		t.Error("the handler ran")
	})
	if w := get(h); w.Code != http.StatusInternalServerError {
		t.Errorf("%d, want 500", w.Code)
	}
}
