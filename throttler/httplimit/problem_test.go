package httplimit_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// noVerdict are the requests on which there is none.
var noVerdict = []struct {
	name   string
	cfg    httplimit.Config
	th     throttler.Config
	down   bool // the backend
	closed bool // the Throttler
	ctx    func(context.Context) (context.Context, context.CancelFunc)
	status int
	retry  string
	is     error // what OnError is given; nil: it is not called
}{
	{name: "no key", cfg: httplimit.Config{Key: func(*http.Request) (string, error) { return "", httplimit.ErrNoKey }},
		status: 401, is: httplimit.ErrNoKey},
	{name: "an empty key", cfg: httplimit.Config{Key: func(*http.Request) (string, error) { return "", nil }},
		status: 401, is: httplimit.ErrNoKey},
	{name: "two API keys", cfg: httplimit.Config{Key: func(r *http.Request) (string, error) {
		r.Header = http.Header{"X-Api-Key": {"a", "b"}}
		return httplimit.Header("X-Api-Key", nil)(r)
	}}, status: 400, is: errAny},
	{name: "a second key is missing", cfg: httplimit.Config{Also: []httplimit.KeyFunc{
		func(*http.Request) (string, error) { return "", nil },
	}}, status: 401, is: httplimit.ErrNoKey},
	{name: "the key can't be made out", cfg: httplimit.Config{
		Key: func(*http.Request) (string, error) { return secret, errBoom }}, status: 500, is: errBoom},
	{name: "no address", cfg: httplimit.Config{Key: func(r *http.Request) (string, error) {
		r.RemoteAddr = "@"
		return httplimit.ClientAddr()(r)
	}}, status: 500, is: errAny},
	{name: "cost 0", cfg: httplimit.Config{Cost: func(*http.Request) int64 { return 0 }}, status: 500, is: errAny},
	{name: "cost -1", cfg: httplimit.Config{Cost: func(*http.Request) int64 { return -1 }}, status: 500, is: errAny},
	{name: "invalid policy", th: throttler.Config{PolicyFor: func(context.Context, string) *limit.Policy {
		return &limit.Policy{}
	}}, status: 500, is: errAny},
	{name: "outage", th: throttler.Config{Failure: throttler.FailError}, down: true, status: 503, retry: "1", is: errAway},
	{name: "closed", closed: true, status: 503, retry: "1", is: throttler.ErrClosed},
	{name: "the server's deadline", ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, -time.Second)
	}, status: 503, retry: "1", is: context.DeadlineExceeded},
	{name: "the client has gone", ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx, cancel
	}, status: 499},
}

var (
	errBoom = errors.New("boom " + secret)
	errAny  = errors.New("any")
)

func TestNoVerdictIsNoWayPast(t *testing.T) {
	t.Parallel()
	for _, test := range noVerdict {
		for _, settle := range []bool{false, true} {
			for _, hook := range []bool{false, true} {
				name := fmt.Sprintf("%s, settle %v, hook %v", test.name, settle, hook)
				b := newCounts(t)
				test.th.Backend, test.th.Policy = b, policy(limit.PerMinute(10))
				th := throttlertesting.New(t, test.th)
				cfg := test.cfg
				if settle {
					cfg.Settle = httplimit.GiveBack(0)
				}
				var notified error
				if hook {
					cfg.OnError = func(w http.ResponseWriter, r *http.Request, err error) {
						notified = err
						httplimit.WriteError(w, r, err)
					}
				}
				h := wrap(t, th, cfg, func(http.ResponseWriter, *http.Request) { t.Errorf("%s: the handler ran", name) })
				b.down.Store(test.down)
				if test.closed {
					if err := th.Close(); err != nil {
						t.Fatal(err)
					}
				}
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				if test.ctx != nil {
					ctx, cancel := test.ctx(r.Context())
					defer cancel()
					r = r.WithContext(ctx)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)

				if w.Code != test.status || w.Header().Get("Retry-After") != test.retry {
					t.Errorf("%s: %d, Retry-After %q, want %d, %q", name, w.Code, w.Header().Get("Retry-After"),
						test.status, test.retry)
				}
				if hook && (test.is == nil) != (notified == nil) || notified != nil && test.is != errAny && !errors.Is(notified, test.is) {
					t.Errorf("%s: OnError got %v, want %v", name, notified, test.is)
				}
				if test.status != 499 {
					p := body(t, w)
					if p.Status != test.status || p.Type != "" || p.Title != http.StatusText(test.status) || p.Detail == "" {
						t.Errorf("%s: %+v", name, p)
					}
				}
				if got := w.Header().Get("WWW-Authenticate"); (got == "ApiKey") != (test.status == 401) {
					t.Errorf("%s: WWW-Authenticate = %q", name, got)
				}
				if w.Header().Get("RateLimit") != "" || strings.Contains(fmt.Sprint(w.Header(), w.Body), secret) {
					t.Errorf("%s: %v %s", name, w.Header(), w.Body)
				}
				if n := b.calls.Load(); n != 0 && !test.down {
					t.Errorf("%s: %d calls reached the backend", name, n)
				}
			}
		}
	}
}

type problem struct {
	Type, Title, Detail string
	Status              int
	ViolatedPolicies    []string `json:"violated-policies"`
}

func body(t testing.TB, w *httptest.ResponseRecorder) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Errorf("body %q: %v", w.Body, err)
	}
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type = %q", got)
	}
	if got := w.Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control = %q", got)
	}
	return p
}

func TestDenied(t *testing.T) {
	t.Parallel()
	b := newCounts(t)
	th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(
		limit.PerHour(3).Named("hourly"), limit.PerDay(3), limit.PerMinute(100),
	)})
	h := wrap(t, th, httplimit.Config{}, ok)
	for range 3 {
		get(h)
	}
	w := get(h)
	const want = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded",` +
		`"status":429,"detail":"The request exceeds a rate limit. See Retry-After.","violated-policies":["hourly","3/24h"]}`
	if got := w.Body.String(); got != want || w.Code != http.StatusTooManyRequests {
		t.Errorf("%d\n%s\nwant 429\n%s", w.Code, got, want)
	}
	if got := w.Header().Get("Retry-After"); got != "86400" {
		t.Errorf("Retry-After = %q, want that of the limit that lets it pass last", got)
	}
	body(t, w)
}

// A cost that can never fit is refused for ever: no Retry-After, no 429.
func TestNever(t *testing.T) {
	t.Parallel()
	for _, cfg := range []httplimit.Config{
		{}, {Settle: httplimit.GiveBack(0)}, {Also: []httplimit.KeyFunc{httplimit.ClientAddr()}},
		{Also: []httplimit.KeyFunc{httplimit.ClientAddr()}, Settle: httplimit.GiveBack(0)},
	} {
		for _, cost := range []int64{11, limit.MaxCount, 1 << 62} {
			b := newCounts(t)
			th := throttlertesting.New(t, throttler.Config{Backend: b, Policy: policy(limit.PerMinute(10))})
			cfg.Cost = func(*http.Request) int64 { return cost }
			w := get(wrap(t, th, cfg, func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
			p := body(t, w)
			if w.Code != http.StatusRequestEntityTooLarge || p.Status != w.Code || p.Type != "" ||
				w.Header().Get("Retry-After") != "" || w.Header().Get("RateLimit") != "" {
				t.Errorf("%d, %v, %+v", w.Code, w.Header(), p)
			}
			if n := b.calls.Load(); n != 0 {
				t.Errorf("%d calls reached the backend", n)
			}
		}
	}
}

// During an outage the numbers are this process's own: no header tells them. Of contention there are none.
func TestFallback(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		cfg      throttler.Config
		admitted int
		status   int // then
	}{
		{"local", throttler.Config{Processes: 5}, 2, http.StatusTooManyRequests},
		{"open", throttler.Config{Failure: throttler.FailOpen, OpenCap: limit.PerMinute(3)}, 3, http.StatusTooManyRequests},
		{"closed", throttler.Config{Failure: throttler.FailClosed, RetryAfter: 1500 * time.Millisecond}, 0,
			http.StatusServiceUnavailable},
		{"contended", throttler.Config{}, 0, http.StatusServiceUnavailable},
	} {
		b := newCounts(t)
		b.down.Store(test.name != "contended")
		b.busy.Store(true)
		test.cfg.Backend, test.cfg.Policy = b, policy(limit.PerMinute(10))
		h := wrap(t, throttlertesting.New(t, test.cfg), httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub}, ok)
		for range test.admitted {
			if w := get(h); w.Code != http.StatusOK || len(w.Header()) != 0 {
				t.Errorf("%s: %d, %v, want it admitted without a word", test.name, w.Code, w.Header())
			}
		}
		w := get(h)
		p := body(t, w)
		if w.Code != test.status || p.Type != reducedCapacity || p.ViolatedPolicies != nil || p.Status != test.status ||
			w.Header().Get("Retry-After") == "" || w.Header().Get("RateLimit") != "" || w.Header().Get("X-RateLimit-Limit") != "" {
			t.Errorf("%s: %d, %v, %+v", test.name, w.Code, w.Header(), p)
		}
		if got := w.Header().Get("Retry-After"); test.name == "closed" && got != "2" {
			t.Errorf("Retry-After = %q, want 1.5 s rounded up", got)
		}
	}
}

// A middleware in front may compress what is written: the body's length is not what the client gets.
func TestDeniedThroughCompression(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
	h := wrap(t, th, httplimit.Config{}, ok)
	s := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Length", "7") // of what it would have served
		z := gzip.NewWriter(w)
		defer z.Close()
		h.ServeHTTP(compressed{w, z}, r)
	}))
	get(h)
	response, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(body), "violated-policies") {
		t.Errorf("%d, %v: %s", response.StatusCode, err, body)
	}
}

type compressed struct {
	http.ResponseWriter
	io.Writer
}

func (c compressed) Write(p []byte) (int, error) { return c.Writer.Write(p) }

// A handler of the caller's own finds the headers set and the decision in the context.
func TestDeniedHandler(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
	h := wrap(t, th, httplimit.Config{Denied: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, ok := httplimit.FromContext(r.Context())
		if !ok || d.Allowed || d.RetryAfter <= 0 || w.Header().Get("Retry-After") == "" || w.Header().Get("RateLimit") == "" {
			t.Errorf("%+v, %v, %v", d, ok, w.Header())
		}
		w.WriteHeader(http.StatusForbidden)
	})}, ok)
	get(h)
	if w := get(h); w.Code != http.StatusForbidden {
		t.Errorf("%d, want the handler's own", w.Code)
	}
}
