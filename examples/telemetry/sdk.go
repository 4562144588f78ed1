package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// sdk is OpenTelemetry: metrics for Prometheus to read, log events and spans on the terminal. If the environment names a collector,
// it gets all three by OTLP.
type sdk struct {
	registry *prometheus.Registry
	meters   *sdkmetric.MeterProvider
	loggers  *sdklog.LoggerProvider
	traces   *sdktrace.TracerProvider
}

func newSDK(ctx context.Context, print *printer, o *options) (*sdk, error) {
	s := &sdk{registry: prometheus.NewRegistry()}
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(s.registry),
		otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes)) // names for any Prometheus
	if err != nil {
		return nil, err
	}
	service, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "telemetry")), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	meters := []sdkmetric.Option{sdkmetric.WithReader(exporter), sdkmetric.WithResource(service)}
	if o.reader != nil {
		meters = append(meters, sdkmetric.WithReader(o.reader))
	}
	loggers := []sdklog.LoggerProviderOption{sdklog.WithResource(service), sdklog.WithProcessor(sdklog.NewSimpleProcessor(logPrinter{print}))}
	traces := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(service), sdktrace.WithSyncer(spanPrinter{print}),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(o.spans))),
	}
	if collectorNamed() {
		spans, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return nil, err
		}
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return nil, errors.Join(err, spans.Shutdown(ctx))
		}
		logs, err := autoexport.NewLogExporter(ctx)
		if err != nil {
			return nil, errors.Join(err, spans.Shutdown(ctx), reader.Shutdown(ctx))
		}
		meters = append(meters, sdkmetric.WithReader(reader))
		loggers = append(loggers, sdklog.WithProcessor(sdklog.NewBatchProcessor(logs)))
		traces = append(traces, sdktrace.WithBatcher(spans))
	}
	s.meters = sdkmetric.NewMeterProvider(meters...)
	s.loggers = sdklog.NewLoggerProvider(loggers...)
	s.traces = sdktrace.NewTracerProvider(traces...)
	return s, nil
}

// collectorNamed reports whether the environment names a collector. Without, the exporters would try one on localhost.
func collectorNamed() bool {
	for _, signal := range []string{"", "TRACES_", "METRICS_", "LOGS_"} {
		if os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"ENDPOINT") != "" {
			return true
		}
	}
	return false
}

func (s *sdk) metrics() http.Handler { return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}) }

// close sends what is left, to a collector that is away for closeTime at most.
func (s *sdk) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return errors.Join(s.traces.Shutdown(ctx), s.meters.Shutdown(ctx), s.loggers.Shutdown(ctx))
}

const closeTime = 2 * time.Second

// printer writes whole lines, from anywhere.
type printer struct {
	mu  sync.Mutex // held while a line is written
	out io.Writer
}

func (p *printer) linef(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// logPrinter exports log events.
type logPrinter struct{ *printer }

func (p logPrinter) Export(_ context.Context, records []sdklog.Record) error {
	for i := range records {
		r := &records[i]
		var attrs []attribute.KeyValue
		r.WalkAttributes(func(kv attribute.KeyValue) bool {
			attrs = append(attrs, kv)
			return true
		})
		what := r.EventName()
		if what == "" { // a line of slog
			what = r.Body().String()
		}
		p.linef("%s %s %s%s", r.Timestamp().Format(time.TimeOnly), r.SeverityText(), what, pairs(attrs))
	}
	return nil
}
func (logPrinter) Shutdown(context.Context) error   { return nil }
func (logPrinter) ForceFlush(context.Context) error { return nil }

// spanPrinter exports spans.
type spanPrinter struct{ *printer }

func (p spanPrinter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, s := range spans {
		p.linef("%s span %s %s in %s%s", s.StartTime().Format(time.TimeOnly), s.SpanContext().TraceID().String()[:8], s.Name(),
			s.EndTime().Sub(s.StartTime()).Round(time.Microsecond), pairs(s.Attributes()))
	}
	return nil
}
func (spanPrinter) Shutdown(context.Context) error { return nil }

func pairs(attrs []attribute.KeyValue) string {
	var b strings.Builder
	for _, kv := range attrs {
		fmt.Fprintf(&b, " %s=%s", kv.Key, kv.Value.String())
	}
	return b.String()
}
