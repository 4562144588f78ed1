package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	prombridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// telemetry is what is told about requests: metrics to scrape, and metrics and spans by OTLP if the environment names a collector.
type telemetry struct {
	own    *prometheus.Registry // the metrics of the service, under the reference's names
	all    prometheus.Gatherers
	meters *sdkmetric.MeterProvider
	traces *sdktrace.TracerProvider // nil: no spans
}

func newTelemetry(ctx context.Context, s *settings) (*telemetry, error) {
	t := &telemetry{own: prometheus.NewRegistry()}
	throttle := prometheus.NewRegistry()
	t.all = prometheus.Gatherers{t.own, throttle}
	throttle.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(throttle),
		otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return nil, err
	}
	attrs := []attribute.KeyValue{attribute.String("service.name", s.serviceName)}
	if s.serviceSpace != "" {
		attrs = append(attrs, attribute.String("service.namespace", s.serviceSpace))
	}
	if s.instance != "" {
		attrs = append(attrs, attribute.String("service.instance.id", s.instance))
	}
	service, err := resource.New(ctx, resource.WithAttributes(attrs...), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	meters := []sdkmetric.Option{sdkmetric.WithReader(exporter), sdkmetric.WithResource(service)}
	if endpoint("METRICS_") {
		sink, err := t.metricSink(ctx, s)
		if err != nil {
			return nil, err
		}
		meters = append(meters, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(sink,
			sdkmetric.WithProducer(prombridge.NewMetricProducer(prombridge.WithGatherer(t.own))))))
	}
	t.meters = sdkmetric.NewMeterProvider(meters...)
	if s.tracing || endpoint("TRACES_") {
		sink, err := spanSink(ctx, s)
		if err != nil {
			return nil, errors.Join(err, t.close(ctx))
		}
		t.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(sink), sdktrace.WithResource(service),
			sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(s.sampling))))
	}
	return t, nil
}

func (t *telemetry) metricSink(ctx context.Context, s *settings) (sdkmetric.Exporter, error) {
	if s.overGRPC("METRICS_") {
		return otlpmetricgrpc.New(ctx)
	}
	return otlpmetrichttp.New(ctx)
}

func spanSink(ctx context.Context, s *settings) (sdktrace.SpanExporter, error) {
	if s.overGRPC("TRACES_") {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

// endpoint reports whether the environment names a collector for a signal.
func endpoint(signal string) bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"ENDPOINT") != ""
}

// overGRPC is the protocol for a signal: that of OpenTelemetry's variables before that of the reference.
func (s *settings) overGRPC(signal string) bool {
	for _, env := range []string{"OTEL_EXPORTER_OTLP_" + signal + "PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if v := os.Getenv(env); v != "" {
			return v == "grpc"
		}
	}
	return strings.EqualFold(s.tracingProtocol, "grpc")
}

func (t *telemetry) handler() http.Handler { return promhttp.HandlerFor(t.all, promhttp.HandlerOpts{}) }

// close sends what is left.
func (t *telemetry) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), telemetryClose)
	defer cancel()
	err := t.meters.Shutdown(ctx)
	if t.traces != nil {
		err = errors.Join(err, t.traces.Shutdown(ctx))
	}
	return err
}

const telemetryClose = 2 * time.Second

// propagator reads the trace that a gateway belongs to.
var propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// newLogger is the logger of the command.
func newLogger(s *settings, out io.Writer) *slog.Logger {
	level := slog.LevelWarn
	switch strings.ToLower(s.logLevel) {
	case "debug":
		level = slog.LevelDebug
	case "info":
		level = slog.LevelInfo
	case "error":
		level = slog.LevelError
	}
	opts := &slog.HandlerOptions{Level: level}
	if strings.EqualFold(s.logFormat, "json") {
		return slog.New(slog.NewJSONHandler(out, opts))
	}
	return slog.New(slog.NewTextHandler(out, opts))
}
