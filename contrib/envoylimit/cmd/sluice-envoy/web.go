package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler/insight"
)

// maxBody bounds a request in JSON.
const maxBody = 1 << 20

// valid is a label's value: Prometheus takes UTF-8 only.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// public is what clients without gRPC call.
func public(service *envoylimit.Service, healthy *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthcheck", func(w http.ResponseWriter, _ *http.Request) {
		if !healthy.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "OK")
	})
	mux.HandleFunc("/json", func(w http.ResponseWriter, r *http.Request) {
		var req pb.RateLimitRequest
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil || protojson.Unmarshal(body, &req) != nil {
			http.Error(w, http.StatusText(http.StatusBadRequest), http.StatusBadRequest)
			return
		}
		res, err := service.ShouldRateLimit(r.Context(), &req)
		if err != nil {
			code := http.StatusServiceUnavailable
			if status.Code(err) == codes.InvalidArgument {
				code = http.StatusBadRequest
			}
			http.Error(w, http.StatusText(code), code)
			return
		}
		text, err := protojson.Marshal(res)
		if err != nil {
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if res.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = w.Write(text)
	})
	return mux
}

// operators is what operators call, on a port that clients must not reach.
func operators(s *settings, service *envoylimit.Service, recorder *insight.Recorder, groups *router.Router, t *telemetry) http.Handler {
	mux := http.NewServeMux()
	page := insight.HandlerConfig{ClearKeys: s.clearKeys}
	if groups != nil {
		page.Nodes = func() []insight.Node { return nodes(groups) }
		page.Router = func() insight.RouterStats { return insight.RouterStats(groups.Stats()) }
	}
	endpoints := []struct {
		path, help string
		handler    http.Handler
	}{
		{"/debug/sluice", "decisions, live", insight.Handler(recorder, page)},
		{"/metrics", "metrics for Prometheus", t.handler()},
		{"/rlconfig", "the configuration in force", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, service.Rules().String())
		})},
		{"/stats", "the counts of rules, as JSON", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			all := struct {
				Service envoylimit.Stats
				Rules   []envoylimit.RuleStats
			}{Service: service.Stats()}
			for r := range service.RuleStats() {
				all.Rules = append(all.Rules, r)
			}
			_ = json.NewEncoder(w).Encode(all)
		})},
		{"/debug/pprof/", "profiles", http.HandlerFunc(pprof.Index)},
		{"/debug/pprof/profile", "a profile of the CPU", http.HandlerFunc(pprof.Profile)},
		{"/debug/pprof/trace", "a trace of the process", http.HandlerFunc(pprof.Trace)},
	}
	for _, e := range endpoints {
		mux.Handle(e.path, e.handler)
	}
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		for _, e := range endpoints {
			fmt.Fprintf(w, "%s: %s\n", e.path, e.help)
		}
	})
	return mux
}

func nodes(groups *router.Router) []insight.Node {
	var all []insight.Node
	for _, n := range groups.Nodes() {
		all = append(all, insight.Node{
			Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Latency: n.Latency,
			LastHeartbeat: n.LastHeartbeat, RTT: n.Heartbeat.RTT, Ahead: n.Heartbeat.Ahead, Age: n.Age,
		})
	}
	return all
}
