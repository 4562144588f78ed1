package httplimit_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

func Example() {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) // a clock that stands still, for the output's sake
	counts, err := memory.New(memory.Config{Now: func() time.Time { return noon }})
	if err != nil {
		log.Fatal(err)
	}
	defer counts.Close()
	t, err := throttler.New(throttler.Config{
		Backend: counts,
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{
			limit.PerMinute(2).Named("burst"), limit.PerDay(1000).Named("daily"),
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	limits, err := httplimit.New(t, httplimit.Config{Key: httplimit.ClientAddr()})
	if err != nil {
		log.Fatal(err)
	}
	handler := limits.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello")
	}))

	for range 3 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Printf("%d %s %q\n", w.Code, w.Header().Get("RateLimit"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 "burst";r=1;t=60, "daily";r=999;t=86400 ""
	// 200 "burst";r=0;t=60, "daily";r=998;t=86400 ""
	// 429 "burst";r=0;t=60, "daily";r=998;t=86400 "60"
}

// A page that has not changed costs a tenth, as do the server's own failures.
func ExampleGiveBack() {
	t, err := throttler.New(throttler.Config{Policy: limit.Policy{Limits: []limit.Limit{limit.PerHour(1000)}}})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	limits, err := httplimit.New(t, httplimit.Config{
		Key:    httplimit.ClientAddr(),
		Cost:   func(*http.Request) int64 { return 10 },
		Settle: httplimit.GiveBack(1, httplimit.Outcome.NotModified, httplimit.Outcome.Failed),
	})
	if err != nil {
		log.Fatal(err)
	}

	for _, status := range []int{http.StatusOK, http.StatusNotModified, http.StatusBadGateway, http.StatusNotFound} {
		handler := limits.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		left, err := t.Peek(context.Background(), httplimit.AddrKey(netip.MustParseAddr("192.0.2.1")))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(status, left.Remaining)
	}
	// Output:
	// 200 990
	// 304 989
	// 502 988
	// 404 978
}

// Behind proxies the client is the last address that none of them has. What a client writes itself is not believed.
func ExampleClientAddr() {
	key := httplimit.ClientAddr(netip.MustParsePrefix("10.0.0.0/8"))

	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	r.Header.Add("X-Forwarded-For", "8.8.8.8, 2001:db8:1:2::17") // 8.8.8.8 came from the client
	r.Header.Add("X-Forwarded-For", "10.0.0.2")
	fmt.Println(key(r))
	// Output:
	// addr:2001:db8:1:2::/64 <nil>
}

// The user and the address must both have quota left. PolicyFor tells their limits apart.
func ExampleConfig() {
	addresses := limit.Policy{Name: "addresses", Limits: []limit.Limit{limit.PerMinute(300)}}
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerMinute(100)}},
		PolicyFor: func(_ context.Context, key string) *limit.Policy {
			if strings.HasPrefix(key, "addr:") {
				return &addresses
			}
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	limits, err := httplimit.New(t, httplimit.Config{
		Key:     httplimit.Header("X-Api-Key", nil),
		Also:    []httplimit.KeyFunc{httplimit.ClientAddr()},
		Skip:    func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		Headers: httplimit.Draft08 | httplimit.GitHub,
		OnError: func(w http.ResponseWriter, r *http.Request, err error) {
			fmt.Println("no verdict:", err) // tell somebody
			httplimit.WriteError(w, r, err)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := limits.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		decision, ok := httplimit.FromContext(r.Context())
		fmt.Println(r.URL.Path, ok, decision.Remaining)
	}))

	for _, path := range []string{"/healthz", "/a", "/b"} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		if path != "/b" {
			r.Header.Set("X-Api-Key", "secret")
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// /healthz false 0
	// 200 ""
	// /a true 99
	// 200 "99"
	// no verdict: httplimit: the request has no key
	// 401 ""
}

// A login is limited by the address alone, and a search costs five requests. The health check is exempt.
func ExampleRoute() {
	newThrottler := func(name string, limits ...limit.Limit) *throttler.Throttler {
		t, err := throttler.New(throttler.Config{Policy: limit.Policy{Name: name, Limits: limits}}) // in production all share a Backend
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	all, logins := newThrottler("api", limit.PerMinute(12).Named("api")), newThrottler("logins", limit.PerMinute(3).Named("logins"))
	defer all.Close()
	defer logins.Close()
	limits, err := httplimit.New(all, httplimit.Config{
		Key: httplimit.Header("X-Api-Key", nil),
		Routes: map[string]httplimit.Route{
			"/healthz":    {Exempt: true},
			"GET /search": {Cost: 5},
			"POST /login": {Throttler: logins, Key: httplimit.ClientAddr()},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := limits.Wrap(http.NewServeMux())

	for _, request := range []string{"GET /healthz", "POST /login", "GET /", "GET /search", "GET /search", "GET /search"} {
		method, path, _ := strings.Cut(request, " ")
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("X-Api-Key", "secret")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		limits, _, _ := strings.Cut(w.Header().Get("RateLimit"), ";t=")
		fmt.Println(request, limits, w.Code == http.StatusTooManyRequests)
	}
	// Output:
	// GET /healthz  false
	// POST /login "logins";r=2 false
	// GET / "api";r=11 false
	// GET /search "api";r=6 false
	// GET /search "api";r=1 false
	// GET /search "api";r=1 true
}

// An adapter for a framework without http.Handler decides, and settles by what the framework knows of the outcome.
func ExampleMiddleware_Begin() {
	t, err := throttler.New(throttler.Config{Policy: limit.Policy{Limits: []limit.Limit{limit.PerHour(20).Named("hourly")}}})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	limited, err := httplimit.New(t, httplimit.Config{
		Key:    httplimit.ClientAddr(),
		Cost:   func(*http.Request) int64 { return 10 },
		Settle: httplimit.GiveBack(1, httplimit.Outcome.Failed),
	})
	if err != nil {
		log.Fatal(err)
	}
	handle := func(r *http.Request, next func(*http.Request) int) (int, http.Header, []byte) {
		header := http.Header{}
		call := limited.Begin(header, r)
		if !call.Allowed() {
			status, body := call.Problem(header)
			return status, header, body
		}
		outcome := httplimit.Outcome{Panicked: true}
		defer func() { call.Done(outcome) }()
		outcome.Status = next(call.Request())
		outcome.Panicked = false
		return outcome.Status, header, nil
	}
	for _, answer := range []int{http.StatusBadGateway, http.StatusOK, http.StatusOK} {
		status, header, body := handle(httptest.NewRequest(http.MethodGet, "/", nil), func(*http.Request) int { return answer })
		fmt.Println(status, header.Get("RateLimit-Policy"), header.Get("Content-Type"), len(body) > 0)
	}
	// Output:
	// 502 "hourly";q=20;w=3600  false
	// 200 "hourly";q=20;w=3600  false
	// 429 "hourly";q=20;w=3600 application/problem+json true
}

// Proxies that write another field. Without a trusted proxy in front no field is believed.
func ExampleClientAddrFrom() {
	proxies := netip.MustParsePrefix("10.0.0.0/8")
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Add("Forwarded", `for=8.8.8.8, for="[2001:db8:1:2::17]:4711"`) // 8.8.8.8 came from the client
	r.Header.Add("X-Real-IP", "203.0.113.7")

	r.RemoteAddr = "10.0.0.1:4711"
	fmt.Println(httplimit.ClientAddrFrom("Forwarded", proxies)(r))
	fmt.Println(httplimit.ClientAddrFrom("X-Real-IP", proxies)(r))
	r.RemoteAddr = "192.0.2.1:4711"
	fmt.Println(httplimit.ClientAddrFrom("X-Real-IP", proxies)(r))
	// Output:
	// addr:2001:db8:1:2::/64 <nil>
	// addr:203.0.113.7 <nil>
	// addr:192.0.2.1 <nil>
}

// Callers with an account by their key, which something before has checked; all others by their address.
func ExampleFirstOf() {
	key := httplimit.FirstOf(httplimit.Header("X-Account", nil), httplimit.ClientAddr())
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "192.0.2.1:4711"
	fmt.Println(key(r))

	r.Header.Set("X-Account", "42")
	k, err := key(r)
	fmt.Println(k == httplimit.HeaderKey("X-Account", "42", nil), strings.Contains(k, "42"), err) // the value itself is not stored
	// Output:
	// addr:192.0.2.1 <nil>
	// true false <nil>
}

// To look at a client's counts, or to reset them, ask for the key that its address has.
func ExampleAddrKey() {
	fmt.Println(httplimit.AddrKey(netip.MustParseAddr("192.0.2.1")))
	fmt.Println(httplimit.AddrKey(netip.MustParseAddr("2001:db8:1:2::17")))
	fmt.Println(httplimit.AddrKey(netip.MustParseAddr("::ffff:192.0.2.1")))
	// Output:
	// addr:192.0.2.1
	// addr:2001:db8:1:2::/64
	// addr:192.0.2.1
}

// An IPv6 client is denied by the key of its /64: the address as it is would deny nobody.
func ExampleAddrKey_denyList() {
	client := netip.MustParseAddr("2001:db8:1:2::17")
	t, err := throttler.New(throttler.Config{
		Policy: limit.Policy{Limits: []limit.Limit{limit.PerHour(100)}},
		Deny:   []string{httplimit.AddrKey(client)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	limits, err := httplimit.New(t, httplimit.Config{Key: httplimit.ClientAddr()})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = netip.AddrPortFrom(client, 4711).String()
	w := httptest.NewRecorder()
	limits.Wrap(http.NotFoundHandler()).ServeHTTP(w, r)
	fmt.Println(w.Code)
	// Output: 403
}

// A handler sees how the request was decided.
func ExampleFromContext() {
	t, err := throttler.New(throttler.Config{Policy: limit.Policy{Limits: []limit.Limit{limit.PerHour(100)}}})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	limits, err := httplimit.New(t, httplimit.Config{Key: httplimit.ClientAddr()})
	if err != nil {
		log.Fatal(err)
	}
	handler := limits.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		decision, ok := httplimit.FromContext(r.Context())
		fmt.Println(ok, decision.Remaining, decision.Source, decision.Guarantee)
	}))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	// Output: true 99 local exact
}
