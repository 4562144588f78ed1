//go:build unix

package sdktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

// secret is the key of all requests: nothing of it may be exported.
const secret = "user:42:secret"

// telemetry is an SDK that keeps everything in memory.
type telemetry struct {
	t        *testing.T
	traces   *sdktrace.TracerProvider
	spans    *tracetest.SpanRecorder
	reader   *sdkmetric.ManualReader
	events   events
	observer *otelthrottle.Observer
}

func newTelemetry(t *testing.T, cfg otelthrottle.Config) *telemetry {
	t.Helper()
	s := &telemetry{t: t, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	s.traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader))
	loggers := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewSimpleProcessor(&s.events)))
	cfg.TracerProvider, cfg.MeterProvider, cfg.LoggerProvider = s.traces, meters, loggers
	var err error
	if s.observer, err = otelthrottle.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.noKeys()
		err := errors.Join(s.observer.Close(), s.traces.Shutdown(context.Background()),
			meters.Shutdown(context.Background()), loggers.Shutdown(context.Background()))
		if err != nil {
			t.Error(err)
		}
	})
	return s
}

// throttler is a Throttler that the telemetry observes.
func (s *telemetry) throttler(cfg throttler.Config) *throttler.Throttler {
	s.t.Helper()
	cfg.Observer, cfg.Logger = throttler.Observers(s.observer, cfg.Observer), slog.New(slog.NewTextHandler(io.Discard, nil))
	th, err := throttler.New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = th.Close() })
	return th
}

// request asks within a span of the application, and returns the spans that were made within that by their names.
func (s *telemetry) request(th *throttler.Throttler, cost int64) (throttler.Decision, map[string][]span) {
	s.t.Helper()
	ctx, parent := s.traces.Tracer("application").Start(s.t.Context(), "GET /")
	d, err := th.AllowN(ctx, secret, cost)
	parent.End()
	if err != nil {
		s.t.Fatal(err)
	}
	made := map[string][]span{}
	for _, o := range s.spans.Ended() {
		if o.SpanContext().TraceID() == parent.SpanContext().TraceID() && o.Name() != "GET /" {
			made[o.Name()] = append(made[o.Name()], span{o, attributes(o.Attributes())})
		}
	}
	s.within(parent.SpanContext().SpanID(), made)
	return d, made
}

// within wants the decision's span below the parent, and all others below it and within its time.
func (s *telemetry) within(parent trace.SpanID, made map[string][]span) {
	s.t.Helper()
	decision := made["ratelimit api"]
	if len(decision) != 1 || decision[0].Parent().SpanID() != parent || decision[0].SpanKind() != trace.SpanKindInternal {
		s.t.Fatalf("spans %q, want one of the decision within the request's", slices.Collect(maps.Keys(made)))
	}
	for name, spans := range made {
		for _, call := range spans {
			if name == "ratelimit api" {
				continue
			}
			if call.Parent().SpanID() != decision[0].SpanContext().SpanID() || call.SpanKind() != trace.SpanKindClient {
				s.t.Errorf("%s: of kind %s, want a client span of the decision", name, call.SpanKind())
			}
			if call.StartTime().Before(decision[0].StartTime()) || call.EndTime().After(decision[0].EndTime()) ||
				!call.StartTime().Before(call.EndTime()) {
				s.t.Errorf("%s: from %s to %s, not within the decision", name, call.StartTime(), call.EndTime())
			}
		}
	}
}

type span struct {
	sdktrace.ReadOnlySpan
	attrs map[string]string
}

// has wants attributes with these values; "-" for none.
func (s span) has(t *testing.T, want map[string]string) {
	t.Helper()
	for name, value := range want {
		got, ok := s.attrs[name]
		if !ok {
			got = "-"
		}
		if got != value {
			t.Errorf("%s: %s = %q, want %q", s.Name(), name, got, value)
		}
	}
}

func attributes(kvs []attribute.KeyValue) map[string]string {
	all := make(map[string]string, len(kvs))
	for _, kv := range kvs {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

// series are the values of a metric's series, of histograms the counts, by their attributes' values in the order of the names.
func (s *telemetry) series(metric string) map[string]float64 {
	s.t.Helper()
	all := map[string]float64{}
	for _, m := range s.collect() {
		if m.Name != metric {
			continue
		}
		add := func(of attribute.Set, value float64) {
			var labels []string
			for _, kv := range of.ToSlice() {
				labels = append(labels, kv.Value.String())
			}
			all[strings.Join(labels, " ")] += value
		}
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				add(p.Attributes, float64(p.Value))
			}
		case metricdata.Gauge[int64]:
			for _, p := range data.DataPoints {
				add(p.Attributes, float64(p.Value))
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				add(p.Attributes, p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				add(p.Attributes, float64(p.Count))
				if p.Bounds[0] != 0.0001 {
					s.t.Errorf("%s: buckets %v, want them from 100 us", metric, p.Bounds)
				}
			}
		default:
			s.t.Errorf("%s is a %T", metric, data)
		}
	}
	return all
}

func (s *telemetry) collect() []metricdata.Metrics {
	var all metricdata.ResourceMetrics
	if err := s.reader.Collect(context.Background(), &all); err != nil {
		s.t.Fatal(err)
	}
	var metrics []metricdata.Metrics
	for _, scope := range all.ScopeMetrics {
		metrics = append(metrics, scope.Metrics...)
	}
	return metrics
}

// want compares the series of a metric.
func (s *telemetry) want(metric string, want map[string]float64) {
	s.t.Helper()
	if got := s.series(metric); !maps.Equal(got, want) {
		s.t.Errorf("%s: %v, want %v", metric, got, want)
	}
}

// noKeys looks for the key in everything that was exported.
func (s *telemetry) noKeys() {
	s.t.Helper()
	var all strings.Builder
	for _, o := range s.spans.Ended() {
		fmt.Fprintln(&all, o.Name(), attributes(o.Attributes()), o.Status().Description, o.Events())
	}
	for _, m := range s.collect() {
		fmt.Fprintf(&all, "%+v\n", m)
	}
	for _, e := range s.events.all() {
		fmt.Fprintln(&all, e.name, e.body, e.attrs)
	}
	if strings.Contains(all.String(), "secret") || strings.Contains(all.String(), "user:42") {
		s.t.Errorf("a key was exported:\n%s", all.String())
	}
}

// event is a log record.
type event struct {
	name, severity, body string
	attrs                map[string]string
	traced               bool
}

// events is an exporter of log records.
type events struct {
	mu   sync.Mutex // guards kept
	kept []event
}

func (e *events) Export(_ context.Context, records []sdklog.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range records {
		r := &records[i]
		kept := event{r.EventName(), r.SeverityText(), r.Body().String(), map[string]string{}, r.TraceID().IsValid()}
		r.WalkAttributes(func(kv attribute.KeyValue) bool {
			kept.attrs[string(kv.Key)] = kv.Value.String()
			return true
		})
		e.kept = append(e.kept, kept)
	}
	return nil
}
func (*events) Shutdown(context.Context) error   { return nil }
func (*events) ForceFlush(context.Context) error { return nil }

func (e *events) all() []event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.kept)
}

func api(limits ...limit.Limit) limit.Policy { return limit.Policy{Name: "api", Limits: limits} }

func newMemory(t *testing.T) *memory.Memory {
	t.Helper()
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// newRouter is a router of one group on a server, whose clock is known.
func newRouter(t *testing.T, server *testserver.Server, cfg router.Config) *router.Router {
	t.Helper()
	cfg.Backend.Timeout = 5 * time.Second
	r, err := router.Open(router.Topology{Epoch: 1, Groups: []router.Group{{Name: "eu-1", Primary: server.Addr}}}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if err := r.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func nodesOf(r *router.Router) []otelthrottle.Node {
	var nodes []otelthrottle.Node
	for _, n := range r.Nodes() {
		nodes = append(nodes, otelthrottle.Node{
			Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Age: n.Age,
			RTT: n.Heartbeat.RTT, Ahead: n.Heartbeat.Ahead,
		})
	}
	return nodes
}

// onEvent is for a router's OnEvent.
func (s *telemetry) onEvent(e router.Event) {
	s.observer.EmitNode(otelthrottle.NodeEvent{
		Time: e.Time, Kind: e.Kind.String(), Group: e.Group, Node: e.Node, From: e.From, To: e.To, Err: e.Err, Lost: e.Lost,
	})
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// However a request is decided, measuring it with the SDK allocates nothing.
func TestMeasuringAllocatesNothing(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	s := newTelemetry(t, otelthrottle.Config{})
	th := s.throttler(throttler.Config{Policy: api(limit.PerHour(2)), Allow: []string{"good"}, Deny: []string{"bad"}})
	for key, want := range map[string]throttler.Source{"good": throttler.Listed, "bad": throttler.Listed, "k": throttler.Local} {
		ctx := t.Context()
		var d throttler.Decision
		allocs := testing.AllocsPerRun(1000, func() {
			var err error
			if d, err = th.Allow(ctx, key); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 || d.Source != want {
			t.Errorf("%s: %v allocations by %v, want none by %v", key, allocs, d.Source, want)
		}
	}
}
