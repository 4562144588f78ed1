package otelthrottle

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-go/sluice/internal/nametable"
	"github.com/sluice-go/sluice/internal/typednil"
	"github.com/sluice-go/sluice/throttler"
)

const scope = "github.com/sluice-go/sluice/throttler/otelthrottle"

// Config configures an Observer. The zero value is ready to use.
type Config struct {
	// The providers. If nil, the global one is used.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	LoggerProvider log.LoggerProvider

	// Always starts a span for each decision, which the sampler may drop. False: only decisions within a span that records have
	// one.
	Always bool

	// NearLimit is the share of a limit's quota at or below which an admission counts as near the limit. Zero: 0.1. Negative: no
	// admission does.
	NearLimit float64

	// MaxPolicies is how many names of policies have attributes of their own. Zero: 100.
	MaxPolicies int
}

const (
	defaultNearLimit   = 0.1
	defaultMaxPolicies = 100
)

func (c Config) withDefaults() Config {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.LoggerProvider == nil {
		c.LoggerProvider = otel.GetLoggerProvider()
	}
	if c.NearLimit == 0 {
		c.NearLimit = defaultNearLimit
	}
	if c.MaxPolicies == 0 {
		c.MaxPolicies = defaultMaxPolicies
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	for _, p := range []struct {
		field string
		nils  []any
	}{
		{"tracer provider", typednil.Within(c.TracerProvider)},
		{"meter provider", typednil.Within(c.MeterProvider)},
		{"logger provider", typednil.Within(c.LoggerProvider)},
	} {
		for _, v := range p.nils {
			errs = append(errs, fmt.Errorf("otelthrottle: %s: %s must not be a nil pointer", p.field, typednil.Name(v)))
		}
	}
	if !(c.NearLimit <= 1) {
		errs = append(errs, fmt.Errorf("otelthrottle: near limit: %v must be at most 1", c.NearLimit))
	}
	if c.MaxPolicies < 0 {
		errs = append(errs, fmt.Errorf("otelthrottle: max policies: %d must not be negative", c.MaxPolicies))
	}
	return errors.Join(errs...)
}

// Observer is a [throttler.Observer] on OpenTelemetry. Several Throttlers may share one. Make one with New.
type Observer struct {
	cfg         Config
	tracer      trace.Tracer
	meter       metric.Meter
	logger      log.Logger
	instruments instruments
	labels      *nametable.Table[*policy] // by name

	mu      sync.Mutex // guards watched
	watched []metric.Registration
}

var (
	_ throttler.Observer       = (*Observer)(nil)
	_ throttler.OutageObserver = (*Observer)(nil)
)

// New makes an Observer. It reports every problem of the configuration at once.
func New(cfg Config) (*Observer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	o := &Observer{
		cfg:    cfg,
		tracer: cfg.TracerProvider.Tracer(scope),
		meter:  cfg.MeterProvider.Meter(scope),
		logger: cfg.LoggerProvider.Logger(scope),
		labels: nametable.New(cfg.MaxPolicies, newPolicy),
	}
	var err error
	if o.instruments, err = newInstruments(o.meter); err != nil {
		return nil, fmt.Errorf("otelthrottle: %w", err)
	}
	return o, nil
}

// Start implements [throttler.Observer].
func (o *Observer) Start(ctx context.Context, e *throttler.Event) context.Context {
	// Starting a span allocates even without an SDK.
	if e.Op != throttler.OpTake || !o.cfg.Always && !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	return o.begin(ctx, o.labels.Get(e.Policy.Name), e)
}

// End implements [throttler.Observer].
func (o *Observer) End(ctx context.Context, e *throttler.Event) {
	switch e.Op {
	case throttler.OpTake:
		o.measure(ctx, o.labels.Get(e.Policy.Name), e)
		if e.Trace != nil {
			o.end(ctx, e)
		}
	case throttler.OpRefund:
		o.measureSettled(ctx, o.instruments.refunds, "returned", e)
	case throttler.OpCharge:
		o.measureSettled(ctx, o.instruments.overruns, "charged", e)
	case throttler.OpShadow:
		o.measureShadow(ctx, e)
	default:
		o.measureOperation(ctx, e)
	}
}

// Close ends what the Watch methods began.
func (o *Observer) Close() error {
	o.mu.Lock()
	watched := o.watched
	o.watched = nil
	o.mu.Unlock()
	var errs []error
	for _, w := range watched {
		errs = append(errs, w.Unregister())
	}
	return errors.Join(errs...)
}

// The outcomes of a request.
const (
	allowed = "allowed"
	denied  = "denied"
	failed  = "error"
)

func outcome(e *throttler.Event) string {
	switch {
	case e.Err != nil:
		return failed
	case e.Decision.Allowed:
		return allowed
	}
	return denied
}
