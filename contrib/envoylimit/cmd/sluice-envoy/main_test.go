package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-go/sluice/internal/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limits = `
domain: web
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: path
    value: /api/*
    descriptors:
      - key: method
        rate_limit: {unit: hour, requests_per_unit: 100}
`

// logBook is what the command prints.
type logBook struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// folder is a runtime with one file.
func folder(t testing.TB, text string) (root, file string) {
	t.Helper()
	root = t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(root, "config", "web.yaml")
	write(t, file, text)
	return root, file
}

// write replaces a file in one step: a reader never sees a part.
func write(t testing.TB, file, text string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(file), ".next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
}

// process is a command that runs.
type process struct {
	addresses
	log  *logBook
	stop func() error
}

// start runs the command with an environment until the test ends, on free ports.
func start(t testing.TB, env map[string]string) *process {
	t.Helper()
	for name, value := range map[string]string{
		"HOST": "127.0.0.1", "PORT": "0", "GRPC_HOST": "127.0.0.1", "GRPC_PORT": "0", "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": "0",
		"PROMETHEUS_ADDR": "127.0.0.1:0", "BACKEND_TYPE": "memory", "SLUICE_REFRESH": "5ms", "LOG_LEVEL": "info", "REDIS_TIMEOUT": "5s",
	} {
		if _, has := env[name]; !has {
			env[name] = value
		}
	}
	s, err := parse(nil, func(name string) (string, bool) { v, ok := env[name]; return v, ok }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{log: &logBook{}}
	ctx, cancel := context.WithCancel(context.Background())
	at, done := make(chan addresses, 1), make(chan error, 1)
	go func() { done <- run(ctx, s, p.log, func(a addresses) { at <- a }) }()
	p.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case p.addresses = <-at:
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return p
}

func (p *process) dial(t testing.TB, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if len(opts) == 0 {
		opts = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	target := p.grpc
	if strings.HasPrefix(target, "/") {
		target = "unix:" + target
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func get(t testing.TB, url string) (code int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func request(entries ...string) *pb.RateLimitRequest {
	d := &ratelimit.RateLimitDescriptor{}
	for i := 0; i < len(entries); i += 2 {
		d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: entries[i], Value: entries[i+1]})
	}
	return &pb.RateLimitRequest{Domain: "web", Descriptors: []*ratelimit.RateLimitDescriptor{d}}
}

func TestServes(t *testing.T) {
	root, file := folder(t, limits)
	p := start(t, map[string]string{"RUNTIME_ROOT": root, "USE_PROMETHEUS": "true", "LIMIT_RESPONSE_HEADERS_ENABLED": "true", "EXPIRATION_JITTER_MAX_SECONDS": "300"})
	conn := p.dial(t)
	client := pb.NewRateLimitServiceClient(conn)
	ask := func(entries ...string) *pb.RateLimitResponse {
		t.Helper()
		res, err := client.ShouldRateLimit(t.Context(), request(entries...))
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for i := range 4 {
		res := ask("user", "ann")
		if over := res.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT; over != (i == 3) || len(res.GetResponseHeadersToAdd()) != 3 {
			t.Errorf("request %d: %v", i, res)
		}
	}
	ask("path", "/api/x", "method", "GET")

	check, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	if err != nil || check.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", check, err)
	}
	if code, body := get(t, "http://"+p.http+"/healthcheck"); code != 200 || body != "OK" {
		t.Errorf("%d, %q", code, body)
	}
	for body, want := range map[string]int{
		`{"domain": "web", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]}`: 200,
		`{"domain": "web", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}`: 429,
		`{"domain": "", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}`:    400,
		`no`: 400,
	} {
		resp, err := http.Post("http://"+p.http+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || want < 400 && !strings.Contains(string(text), `"overallCode":"OK"`) && !strings.Contains(string(text), `"overallCode": "OK"`) {
			t.Errorf("%s: %d, %s", body, resp.StatusCode, text)
		}
	}
	if _, text := get(t, "http://"+p.debug+"/rlconfig"); text != "web.path_/api/*.method: 100/1h@aligned, 100 per hour\nweb.user: 3/24h@aligned, 3 per day\n" {
		t.Errorf("%q", text)
	}
	for _, url := range []string{"http://" + p.debug + "/metrics", "http://" + p.addresses.metrics + "/metrics"} {
		_, text := get(t, url)
		for _, want := range []string{
			`ratelimit_service_rate_limit_total_hits{domain="web",key1="user",key2=""} 6`,
			`ratelimit_service_rate_limit_over_limit{domain="web",key1="user",key2=""} 2`,
			`ratelimit_service_rate_limit_within_limit{domain="web",key1="path_/api/*",key2="method"} 1`,
			`ratelimit_service_rate_limit_requests_per_unit{domain="web",key1="user",key2="",unit="day"} 3`,
			`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 5`,
			`ratelimit_service_should_rate_limit_error{err_type="service_error"} 1`,
			`ratelimit_service_config_load_success 1`,
			`sluice_decision`, `go_goroutines`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", url, want)
			}
		}
		if strings.Contains(text, "ann") {
			t.Errorf("%s shows keys", url)
		}
	}
	var report struct {
		Policies []struct{ Policy string }
	}
	_, text := get(t, "http://"+p.debug+"/debug/sluice")
	if err := json.Unmarshal([]byte(text), &report); err != nil || len(report.Policies) != 1 || report.Policies[0].Policy != "web" {
		t.Errorf("%v, %s", err, text)
	}
	if _, text := get(t, "http://"+p.debug+"/stats"); !strings.Contains(text, `"Key1":"user"`) {
		t.Errorf("%s", text)
	}
	if !strings.Contains(p.log.String(), "EXPIRATION_JITTER_MAX_SECONDS") {
		t.Errorf("%s", p.log)
	}

	// A broken file changes nothing; a good one is in force without a restart, and counts stay.
	write(t, file, limits+"broken")
	eventually(t, "a broken file goes unnoticed", func() bool { return strings.Contains(p.log.String(), "web.yaml:") })
	if res := ask("user", "ann"); res.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT {
		t.Error(res)
	}
	write(t, file, strings.Replace(limits, "unit: 3}", "unit: 4}", 1))
	eventually(t, "the new file is not in force", func() bool { return ask("user", "carl").GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 4 })
	if res := ask("user", "ann"); res.GetOverallCode() != pb.RateLimitResponse_OK || res.GetStatuses()[0].GetLimitRemaining() != 0 {
		t.Error(res)
	}
	if _, text := get(t, "http://"+p.debug+"/metrics"); !strings.Contains(text, "ratelimit_service_config_load_error 1") {
		t.Error("a refused file is not counted")
	}
}

// A stop tells gateways first, and cuts nobody off.
func TestDrains(t *testing.T) {
	root, _ := folder(t, limits)
	p := start(t, map[string]string{"RUNTIME_ROOT": root, "SLUICE_DRAIN_DELAY": "300ms"})
	conn := p.dial(t)
	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	eventually(t, "still healthy", func() bool {
		check, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err == nil && check.GetStatus() == healthpb.HealthCheckResponse_NOT_SERVING
	})
	if code, _ := get(t, "http://"+p.http+"/healthcheck"); code != 500 {
		t.Errorf("%d", code)
	}
	if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("user", "ann")); err != nil {
		t.Errorf("a request while it drains: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// What counts may be one Redis, or groups of a topology; several processes share it.
func TestServers(t *testing.T) {
	root, _ := folder(t, limits)
	a, b := testserver.Redis(t), testserver.Redis(t)
	topology := filepath.Join(t.TempDir(), "groups.json")
	write(t, topology, `{"epoch": 1, "groups": [{"name": "a", "primary": "`+a.Addr+`"}, {"name": "b", "primary": "`+b.Addr+`"}]}`)
	cluster := testserver.Cluster(t, 1, 0)
	sentinels := testserver.Sentinels(t, "main", testserver.Redis(t), 0)
	for name, env := range map[string]map[string]string{
		"redis":    {"REDIS_URL": a.Addr, "REDIS_SOCKET_TYPE": "tcp", "LOCAL_CACHE_SIZE_IN_BYTES": "1000000"},
		"url":      {"REDIS_URL": "redis://" + a.Addr + "/1"},
		"topology": {"SLUICE_TOPOLOGY": topology, "CACHE_KEY_PREFIX": "rl:"},
		"cluster":  {"REDIS_URL": cluster[0].Primary.Addr, "REDIS_TYPE": "cluster"},
		"sentinel": {"REDIS_URL": "main," + sentinels[0].Addr, "REDIS_TYPE": "sentinel"},
	} {
		t.Run(name, func(t *testing.T) {
			var clients []pb.RateLimitServiceClient
			for range 2 {
				own := map[string]string{"RUNTIME_ROOT": root, "BACKEND_TYPE": "redis", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": "true"}
				for k, v := range env {
					own[k] = v
				}
				p := start(t, own)
				eventually(t, "not healthy: "+p.log.String(), func() bool { code, _ := get(t, "http://"+p.http+"/healthcheck"); return code == 200 })
				clients = append(clients, pb.NewRateLimitServiceClient(p.dial(t)))
			}
			var got []string
			for i := range 6 {
				res, err := clients[i%2].ShouldRateLimit(t.Context(), request("user", "ann"))
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, res.GetOverallCode().String())
			}
			if want := []string{"OK", "OK", "OK", "OVER_LIMIT", "OVER_LIMIT", "OVER_LIMIT"}; !slices.Equal(got, want) {
				t.Errorf("%v", got)
			}
		})
	}
}
