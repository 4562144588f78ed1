package main

import (
	"context"
	"path"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/sluice-go/sluice/contrib/envoylimit"
)

// metrics are those that the reference has, under its names: the counts of rules, and of calls.
type metrics struct {
	service  atomic.Pointer[envoylimit.Service]
	reloads  atomic.Int64
	refused  atomic.Int64
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimit_service_total_requests", Help: "Calls by method.",
		}, []string{"grpc_method"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ratelimit_service_response_time_seconds", Help: "Time until the answer.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1, .25, 1},
		}, []string{"grpc_method"}),
	}
	for _, c := range []prometheus.Collector{m, m.requests, m.seconds} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// unary counts calls.
func (m *metrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	start, method := time.Now(), path.Base(info.FullMethod)
	res, err := next(ctx, req)
	m.requests.WithLabelValues(method).Inc()
	m.seconds.WithLabelValues(method).Observe(time.Since(start).Seconds())
	return res, err
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ratelimit_service_"+name, help, labels, nil)
}

var (
	totalHits   = desc("rate_limit_total_hits", "Hits of a rule.", "domain", "key1", "key2")
	withinLimit = desc("rate_limit_within_limit", "Hits that were charged.", "domain", "key1", "key2")
	overLimit   = desc("rate_limit_over_limit", "Hits above the limit, which were not charged.", "domain", "key1", "key2")
	nearLimit   = desc("rate_limit_near_limit", "Charged hits above the near limit ratio.", "domain", "key1", "key2")
	shadowMode  = desc("rate_limit_shadow_mode", "Hits above the limit of a rule in shadow mode.", "domain", "key1", "key2")
	applied     = desc("rate_limit_requests_per_unit", "The limit that was applied last.", "domain", "key1", "key2", "unit")
	callErrors  = desc("should_rate_limit_error", "Calls without an answer, by kind.", "err_type")
	notFound    = desc("rate_limit_domain_not_found", "Calls about a domain that no file has.")
	allShadowed = desc("global_shadow_mode", "Calls over a limit that SHADOW_MODE has admitted.")
	underWay    = desc("requests_under_way", "Calls under way.")
	loaded      = desc("config_load_success", "Loads of the files.")
	notLoaded   = desc("config_load_error", "Loads of files that were refused.")
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		totalHits, withinLimit, overLimit, nearLimit, shadowMode, applied, callErrors, notFound, allShadowed, underWay, loaded, notLoaded,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	counter(loaded, m.reloads.Load())
	counter(notLoaded, m.refused.Load())
	service := m.service.Load()
	if service == nil {
		return
	}
	for r := range service.RuleStats() {
		domain, key1, key2 := valid(r.Domain), valid(r.Key1), valid(r.Key2)
		counter(totalHits, r.Total, domain, key1, key2)
		counter(withinLimit, r.Within, domain, key1, key2)
		counter(overLimit, r.Over, domain, key1, key2)
		counter(nearLimit, r.Near, domain, key1, key2)
		counter(shadowMode, r.Shadow, domain, key1, key2)
		gauge(applied, float64(r.RequestsPerUnit), domain, key1, key2, r.Unit)
	}
	n := service.Stats()
	counter(callErrors, n.Invalid, "service_error")
	counter(callErrors, n.Failed, "redis_error")
	counter(callErrors, n.Shed, "overloaded")
	counter(notFound, n.UnknownDomain)
	counter(allShadowed, n.Shadowed)
	gauge(underWay, float64(n.UnderWay))
}
