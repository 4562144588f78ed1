package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// sdk is OpenTelemetry: metrics for Prometheus to read, log events and spans on the terminal. A service would send the
// latter two to a collector.
type sdk struct {
	registry *prometheus.Registry
	meters   *sdkmetric.MeterProvider
	loggers  *sdklog.LoggerProvider
	traces   *sdktrace.TracerProvider
}

func newSDK(print *printer, o *options) *sdk {
	s := &sdk{registry: prometheus.NewRegistry()}
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(s.registry),
		otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes)) // names for any Prometheus
	if err != nil {
		panic(err) // the registry is new
	}
	service := resource.NewSchemaless(attribute.String("service.name", "telemetry"))
	opts := []sdkmetric.Option{sdkmetric.WithReader(exporter), sdkmetric.WithResource(service)}
	if o.reader != nil {
		opts = append(opts, sdkmetric.WithReader(o.reader))
	}
	s.meters = sdkmetric.NewMeterProvider(opts...)
	s.loggers = sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewSimpleProcessor(logPrinter{print})))
	s.traces = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spanPrinter{print}),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(o.spans))))
	return s
}

func (s *sdk) metrics() http.Handler { return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}) }

func (s *sdk) close() error {
	ctx := context.Background()
	return errors.Join(s.traces.Shutdown(ctx), s.meters.Shutdown(ctx), s.loggers.Shutdown(ctx))
}

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
		p.linef("%s %s %s%s", r.Timestamp().Format(time.TimeOnly), r.SeverityText(), r.EventName(), pairs(attrs))
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
