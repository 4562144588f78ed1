package otelthrottle

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/sluice-go/sluice/throttler"
)

// Operation implements [throttler.OperationObserver]: it measures each Peek, Usage and Reset.
func (o *Observer) Operation(ctx context.Context, data throttler.OperationData) {
	if !o.instruments.operations.Enabled(ctx) {
		return
	}
	attrs := known(make([]attribute.KeyValue, 0, 3), "error.type", throttler.Reason(data.Err))
	attrs = append(attrs, attribute.String("sluice.operation", data.Operation.String()))
	o.instruments.operations.Record(ctx, data.Duration.Seconds(), o.labels.of(data.Policy.Name).with(attrs...))
}
