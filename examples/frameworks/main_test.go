package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
)

// start serves a framework's API on a port of its own, and returns its URL.
func start(t *testing.T, framework string) string {
	t.Helper()
	return serve(t, framework, newLimits)
}

func serve(t *testing.T, framework string, limits func(*throttler.Throttler) (*httplimit.Middleware, error)) string {
	t.Helper()
	th, err := newThrottler()
	if err != nil {
		t.Fatal(err)
	}
	limited, err := limits(th)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := frameworks[framework](limited)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
		if err := th.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return "http://" + listener.Addr().String()
}

func newClient(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

// A request and what the server must answer. The limit is 30 a minute; a request costs 10, of which a 304 and a 5xx get 9 back.
type step struct {
	path, key string
	fresh     bool // the client has the page
	twice     bool // sends the key twice
	status    int
	remaining string
}

var steps = []step{
	{path: "/healthz", status: 200},
	{path: "/hello", status: 401},
	{path: "/hello", key: "a", status: 200, remaining: "20"},
	{path: "/page", key: "a", fresh: true, status: 304, remaining: "10"},
	{path: "/hello", key: "a", status: 200, remaining: "9"}, // the 304 cost 1
	{path: "/hello", key: "a", status: 429, remaining: "9"},
	{path: "/broken", key: "b", status: 503, remaining: "20"},
	{path: "/page", key: "b", status: 200, remaining: "19"}, // the failure cost 1
	{path: "/hello", key: "b", twice: true, status: 400},
}

func TestFrameworks(t *testing.T) {
	t.Parallel()
	for name := range frameworks {
		if name == "connect" { // has an API of its own, see TestConnect
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, client := start(t, name), newClient(t)
			for i, step := range steps {
				header, body := step.do(t, client, url)
				if header == nil {
					t.Fatalf("request %d, %s: %s", i+1, step.path, body)
				}
				checkLimits(t, i, header, step.remaining)
				checkRefusal(t, i, step.status, header, body)
			}
		})
	}
}

// do sends a request. The header is nil if the status is another than expected, and the body then says so.
func (s step) do(t *testing.T, client *http.Client, url string) (http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+s.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.key != "" {
		r.Header.Add("X-Api-Key", s.key)
	}
	if s.twice {
		r.Header.Add("X-Api-Key", "another")
	}
	if s.fresh {
		r.Header.Set("If-None-Match", `"v1"`)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != s.status {
		return nil, response.Status + ", want " + strconv.Itoa(s.status) + ": " + string(body)
	}
	return response.Header, string(body)
}

// checkLimits checks the fields about limits: remaining of 30 a minute, or none.
func checkLimits(t *testing.T, i int, header http.Header, remaining string) {
	t.Helper()
	policy, state := "", ""
	if remaining != "" {
		policy, state = `"minute";q=30;w=60`, `"minute";r=`+remaining+`;t=`
	}
	if got := header.Get("RateLimit-Policy"); got != policy {
		t.Errorf("request %d: RateLimit-Policy: %s, want %s", i+1, got, policy)
	}
	got := header.Get("RateLimit")
	if len(got) < len(state) || got[:len(state)] != state || state == "" && got != "" {
		t.Errorf("request %d: RateLimit: %s, want %s", i+1, got, state)
	}
}

func checkRefusal(t *testing.T, i, status int, header http.Header, body string) {
	t.Helper()
	wait, err := strconv.Atoi(header.Get("Retry-After"))
	if denied := status == http.StatusTooManyRequests; denied != (err == nil) || denied && (wait < 1 || wait > 60) {
		t.Errorf("request %d: Retry-After: %q", i+1, header.Get("Retry-After"))
	}
	if status < 400 || status == http.StatusServiceUnavailable {
		return
	}
	var problem struct {
		Type   string
		Status int
		Limits []string `json:"violated-policies"`
	}
	if err := json.Unmarshal([]byte(body), &problem); err != nil || problem.Status != status ||
		header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("request %d: %v, %s %s", i+1, err, header.Get("Content-Type"), body)
	}
	if status == http.StatusTooManyRequests && (len(problem.Limits) != 1 || problem.Limits[0] != "minute") {
		t.Errorf("request %d: %s", i+1, body)
	}
	if status == http.StatusUnauthorized && header.Get("WWW-Authenticate") == "" {
		t.Errorf("request %d: a 401 without WWW-Authenticate", i+1)
	}
}

// Fiber reuses the memory of requests, which keys must not share: they outlive the request.
func TestFiberKeepsKeys(t *testing.T) {
	t.Parallel()
	want := []string{"aaaa", "bbbb", "cccc"}
	seen := make(chan string, len(want))
	url, client := serve(t, "fiber", func(th *throttler.Throttler) (*httplimit.Middleware, error) {
		return httplimit.New(th, httplimit.Config{Key: func(r *http.Request) (string, error) {
			key := r.Header.Get("X-Api-Key")
			seen <- key
			return key, nil
		}})
	}), newClient(t)
	for _, key := range want {
		if header, body := (step{path: "/hello", key: key, status: 200}).do(t, client, url); header == nil {
			t.Fatalf("%s: %s", key, body)
		}
	}
	for _, key := range want {
		if got := <-seen; got != key {
			t.Errorf("the key %s has become %s", key, got)
		}
	}
}

func TestConnect(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]connect.ClientOption{
		"connect": connect.WithProtoJSON(), "gRPC-Web": connect.WithGRPCWeb(),
	} {
		for procedure, call := range map[string]func(*connectClient, *connectRequest) (http.Header, error){
			greet: func(c *connectClient, req *connectRequest) (http.Header, error) {
				response, err := c.CallUnary(t.Context(), req)
				if err != nil {
					return nil, err
				}
				return response.Header(), nil
			},
			greetMany: func(c *connectClient, req *connectRequest) (http.Header, error) {
				stream, err := c.CallServerStream(t.Context(), req)
				if err != nil {
					return nil, err
				}
				for stream.Receive() {
				}
				return stream.ResponseHeader(), errors.Join(stream.Err(), stream.Close())
			},
		} {
			t.Run(name+procedure, func(t *testing.T) {
				t.Parallel()
				c := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](newClient(t), start(t, "connect")+procedure, option)
				for i, step := range []struct {
					key, name string
					code      connect.Code // 0: none
					remaining string
				}{
					{"", "world", connect.CodeUnauthenticated, ""},
					{"a", "world", 0, "20"},
					{"a", "", connect.CodeUnavailable, "10"},
					{"a", "world", 0, "9"}, // the failure cost 1
					{"a", "world", connect.CodeResourceExhausted, "9"},
				} {
					req := connect.NewRequest(wrapperspb.String(step.name))
					if step.key != "" {
						req.Header().Set("X-Api-Key", step.key)
					}
					header, err := call(c, req)
					failed, ok := errors.AsType[*connect.Error](err)
					switch {
					case step.code == 0 && err == nil:
					case ok && failed.Code() == step.code:
						header = failed.Meta()
					default:
						t.Fatalf("call %d: %v, want %v", i+1, err, step.code)
					}
					checkLimits(t, i, header, step.remaining)
					if denied := step.code == connect.CodeResourceExhausted; denied != (header.Get("Retry-After") != "") {
						t.Errorf("call %d: Retry-After: %q", i+1, header.Get("Retry-After"))
					}
				}
				if len(errDown.Meta()) > 0 {
					t.Errorf("header fields of a call in an error that calls share: %v", errDown.Meta())
				}
			})
		}
	}
}

type (
	connectClient  = connect.Client[wrapperspb.StringValue, wrapperspb.StringValue]
	connectRequest = connect.Request[wrapperspb.StringValue]
)
