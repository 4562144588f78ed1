// Command sluice-envoy is the rate limit service of Envoy, Istio and Gateway API implementations, on Sluice.
//
//	RUNTIME_ROOT=/etc/limits RUNTIME_SUBDIRECTORY=ratelimit REDIS_URL=localhost:6379 sluice-envoy
//	sluice-envoy -runtime-root /etc/limits -backend-type memory
//
// It takes the place of github.com/envoyproxy/ratelimit: it reads the same files, from the same folder
// (RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY), listens on the same ports and has the same settings in the environment.
// Each is a flag, too, which goes before the environment. A setting that this command doesn't support is an error; one that has no
// meaning here is logged. sluice-envoy -help lists all, README.md what differs.
//
//	:8081  gRPC: the rate limit service, health (ratelimit), reflection
//	:8080  HTTP: /healthcheck, and /json for clients without gRPC
//	:6070  for operators: /metrics, /debug/sluice (a live page), /rlconfig, /stats, /debug/pprof/
//	:9090  /metrics, with USE_PROMETHEUS=true
//
// Metrics and spans go to a collector by OTLP if the environment names one (OTEL_EXPORTER_OTLP_ENDPOINT).
//
// SIGTERM and SIGINT stop it: its health says so for SLUICE_DRAIN_DELAY, then it takes no more requests, answers those under way,
// and gives back what leases hold.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := parse(os.Args[1:], os.LookupEnv, os.Stderr)
	if err == nil {
		err = run(ctx, cfg, os.Stderr, func(addresses) {})
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "sluice-envoy:", err)
		stop()
		os.Exit(1)
	}
}
