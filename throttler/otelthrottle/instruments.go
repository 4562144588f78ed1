package otelthrottle

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/throttler"
)

// instruments measure operations.
type instruments struct {
	decisions, near, exposure, refunds, overruns, outages, shadows metric.Int64Counter
	duration, operations                                           metric.Float64Histogram
}

// buckets are of seconds. A decision from memory falls into the first; one by a server near by takes some 100 us.
var buckets = []float64{
	0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
}

func newInstruments(m metric.Meter) (i instruments, _ error) {
	var errs []error
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	i.decisions = counter("sluice.decisions", "{decision}", "Requests by outcome.")
	i.near = counter("sluice.decisions.near_limit", "{decision}", "Admissions that left little of the quota.")
	i.exposure = counter("sluice.exposure", "{cost}", "Cost that was admitted without the Exact guarantee.")
	i.refunds = counter("sluice.refunds", "{cost}", "Cost that was given back.")
	i.overruns = counter("sluice.overruns", "{cost}", "Cost that was charged above what was reserved.")
	i.outages = counter("sluice.outages", "{outage}", "Outages of the backend, at most one a minute for each cause.")
	i.shadows = counter("sluice.shadow.decisions", "{decision}", "Decisions of shadow policies, which are not enforced.")
	timer := func(name, description string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	i.duration = timer("sluice.decision.duration", "Duration of decisions.")
	i.operations = timer("sluice.operation.duration", "Duration of Peek, Usage, Reset and Grant.")
	return i, errors.Join(errs...)
}

// measure counts a decision.
func (o *Observer) measure(ctx context.Context, p *policy, e *throttler.Event) {
	i, d := &o.instruments, &e.Decision
	if e.Err != nil {
		o.measureError(ctx, p, e)
		return
	}
	opts := p.of(d)
	i.decisions.Add(ctx, 1, opts.counted...)
	i.duration.Record(ctx, e.Duration.Seconds(), opts.timed...)
	if !d.Allowed {
		return
	}
	if !d.Limit.IsCounter() && float64(d.Remaining) <= o.cfg.NearLimit*float64(d.Limit.Quota()) {
		i.near.Add(ctx, 1, p.near...)
	}
	if d.Guarantee != throttler.Exact && i.exposure.Enabled(ctx) {
		i.exposure.Add(ctx, e.Cost, p.exposedBy(d)...)
	}
}

// measureError counts a request without a verdict. There may be many reasons, so that their attributes are not kept.
func (o *Observer) measureError(ctx context.Context, p *policy, e *throttler.Event) {
	i := &o.instruments
	if !i.decisions.Enabled(ctx) && !i.duration.Enabled(ctx) {
		return
	}
	opts := p.with(attribute.String("sluice.outcome", failed),
		attribute.String("error.type", throttler.Reason(e.Err)))
	i.decisions.Add(ctx, 1, opts)
	i.duration.Record(ctx, e.Duration.Seconds(), opts)
}

// measureSettled measures a refund or an overrun.
func (o *Observer) measureSettled(ctx context.Context, counter metric.Int64Counter, done string, e *throttler.Event) {
	if !counter.Enabled(ctx) {
		return
	}
	attrs := []attribute.KeyValue{attribute.String("sluice.outcome", done)}
	if e.Err != nil {
		attrs[0] = attribute.String("sluice.outcome", failed)
		attrs = append(attrs, attribute.String("error.type", throttler.Reason(e.Err)))
	}
	counter.Add(ctx, e.Cost, o.labels.Get(e.Policy.Name).with(attrs...))
}

// measureOperation measures a Peek, Usage, Reset or Grant.
func (o *Observer) measureOperation(ctx context.Context, e *throttler.Event) {
	if !o.instruments.operations.Enabled(ctx) {
		return
	}
	attrs := known(make([]attribute.KeyValue, 0, 3), "error.type", throttler.Reason(e.Err))
	attrs = append(attrs, attribute.String("sluice.operation", e.Op.String()))
	o.instruments.operations.Record(ctx, e.Duration.Seconds(), o.labels.Get(e.Policy.Name).with(attrs...))
}

func (o *Observer) measureShadow(ctx context.Context, e *throttler.Event) {
	if !o.instruments.shadows.Enabled(ctx) {
		return
	}
	how, reason := denied, throttler.Reason(e.Err)
	switch {
	case reason == "cost_exceeds_limit": // it would deny this always
	case e.Err != nil:
		how = failed
	case e.Decision.Allowed:
		how = allowed
	}
	attrs := known(make([]attribute.KeyValue, 0, 4), "error.type", reason)
	attrs = append(attrs, attribute.String("sluice.outcome", how),
		attribute.String("sluice.shadow_policy", o.labels.Get(e.Shadow.Name).attr.Value.AsString()))
	o.instruments.shadows.Add(ctx, 1, o.labels.Get(e.Policy.Name).with(attrs...))
}
