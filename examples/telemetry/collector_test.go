//go:build unix

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCollector sends everything to a real collector, which is built of its Go modules: spans by gRPC, metrics and log events
// by HTTP.
func TestCollector(t *testing.T) { // not parallel: the environment is the process's
	dir := t.TempDir()
	program := filepath.Join(dir, "collector")
	build := exec.Command("go", "build", "-o", program, ".") // a minute the first time
	build.Dir, build.Env = filepath.Join("testdata", "collector"), append(os.Environ(), "GOWORK=off")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	overHTTP, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	collector, err := startChild(t.Context(), kind{
		program: program,
		args: func(port, _ string) []string {
			pipeline := "{receivers: [otlp], exporters: [debug]}"
			return []string{"--config", fmt.Sprintf(`yaml:
receivers: {otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%s"}, http: {endpoint: %q}}}}
exporters: {debug: {verbosity: detailed}}
service: {telemetry: {metrics: {level: none}}, pipelines: {traces: %[3]s, metrics: %[3]s, logs: %[3]s}}
`, port, overHTTP, pipeline)}
		},
		ready: func(c *child) bool {
			text, err := os.ReadFile(c.log)
			return err == nil && strings.Contains(string(text), "Everything is ready")
		},
	}, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer collector.stop()
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT":        "http://" + overHTTP,
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://" + collector.addr,
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
		"OTEL_METRIC_EXPORT_INTERVAL":        "500",
		"OTEL_BLRP_SCHEDULE_DELAY":           "200",
		"OTEL_BSP_SCHEDULE_DELAY":            "200",
		"OTEL_RESOURCE_ATTRIBUTES":           "deployment.environment.name=test",
	} {
		t.Setenv(name, value)
	}

	o := defaults()
	o.step, o.drill, o.down, o.spans = time.Second, 2*time.Second, 2*time.Second, 0.05
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out output
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, o, &out) }()
	wanted := map[string]bool{
		"service.name: Str(telemetry)": true, "deployment.environment.name: Str(test)": true,
		"-> Name: sluice.decisions\n": true, "-> Name: sluice.node.rtt\n": true, "-> Name: sluice.lease.efficiency\n": true,
		": ratelimit search\n": true, "db.system.name: Str(redis)": true,
		"EventName: feature_flag.evaluation": true, "EventName: sluice.node.breaker_opened": true,
		"Body: Str(redis client)": true, // what go-redis logs
	}
	var got string
	for deadline := time.Now().Add(60 * time.Second); len(wanted) > 0 && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		text, err := os.ReadFile(collector.log)
		if err != nil {
			t.Fatal(err)
		}
		got = string(text)
		maps.DeleteFunc(wanted, func(line string, _ bool) bool { return strings.Contains(got, line) })
	}
	for line := range wanted {
		t.Errorf("the collector got nothing with %q; the example printed\n%.2000s", line, out.String())
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
