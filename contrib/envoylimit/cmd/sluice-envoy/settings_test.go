package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/throttler"
)

func environment(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// The environment has the reference's names; a flag goes before it.
func TestSettings(t *testing.T) {
	t.Parallel()
	s, err := parse([]string{"-grpc-port", "9", "-shadow-mode", "-sluice-failure=closed"}, environment(
		"GRPC_PORT", "8", "PORT", "7", "REDIS_URL", "localhost:6379", "NEAR_LIMIT_RATIO", "0.5", "SLUICE_FAILURE", "open",
		"LOG_FORMAT", "json", "DEBUG_PORT", "", "USE_STATSD", "false", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true", "RUNTIME_WATCH_ROOT", "false",
	), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if s.grpcPort != 9 || s.port != 7 || s.debugPort != 6070 || s.redisURL != "localhost:6379" || !s.shadow || s.nearLimit != 0.5 ||
		s.failurePolicy() != throttler.FailClosed || s.root != "/srv/runtime_data/current" || s.directory != "config" {
		t.Errorf("%+v", s)
	}
	if got := strings.Join(s.unused, " "); got != "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT RUNTIME_WATCH_ROOT" {
		t.Errorf("%q", got)
	}
	for want, env := range map[string][]string{
		"REDIS_TLS_CACERT REDIS_TYPE SLUICE_TOPOLOGY": {"BACKEND_TYPE", "memory", "REDIS_TYPE", "CLUSTER", "SLUICE_TOPOLOGY", "x", "REDIS_TLS_CACERT", "x"},
		"REDIS_PERSECOND_TYPE REDIS_TYPE":             {"SLUICE_TOPOLOGY", "x", "REDIS_TYPE", "SINGLE", "REDIS_PERSECOND_TYPE", "SINGLE"},
		"MEMCACHE_TLS_CACERT CONFIG_GRPC_XDS_NODE_ID": {"REDIS_URL", "a:1", "MEMCACHE_TLS_CACERT", "x", "CONFIG_GRPC_XDS_NODE_ID", "x"},
		"REDIS_URL": {"BACKEND_TYPE", "memcache", "MEMCACHE_HOST_PORT", "a:1", "REDIS_TIMEOUT", "1s", "REDIS_URL", "x"},
		"":          {"REDIS_URL", "a:1", "REDIS_TYPE", "CLUSTER", "REDIS_TLS", "true", "REDIS_TLS_CACERT", "x"},
	} {
		s, err := parse(nil, environment(env...), io.Discard)
		if err != nil || strings.Join(s.unused, " ") != want {
			t.Errorf("%v: %v, %q; want %q", env, err, s.unused, want)
		}
	}
	if s, err := parse(nil, environment("REDIS_URL", "a:1"), io.Discard); err != nil || s.failurePolicy() != throttler.FailError {
		t.Errorf("%v", err)
	}
}

// What is not supported is an error that says so, and all problems are reported at once.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		env  []string
		want []string
	}{
		{nil, nil, []string{"REDIS_URL or SLUICE_TOPOLOGY must be set"}},
		{nil, []string{"REDIS_URL", "a:1", "SLUICE_TOPOLOGY", "b"}, []string{"REDIS_URL or SLUICE_TOPOLOGY must be set, not both"}},
		{[]string{"-redis-url", "a:1", "more"}, nil, []string{`arguments: ["more"] must be none`}},
		{nil, []string{"REDIS_URL", "a:1", "GRPC_PORT", "many", "REDIS_TIMEOUT", "1"}, []string{`GRPC_PORT = "many": `, `REDIS_TIMEOUT = "1": `}},
		{nil, []string{"BACKEND_TYPE", "memcache"}, []string{"MEMCACHE_HOST_PORT must be set"}},
		{nil, []string{"BACKEND_TYPE", "file"}, []string{`BACKEND_TYPE = "file" must be one of redis, memory, memcache`}},
		{nil, []string{"BACKEND_TYPE", "memory", "CONFIG_TYPE", "GRPC_XDS_SOTW"}, []string{`CONFIG_TYPE = "GRPC_XDS_SOTW" must be one of FILE`}},
		{nil, []string{"BACKEND_TYPE", "memory", "REDIS_PERSECOND", "true", "USE_STATSD", "true", "MEMCACHE_SRV", "x", "EXTRA_TAGS", "a:b"}, []string{
			"REDIS_PERSECOND is not supported: one backend", "USE_STATSD is not supported: scrape", "EXTRA_TAGS is not supported", "MEMCACHE_SRV is not supported",
		}},
		{nil, []string{"BACKEND_TYPE", "memory", "GRPC_SERVER_USE_TLS", "true"}, []string{"GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY must be set"}},
		{nil, []string{"BACKEND_TYPE", "memory", "GRPC_CLIENT_TLS_CACERT", "x"}, []string{"GRPC_SERVER_USE_TLS must be true"}},
		{nil, []string{"BACKEND_TYPE", "memory", "SLUICE_OPEN_CAP", "much"}, []string{`SLUICE_OPEN_CAP = "much": `}},
		{nil, []string{"BACKEND_TYPE", "memory", "TRACING_SAMPLING_RATE", "2"}, []string{"TRACING_SAMPLING_RATE = 2 must be from 0 to 1"}},
		{nil, []string{"BACKEND_TYPE", "memory", "USE_PROMETHEUS", "true", "PROMETHEUS_PATH", "metrics"}, []string{`PROMETHEUS_PATH = "metrics" must begin with /`}},
		{nil, []string{"BACKEND_TYPE", "memory", "USE_PROMETHEUS", "true", "PROMETHEUS_PATH", "/{"}, []string{`PROMETHEUS_PATH = "/{" must begin with /`}},
		{nil, []string{"BACKEND_TYPE", "memory", "LOCAL_CACHE_SIZE_IN_BYTES", "-1", "NEAR_LIMIT_RATIO", "0"}, []string{
			"LOCAL_CACHE_SIZE_IN_BYTES = -1 must not be negative", "NEAR_LIMIT_RATIO = 0 must be above 0",
		}},
		{nil, []string{"REDIS_URL", "a:1", "REDIS_TLS_CACERT", "x"}, []string{"REDIS_TLS must be true"}},
		{nil, []string{"REDIS_URL", "a:1", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"}, []string{"REDIS_TLS must be true"}},
	} {
		_, err := parse(tt.args, environment(tt.env...), io.Discard)
		for _, want := range tt.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v %v: %v; want %q", tt.args, tt.env, err, want)
			}
		}
	}
	var out bytes.Buffer
	if _, err := parse([]string{"-help"}, environment(), &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "-runtime-root folder") {
		t.Errorf("%v, %s", err, out.String())
	}
}

// What can't start says why, and leaves nothing behind.
func TestCantStart(t *testing.T) {
	root, file := folder(t, limits)
	for name, env := range map[string][]string{
		"no such file or directory": {"RUNTIME_ROOT", root + "/none"},
		"GRPC_SERVER_TLS_CERT":      {"RUNTIME_ROOT", root, "GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_TLS_CERT", file, "GRPC_SERVER_TLS_KEY", file},
		"OpenCap":                   {"RUNTIME_ROOT", root, "SLUICE_FAILURE", "open"},
		"listen":                    {"RUNTIME_ROOT", root, "GRPC_HOST", "127.0.0.1", "GRPC_PORT", "0", "HOST", "192.0.2.1"},
	} {
		s, err := parse(nil, environment(append(env, "BACKEND_TYPE", "memory", "GRPC_HOST", "127.0.0.1", "GRPC_PORT", "0", "DEBUG_PORT", "0", "PORT", "0")...), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), s, io.Discard, func(addresses) { t.Error("it has started") }); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v; want %q", err, name)
		}
	}
}
