package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
)

// settings are what flags and the environment say.
type settings struct {
	host, debugHost, grpcHost, grpcUDS string
	port, debugPort, grpcPort          int
	maxAge, maxAgeGrace                time.Duration
	useTLS                             bool
	tlsCert, tlsKey, clientCA, sanName string
	logLevel, logFormat                string

	configType                    string
	root, subdirectory, directory string
	mergeDomains, oneConfig       bool
	refresh                       time.Duration

	backend, redisSocket, redisType, redisURL  string
	redisAuth, sentinelAuth                    string
	redisPool                                  int
	redisTLS, redisSkipVerify, redisHealth     bool
	redisCert, redisKey, redisCA               string
	redisTimeout                               time.Duration
	memcached, prefix, topology                string
	localCache                                 int
	fullStatuses                               bool
	shadow, quota, metadata, headers, ietf     bool
	limitHeader, remainingHeader, resetHeader  string
	nearLimit                                  float64
	failure                                    string
	openCap                                    limit.Limit
	processes, maxRequests, maxDescriptors     int
	drainDelay, drain                          time.Duration
	clearKeys, prometheus                      bool
	prometheusAddr, prometheusPath             string
	tracing                                    bool
	tracingProtocol, serviceName, serviceSpace string
	instance                                   string
	sampling                                   float64

	unused []string // settings that are set and have no meaning here
}

// register declares every setting by its name in the environment. Its flag is that in small letters, with hyphens.
func (s *settings) register(set *flag.FlagSet) {
	text := func(p *string, env, value, help string) { set.StringVar(p, flagOf(env), value, help) }
	number := func(p *int, env string, value int, help string) { set.IntVar(p, flagOf(env), value, help) }
	is := func(p *bool, env, help string) { set.BoolVar(p, flagOf(env), false, help) }
	span := func(p *time.Duration, env string, value time.Duration, help string) {
		set.DurationVar(p, flagOf(env), value, help)
	}
	text(&s.grpcHost, "GRPC_HOST", "0.0.0.0", "the `host` to serve gRPC on")
	number(&s.grpcPort, "GRPC_PORT", 8081, "its `port`")
	text(&s.grpcUDS, "GRPC_UDS", "", "a Unix socket to serve gRPC on, in place of a port")
	span(&s.maxAge, "GRPC_MAX_CONNECTION_AGE", 24*time.Hour, "after which a connection is closed")
	span(&s.maxAgeGrace, "GRPC_MAX_CONNECTION_AGE_GRACE", time.Hour, "how long its calls may still take")
	is(&s.useTLS, "GRPC_SERVER_USE_TLS", "serve gRPC over TLS")
	text(&s.tlsCert, "GRPC_SERVER_TLS_CERT", "", "the `file` with the certificates of the server; read anew when it changes")
	text(&s.tlsKey, "GRPC_SERVER_TLS_KEY", "", "the `file` with its key")
	text(&s.clientCA, "GRPC_CLIENT_TLS_CACERT", "", "a `file` with authorities: clients need a certificate of one")
	text(&s.sanName, "GRPC_CLIENT_TLS_SAN", "", "the DNS `name` that a client's certificate must have")
	text(&s.host, "HOST", "0.0.0.0", "the `host` to serve HTTP on")
	number(&s.port, "PORT", 8080, "its `port`")
	text(&s.debugHost, "DEBUG_HOST", "0.0.0.0", "the `host` for operators")
	number(&s.debugPort, "DEBUG_PORT", 6070, "its `port`")
	text(&s.logLevel, "LOG_LEVEL", "warn", "debug, info, warn or error")
	text(&s.logFormat, "LOG_FORMAT", "text", "text or json")

	text(&s.configType, "CONFIG_TYPE", "FILE", "only FILE is supported")
	text(&s.root, "RUNTIME_ROOT", "/srv/runtime_data/current", "the `folder` of the runtime")
	text(&s.subdirectory, "RUNTIME_SUBDIRECTORY", "", "the `folder` in it")
	text(&s.directory, "RUNTIME_APPDIRECTORY", "config", "the `folder` in that with the files of limits, *.yaml and *.yml")
	is(&s.mergeDomains, "MERGE_DOMAIN_CONFIG", "several files may have descriptors of one domain")
	is(&s.oneConfig, "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "be unhealthy without a domain")
	span(&s.refresh, "SLUICE_REFRESH", time.Second, "how long a change of files takes at most")

	text(&s.backend, "BACKEND_TYPE", "redis", "what counts: redis, memory (this process alone) or memcache")
	text(&s.topology, "SLUICE_TOPOLOGY", "", "the `file` of a topology of groups, in place of REDIS_URL; followed live")
	text(&s.redisURL, "REDIS_URL", "", "`host:port`, a Unix socket or a redis:// URL; with sentinels the master and theirs, of a cluster some nodes")
	text(&s.redisSocket, "REDIS_SOCKET_TYPE", "", "tcp or unix; by default as REDIS_URL looks")
	text(&s.redisType, "REDIS_TYPE", "SINGLE", "SINGLE, SENTINEL or CLUSTER")
	text(&s.redisAuth, "REDIS_AUTH", "", "`password` or user:password; better in the environment")
	text(&s.sentinelAuth, "REDIS_SENTINEL_AUTH", "", "the same for sentinels")
	number(&s.redisPool, "REDIS_POOL_SIZE", 10, "connections to each server")
	is(&s.redisTLS, "REDIS_TLS", "connect over TLS")
	is(&s.redisSkipVerify, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "accept a certificate of another host")
	text(&s.redisCert, "REDIS_TLS_CLIENT_CERT", "", "the `file` with the certificate of this client")
	text(&s.redisKey, "REDIS_TLS_CLIENT_KEY", "", "the `file` with its key")
	text(&s.redisCA, "REDIS_TLS_CACERT", "", "a `file` with the authorities of servers")
	span(&s.redisTimeout, "REDIS_TIMEOUT", 250*time.Millisecond, "after which a call to a server has failed")
	is(&s.redisHealth, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "be unhealthy while no server answers")
	text(&s.memcached, "MEMCACHE_HOST_PORT", "", "`servers`, separated by commas")
	text(&s.prefix, "CACHE_KEY_PREFIX", "", "the `prefix` of stored names, 16 characters at most")
	number(&s.localCache, "LOCAL_CACHE_SIZE_IN_BYTES", 0, "room for keys that are known to be over their limits, which then need no call")

	is(&s.shadow, "SHADOW_MODE", "admit everything")
	is(&s.quota, "QUOTA_MODE", "all limits are quotas: admit, and say so in the metadata")
	is(&s.metadata, "RESPONSE_DYNAMIC_METADATA", "fill the dynamic metadata of responses")
	is(&s.fullStatuses, "SLUICE_FULL_STATUSES", "show limits in all statuses of a denied request, for one more round trip")
	is(&s.headers, "LIMIT_RESPONSE_HEADERS_ENABLED", "add headers to responses")
	text(&s.limitHeader, "LIMIT_LIMIT_HEADER", envoylimit.DefaultHeaders.Limit, "the `name` of one")
	text(&s.remainingHeader, "LIMIT_REMAINING_HEADER", envoylimit.DefaultHeaders.Remaining, "the `name` of one")
	text(&s.resetHeader, "LIMIT_RESET_HEADER", envoylimit.DefaultHeaders.Reset, "the `name` of one")
	is(&s.ietf, "SLUICE_IETF_HEADERS", "add RateLimit-Policy and RateLimit of the IETF's draft")
	set.Float64Var(&s.nearLimit, flagOf("NEAR_LIMIT_RATIO"), 0.8, "the `share` of a limit above which hits are near it")
	text(&s.failure, "SLUICE_FAILURE", "error", "without a verdict: error (Envoy's failure_mode_deny decides), local, closed or open")
	set.TextVar(&s.openCap, flagOf("SLUICE_OPEN_CAP"), limit.Limit{}, "what open admits in this process, a `limit` such as 1000/1s")
	number(&s.processes, "SLUICE_PROCESSES", 0, "how many processes share the limits; 0: 10")
	number(&s.maxRequests, "SLUICE_MAX_REQUESTS", 0, "how many requests may be under way; 0: 4096")
	number(&s.maxDescriptors, "SLUICE_MAX_DESCRIPTORS", 0, "how many descriptors a request may have; 0: 64")
	span(&s.drainDelay, "SLUICE_DRAIN_DELAY", 0, "how long to be unhealthy before a stop")
	span(&s.drain, "SLUICE_DRAIN", 10*time.Second, "how long requests under way may take at a stop")
	is(&s.clearKeys, "SLUICE_CLEAR_KEYS", "show keys to operators as they are, not hashed")

	is(&s.prometheus, "USE_PROMETHEUS", "serve metrics on PROMETHEUS_ADDR, too")
	text(&s.prometheusAddr, "PROMETHEUS_ADDR", ":9090", "the `address` for that")
	text(&s.prometheusPath, "PROMETHEUS_PATH", "/metrics", "the `path` there")
	is(&s.tracing, "TRACING_ENABLED", "send spans by OTLP")
	text(&s.tracingProtocol, "TRACING_EXPORTER_PROTOCOL", "http", "http or grpc")
	text(&s.serviceName, "TRACING_SERVICE_NAME", "RateLimit", "the service in telemetry")
	text(&s.serviceSpace, "TRACING_SERVICE_NAMESPACE", "", "its namespace")
	text(&s.instance, "TRACING_SERVICE_INSTANCE_ID", "", "the id of this process")
	set.Float64Var(&s.sampling, flagOf("TRACING_SAMPLING_RATE"), 1, "the `share` of requests with spans")
}

func flagOf(env string) string { return strings.ReplaceAll(strings.ToLower(env), "_", "-") }

func envOf(name string) string { return strings.ReplaceAll(strings.ToUpper(name), "-", "_") }

// parse reads the command line, and the environment for what it doesn't say. It reports all problems.
func parse(args []string, lookup func(string) (string, bool), out io.Writer) (*settings, error) {
	s := &settings{}
	set := flag.NewFlagSet("sluice-envoy", flag.ContinueOnError)
	set.SetOutput(out)
	s.register(set)
	set.Usage = func() {
		fmt.Fprintln(out, "usage: sluice-envoy [flags]\n\nEach flag is a variable of the environment, too: -grpc-port is GRPC_PORT.")
		set.PrintDefaults()
	}
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	var errs []error
	if set.NArg() > 0 {
		errs = append(errs, fmt.Errorf("arguments: %q must be none", set.Args()))
	}
	given := make(map[string]bool)
	set.Visit(func(f *flag.Flag) { given[f.Name] = true })
	set.VisitAll(func(f *flag.Flag) {
		if value, ok := lookup(envOf(f.Name)); ok && value != "" && !given[f.Name] {
			if err := set.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("%s = %q: %w", envOf(f.Name), value, err))
			}
		}
	})
	errs = append(errs, s.unsupported(lookup), s.validate())
	set.Visit(func(f *flag.Flag) {
		if env := envOf(f.Name); s.idle(env) && f.Value.String() != "" {
			s.unused = append(s.unused, env)
		}
	})
	return s, errors.Join(errs...)
}

func (s *settings) validate() error {
	var errs []error
	oneOf := func(env, value string, allowed ...string) {
		for _, a := range allowed {
			if strings.EqualFold(value, a) {
				return
			}
		}
		errs = append(errs, fmt.Errorf("%s = %q must be one of %s", env, value, strings.Join(allowed, ", ")))
	}
	oneOf("LOG_LEVEL", s.logLevel, "debug", "info", "warn", "warning", "error")
	oneOf("LOG_FORMAT", s.logFormat, "text", "json")
	oneOf("CONFIG_TYPE", s.configType, "FILE")
	oneOf("BACKEND_TYPE", s.backend, "redis", "memory", "memcache")
	oneOf("REDIS_TYPE", s.redisType, "SINGLE", "SENTINEL", "CLUSTER")
	oneOf("REDIS_SOCKET_TYPE", s.redisSocket, "", "tcp", "unix")
	oneOf("SLUICE_FAILURE", s.failure, "error", "local", "closed", "open")
	oneOf("TRACING_EXPORTER_PROTOCOL", s.tracingProtocol, "http", "grpc")
	if strings.EqualFold(s.backend, "redis") && (s.redisURL == "") == (s.topology == "") {
		errs = append(errs, errors.New("REDIS_URL or SLUICE_TOPOLOGY must be set, not both; or BACKEND_TYPE=memory"))
	}
	if strings.EqualFold(s.backend, "memcache") && s.memcached == "" {
		errs = append(errs, errors.New("MEMCACHE_HOST_PORT must be set"))
	}
	if s.useTLS && (s.tlsCert == "" || s.tlsKey == "") {
		errs = append(errs, errors.New("GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY must be set"))
	}
	if !s.useTLS && (s.clientCA != "" || s.tlsCert != "") {
		errs = append(errs, errors.New("GRPC_SERVER_USE_TLS must be true for certificates"))
	}
	if s.sanName != "" && s.clientCA == "" {
		errs = append(errs, errors.New("GRPC_CLIENT_TLS_SAN needs GRPC_CLIENT_TLS_CACERT"))
	}
	if !(s.sampling >= 0 && s.sampling <= 1) {
		errs = append(errs, fmt.Errorf("TRACING_SAMPLING_RATE = %v must be from 0 to 1", s.sampling))
	}
	if !s.redisTLS && (s.redisCA != "" || s.redisCert != "" || s.redisKey != "" || s.redisSkipVerify) && strings.EqualFold(s.backend, "redis") {
		errs = append(errs, errors.New("REDIS_TLS must be true for REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT and the like"))
	}
	if s.prometheus && (!strings.HasPrefix(s.prometheusPath, "/") || strings.ContainsAny(s.prometheusPath, "{} ")) {
		errs = append(errs, fmt.Errorf("PROMETHEUS_PATH = %q must begin with / and have no braces or spaces", s.prometheusPath))
	}
	if s.localCache < 0 {
		errs = append(errs, fmt.Errorf("LOCAL_CACHE_SIZE_IN_BYTES = %d must not be negative", s.localCache))
	}
	if !(s.nearLimit > 0 && s.nearLimit <= 1) {
		errs = append(errs, fmt.Errorf("NEAR_LIMIT_RATIO = %v must be above 0 and at most 1", s.nearLimit))
	}
	return errors.Join(errs...)
}

// idle reports whether a setting has no meaning beside the others.
func (s *settings) idle(env string) bool {
	switch env {
	case "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": // of whatever counts
		return false
	case "REDIS_TYPE", "REDIS_SOCKET_TYPE":
		return s.topology != "" || !strings.EqualFold(s.backend, "redis")
	case "REDIS_TIMEOUT", "CACHE_KEY_PREFIX":
		return strings.EqualFold(s.backend, "memory")
	case "SLUICE_TOPOLOGY":
		return !strings.EqualFold(s.backend, "redis")
	case "MEMCACHE_HOST_PORT":
		return !strings.EqualFold(s.backend, "memcache")
	}
	return strings.HasPrefix(env, "REDIS_") && !strings.EqualFold(s.backend, "redis")
}

// failurePolicy is what SLUICE_FAILURE names.
func (s *settings) failurePolicy() throttler.FailurePolicy {
	switch strings.ToLower(s.failure) {
	case "local":
		return throttler.FailLocal
	case "closed":
		return throttler.FailClosed
	case "open":
		return throttler.FailOpen
	}
	return throttler.FailError
}

// unsupported refuses settings of the reference that would be missed, and notes those that have no meaning here.
func (s *settings) unsupported(lookup func(string) (string, bool)) error {
	isTrue := func(v string) bool { return strings.EqualFold(v, "true") || v == "1" || strings.EqualFold(v, "t") }
	var errs []error
	for _, u := range []struct {
		env, instead string
		only         func(string) bool // nil: any value
	}{
		{"REDIS_PERSECOND", "one backend counts all limits; spread load by SLUICE_TOPOLOGY", isTrue},
		{"USE_STATSD", "scrape /metrics, or export by OTLP", isTrue},
		{"USE_DOG_STATSD", "scrape /metrics, or export by OTLP", isTrue},
		{"PROMETHEUS_MAPPER_YAML", "metrics have labels for domain and descriptor", nil},
		{"EXTRA_TAGS", "set OTEL_RESOURCE_ATTRIBUTES, or labels where metrics are scraped", nil},
		{"MEMCACHE_SRV", "set MEMCACHE_HOST_PORT", nil},
		{"MEMCACHE_TLS", "Memcached is called without TLS", isTrue},
		{"FORCE_START_WITHOUT_INITIAL_CONFIG", "an empty folder is a configuration", isTrue},
		{"REDIS_PERSECOND_URL", "one backend counts all limits; spread load by SLUICE_TOPOLOGY", nil},
	} {
		if v, ok := lookup(u.env); ok && v != "" && (u.only == nil || u.only(v)) {
			errs = append(errs, fmt.Errorf("%s is not supported: %s", u.env, u.instead))
		}
	}
	for _, env := range []string{
		"EXPIRATION_JITTER_MAX_SECONDS", "REDIS_PIPELINE_WINDOW", "REDIS_PIPELINE_LIMIT", "REDIS_POOL_ON_EMPTY_BEHAVIOR",
		"REDIS_POOL_ON_EMPTY_WAIT_DURATION", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "RUNTIME_WATCH_ROOT", "RUNTIME_IGNOREDOTFILES",
		"STATS_FLUSH_INTERVAL", "DISABLE_STATS", "STATSD_HOST", "STATSD_PORT", "MEMCACHE_MAX_IDLE_CONNS",
		"MEMCACHE_TLS_CACERT", "MEMCACHE_TLS_CLIENT_CERT", "MEMCACHE_TLS_CLIENT_KEY", "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
		"CONFIG_GRPC_XDS_NODE_ID", "CONFIG_GRPC_XDS_NODE_METADATA", "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_SERVER_TLS_SAN", "CONFIG_GRPC_XDS_SERVER_URL", "CONFIG_GRPC_XDS_SERVER_USE_TLS",
		"REDIS_PERSECOND_AUTH", "REDIS_PERSECOND_PIPELINE_LIMIT", "REDIS_PERSECOND_PIPELINE_WINDOW", "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
		"REDIS_PERSECOND_POOL_SIZE", "REDIS_PERSECOND_SENTINEL_AUTH", "REDIS_PERSECOND_SOCKET_TYPE", "REDIS_PERSECOND_TIMEOUT",
		"REDIS_PERSECOND_TLS", "REDIS_PERSECOND_TYPE",
	} {
		if v, ok := lookup(env); ok && v != "" {
			s.unused = append(s.unused, env)
		}
	}
	return errors.Join(errs...)
}
