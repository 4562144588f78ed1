package otelthrottle

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/throttler"
)

// instruments are what a decision is measured with.
type instruments struct {
	decisions, near, exposure, refunds, outages, shadows metric.Int64Counter
	duration, operations                                 metric.Float64Histogram
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
	i.decisions = counter("sluice.decisions", "{decision}", "Requests that were decided, or weren't.")
	i.near = counter("sluice.decisions.near_limit", "{decision}", "Admissions that left little of the quota.")
	i.exposure = counter("sluice.exposure", "{cost}", "Cost that was admitted without the guarantee to be exact.")
	i.refunds = counter("sluice.refunds", "{cost}", "Cost that was given back.")
	i.outages = counter("sluice.outages", "{outage}", "Outages of the backend, at most one a minute for each cause.")
	i.shadows = counter("sluice.shadow.decisions", "{decision}", "What policies that are enforced on nobody would have decided.")
	timer := func(name, description string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	i.duration = timer("sluice.decision.duration", "How long decisions take.")
	i.operations = timer("sluice.operation.duration", "How long peeks, looks at the usage and resets take.")
	return i, errors.Join(errs...)
}

// measure counts a decision.
func (o *Observer) measure(ctx context.Context, p *policy, data *throttler.DecisionEndData) {
	i, d := &o.instruments, &data.Decision
	if data.Err != nil {
		o.measureError(ctx, p, data)
		return
	}
	opts := p.of(d)
	i.decisions.Add(ctx, 1, opts.counted...)
	i.duration.Record(ctx, data.Duration.Seconds(), opts.timed...)
	if !d.Allowed {
		return
	}
	if float64(d.Remaining) <= o.cfg.NearLimit*float64(d.Limit.Quota()) {
		i.near.Add(ctx, 1, p.near...)
	}
	if d.Guarantee != throttler.Exact {
		i.exposure.Add(ctx, data.Cost, opts.exposed...)
	}
}

// measureError counts a request without a verdict. There may be many reasons, so that their attributes are not kept.
func (o *Observer) measureError(ctx context.Context, p *policy, data *throttler.DecisionEndData) {
	i := &o.instruments
	if !i.decisions.Enabled(ctx) && !i.duration.Enabled(ctx) {
		return
	}
	opts := p.with(attribute.String("sluice.outcome", failed),
		attribute.String("error.type", throttler.Reason(data.Err)))
	i.decisions.Add(ctx, 1, opts)
	i.duration.Record(ctx, data.Duration.Seconds(), opts)
}

// Refund implements [throttler.RefundObserver].
func (o *Observer) Refund(ctx context.Context, data throttler.RefundData) {
	if !o.instruments.refunds.Enabled(ctx) {
		return
	}
	attrs := []attribute.KeyValue{attribute.String("sluice.outcome", "returned")}
	if data.Err != nil {
		attrs[0] = attribute.String("sluice.outcome", failed)
		attrs = append(attrs, attribute.String("error.type", throttler.Reason(data.Err)))
	}
	o.instruments.refunds.Add(ctx, data.Amount, o.labels.of(data.Policy.Name).with(attrs...))
}
