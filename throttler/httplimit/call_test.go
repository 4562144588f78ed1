package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

func middleware(t testing.TB, th *throttler.Throttler, cfg httplimit.Config) *httplimit.Middleware {
	t.Helper()
	if cfg.Key == nil {
		cfg.Key = secretKey
	}
	m, err := httplimit.New(th, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// What Begin and Problem give an adapter is what Wrap writes.
func TestBeginIsWhatWrapWrites(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cfg  httplimit.Config
		th   throttler.Config
		down bool
	}{
		"admitted and denied": {httplimit.Config{Headers: httplimit.Draft08 | httplimit.GitHub}, throttler.Config{}, false},
		"settled":             {httplimit.Config{Settle: httplimit.GiveBack(0)}, throttler.Config{}, false},
		"on a deny list":      {httplimit.Config{}, throttler.Config{Deny: []string{secret}}, false},
		"no key": {httplimit.Config{Key: httplimit.Header("X-Api-Key", nil), Challenge: "Bearer"},
			throttler.Config{}, false},
		"an outage":           {httplimit.Config{}, throttler.Config{Failure: throttler.FailClosed}, true},
		"an outage, an error": {httplimit.Config{}, throttler.Config{Failure: throttler.FailError}, true},
		"too much":            {httplimit.Config{Cost: func(*http.Request) int64 { return 11 }}, throttler.Config{}, false},
		"exempt":              {httplimit.Config{Skip: func(*http.Request) bool { return true }}, throttler.Config{}, false},
	} {
		var answers [2][]*httptest.ResponseRecorder
		for i := range answers {
			b := newCounts(t)
			b.down.Store(test.down)
			test.th.Backend, test.th.Policy = b, policy(limit.PerHour(1))
			m := middleware(t, throttlertesting.New(t, test.th), test.cfg)
			for range 2 {
				w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
				if i == 0 {
					m.Wrap(http.HandlerFunc(ok)).ServeHTTP(w, r)
				} else if call := m.Begin(w.Header(), r); call.Allowed() {
					call.Done(httplimit.Outcome{})
				} else {
					status, body := call.Problem(w.Header())
					w.WriteHeader(status)
					_, _ = w.Write(body)
				}
				answers[i] = append(answers[i], w)
			}
		}
		for n, want := range answers[0] {
			got := answers[1][n]
			if got.Code != want.Code || got.Body.String() != want.Body.String() || !equal(got.Header(), want.Header()) {
				t.Errorf("%s, request %d: %d %v %s\nwant %d %v %s", name, n+1, got.Code, got.Header(), got.Body,
					want.Code, want.Header(), want.Body)
			}
		}
	}
}

func equal(a, b http.Header) bool {
	if len(a) != len(b) {
		return false
	}
	for name, values := range a {
		if !slices.Equal(values, b[name]) {
			return false
		}
	}
	return true
}

func TestCall(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(5))})
	var outcomes []httplimit.Outcome
	m := middleware(t, th, httplimit.Config{
		Cost: func(*http.Request) int64 { return 3 },
		Settle: func(r *http.Request, o httplimit.Outcome) int64 {
			if _, ok := httplimit.FromContext(r.Context()); !ok {
				t.Error("Settle got a request without a decision")
			}
			outcomes = append(outcomes, o)
			return 1
		},
	})
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	call := m.Begin(http.Header{}, r)
	if d := call.Decision(); !call.Allowed() || call.Err() != nil || d.Remaining != 2 {
		t.Fatalf("%v, %v, %+v", call.Allowed(), call.Err(), d)
	}
	if d, ok := httplimit.FromContext(call.Request().Context()); !ok || d.Remaining != 2 {
		t.Errorf("FromContext = %+v, %v", d, ok)
	}
	w := httptest.NewRecorder()
	if call.Refuse(w); len(w.Header()) != 0 || w.Body.Len() != 0 {
		t.Errorf("an admitted request was refused: %v", w)
	}
	call.Done(httplimit.Outcome{Panicked: true})
	call.Done(httplimit.Outcome{Status: 200}) // changes nothing
	if want := []httplimit.Outcome{{Status: 500, Cost: 3, Panicked: true}}; !slices.Equal(outcomes, want) {
		t.Errorf("%+v, want %+v", outcomes, want)
	}
	if got := used(t, th, secret); got != 1 {
		t.Errorf("%d used, want 1", got)
	}

	m.Begin(http.Header{}, r)
	header := http.Header{}
	call = m.Begin(header, r)
	if call.Allowed() || call.Err() != nil || header.Get("Retry-After") == "" || header.Get("Content-Type") != "" {
		t.Errorf("%v, %v, %v: want a denial, whose body has no header yet", call.Allowed(), call.Err(), header)
	}
	call.Done(httplimit.Outcome{Status: 200})
	if len(outcomes) != 1 {
		t.Error("a denied request was settled")
	}
}

// Refuse calls the handlers of the Config.
func TestRefuse(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
	m := middleware(t, th, httplimit.Config{
		Key: httplimit.Header("X-Api-Key", nil),
		Denied: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if d, ok := httplimit.FromContext(r.Context()); !ok || d.Allowed {
				t.Errorf("%+v, %v", d, ok)
			}
			w.WriteHeader(http.StatusTeapot)
		}),
		OnError: func(w http.ResponseWriter, r *http.Request, err error) {
			if _, ok := httplimit.FromContext(r.Context()); ok || !errors.Is(err, httplimit.ErrNoKey) {
				t.Errorf("%v, %v", ok, err)
			}
			w.WriteHeader(http.StatusUnavailableForLegalReasons)
		},
	})
	for i, want := range []int{http.StatusOK, http.StatusTeapot, http.StatusUnavailableForLegalReasons} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		if i < 2 {
			r.Header.Set("X-Api-Key", "k")
		}
		m.Begin(w.Header(), r).Refuse(w)
		if w.Code != want {
			t.Errorf("request %d: %d, want %d", i+1, w.Code, want)
		}
	}
}

// The context of a Call passes on what the request's context has.
func TestCallContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	got := middleware(t, th, httplimit.Config{}).Begin(http.Header{}, r).Request().Context()
	child, stop := context.WithCancel(got)
	defer stop()
	if got.Value(key{}) != "value" || child.Err() != nil {
		t.Errorf("%v, %v", got.Value(key{}), child.Err())
	}
	cancel()
	<-child.Done()
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	b := newCounts(t)
	newTh := func(name string, max int64) *throttler.Throttler {
		return throttlertesting.New(t, throttler.Config{Backend: b, Policy: limit.Policy{
			Name: name, Limits: []limit.Limit{limit.PerHour(max).Named(name)},
		}})
	}
	h := wrap(t, newTh("all", 2), httplimit.Config{
		Key: httplimit.Header("X-Api-Key", nil),
		Routes: map[string]httplimit.Route{
			"/healthz":         {Exempt: true},
			"POST /login":      {Throttler: newTh("login", 1), Key: httplimit.ClientAddr()},
			"GET /search/{q}":  {Throttler: newTh("search", 10), Cost: 6},
			"GET /search/free": {Throttler: newTh("search", 10)},
		},
	}, ok)
	for i, step := range []struct {
		method, path, key string
		status            int
		state             string
	}{
		{"GET", "/healthz", "", 200, ""},
		{"GET", "/", "", 401, ""},
		{"POST", "/login", "", 200, `"login";r=0;t=3600`},
		{"POST", "/login", "", 429, `"login";r=0;t=3600`},
		{"GET", "/login", "a", 200, `"all";r=1;t=3600`},
		{"GET", "/search/x", "a", 200, `"search";r=4;t=3600`},
		{"GET", "/search/free", "a", 200, `"search";r=3;t=3600`},
		{"GET", "//search//y", "a", 429, `"search";r=3;t=3600`}, // as a ServeMux redirects it
		{"GET", "/s%65arch/y", "a", 429, `"search";r=3;t=3600`},
		{"GET", "/anything", "a", 200, `"all";r=0;t=3600`},
		{"GET", "/anything/else", "a", 429, `"all";r=0;t=3600`},
	} {
		r := httptest.NewRequest(step.method, step.path, nil)
		if step.key != "" {
			r.Header.Set("X-Api-Key", step.key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("RateLimit"); w.Code != step.status || got != step.state {
			t.Errorf("request %d, %s %s: %d, %s, want %d, %s", i+1, step.method, step.path, w.Code, got, step.status, step.state)
		}
	}
}

func TestRoutesAreValidated(t *testing.T) {
	t.Parallel()
	th := throttlertesting.New(t, throttler.Config{Policy: policy(limit.PerHour(1))})
	_, err := httplimit.New(th, httplimit.Config{Key: secretKey, Routes: map[string]httplimit.Route{
		"/a":     {Exempt: true, Cost: 1},
		"/b":     {Also: []httplimit.KeyFunc{nil}},
		"/c":     {Cost: -1},
		"/d/{x}": {}, "/d/{y}": {},
		"GET": {},
	}})
	want := []string{`Routes["/a"].Exempt`, `Routes["/b"].Also`, `Routes["/b"].Also[0]`, `Routes["/c"].Cost`, "Routes", "Routes"}
	var got []string
	for line := range strings.Lines(err.Error()) {
		field, _, _ := strings.Cut(strings.TrimPrefix(line, "httplimit: "), " =")
		got = append(got, field)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q of\n%v\nwant %q", got, err, want)
	}
}
