package otelthrottle

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/sluice-go/sluice/throttler"
)

// Shadow implements [throttler.ShadowObserver]: it counts what a policy that is enforced on nobody would have decided.
func (o *Observer) Shadow(ctx context.Context, data throttler.ShadowData) {
	if !o.instruments.shadows.Enabled(ctx) {
		return
	}
	how, reason := denied, throttler.Reason(data.Err)
	switch {
	case reason == "cost_exceeds_limit": // it would deny this always
	case data.Err != nil:
		how = failed
	case data.Decision.Allowed:
		how = allowed
	}
	attrs := known(make([]attribute.KeyValue, 0, 4), "error.type", reason)
	attrs = append(attrs, attribute.String("sluice.outcome", how),
		attribute.String("sluice.shadow_policy", o.labels.of(data.Shadow.Name).attr.Value.AsString()))
	o.instruments.shadows.Add(ctx, 1, o.labels.of(data.Policy.Name).with(attrs...))
}
