package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/internal/testserver"
)

// The service is fit once there is a domain, and while a server answers, where the settings say so.
func TestHealth(t *testing.T) {
	root, file := folder(t, limits)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	redis := testserver.Redis(t)
	p := start(t, map[string]string{
		"RUNTIME_ROOT": root, "BACKEND_TYPE": "redis", "REDIS_URL": redis.Addr, "REDIS_TIMEOUT": "250ms",
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": "true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true",
	})
	conn := p.dial(t)
	healthy := func(want bool) func() bool {
		return func() bool {
			code, _ := get(t, "http://"+p.http+"/healthcheck")
			check, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
			return err == nil && (code == 200) == want && (check.GetStatus() == healthpb.HealthCheckResponse_SERVING) == want
		}
	}
	eventually(t, "healthy without a domain", healthy(false))
	write(t, file, limits)
	eventually(t, "unhealthy with a domain", healthy(true))
	redis.Kill()
	eventually(t, "healthy without a server", healthy(false))
	_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("user", "ann"))
	if status.Code(err) != codes.Unavailable { // and Envoy's failure_mode_deny decides
		t.Error(err)
	}
	redis.Restart()
	eventually(t, "unhealthy although the server is back", healthy(true))
}

// The loss of one node takes no process out of service.
func TestHealthOfGroups(t *testing.T) {
	root, _ := folder(t, limits)
	primary, replica := testserver.Redis(t), testserver.Redis(t)
	topology := filepath.Join(t.TempDir(), "groups.json")
	write(t, topology, fmt.Sprintf(`{"epoch": 1, "groups": [{"name": "a", "primary": %q, "replicas": [%q]}]}`, primary.Addr, replica.Addr))
	p := start(t, map[string]string{
		"RUNTIME_ROOT": root, "BACKEND_TYPE": "redis", "SLUICE_TOPOLOGY": topology, "REDIS_TIMEOUT": "250ms",
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": "true",
	})
	code := func() int { code, _ := get(t, "http://"+p.http+"/healthcheck"); return code }
	replica.Kill()
	for deadline := time.Now().Add(2 * healthEvery); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if code() != 200 {
			t.Fatal("unfit without a replica")
		}
	}
	primary.Kill()
	eventually(t, "healthy without a server", func() bool { return code() == 500 })
}

// A gateway that watches the health learns of the stop, and doesn't hold it up. A request that is too large is refused.
func TestWatchedStop(t *testing.T) {
	root, _ := folder(t, limits)
	p := start(t, map[string]string{"RUNTIME_ROOT": root, "SLUICE_DRAIN_DELAY": "50ms", "SLUICE_DRAIN": "1m"})
	conn := p.dial(t)
	_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("user", strings.Repeat("a", maxMessage)))
	if status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: serviceName})
	if err != nil {
		t.Fatal(err)
	}
	if now, err := watch.Recv(); err != nil || now.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", now, err)
	}
	begin := time.Now()
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("the stop took %s", took)
	}
	if now, err := watch.Recv(); err != nil || now.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v, %v", now, err)
	}
	if now, err := watch.Recv(); err == nil {
		t.Errorf("%v after the end", now)
	}
}

// A collector that the environment names gets metrics and spans.
func TestOTLP(t *testing.T) {
	var mu sync.Mutex // guards got
	got := make(map[string]bool)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path] = true
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	root, _ := folder(t, limits)
	p := start(t, map[string]string{"RUNTIME_ROOT": root})
	if _, err := pb.NewRateLimitServiceClient(p.dial(t)).ShouldRateLimit(t.Context(), request("user", "ann")); err != nil {
		t.Fatal(err)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !got["/v1/metrics"] || !got["/v1/traces"] {
		t.Errorf("%v", got)
	}
}
