package otelthrottle

import (
	"context"
	"net"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-go/sluice/throttler"
)

// begin begins the span of a decision. Where it doesn't record nothing else has to.
func (o *Observer) begin(ctx context.Context, p *policy, cost int64) (context.Context, *throttler.Trace) {
	ctx, span := o.tracer.Start(ctx, p.span, trace.WithSpanKind(trace.SpanKindInternal),
		trace.WithAttributes(p.attr, attribute.Int64("sluice.cost", cost)))
	if !span.IsRecording() {
		span.End()
		return ctx, nil
	}
	return ctx, new(throttler.Trace)
}

// end ends the span of a decision, which is that of the context.
func (o *Observer) end(ctx context.Context, data *throttler.DecisionEndData) {
	span := trace.SpanFromContext(ctx)
	defer span.End()
	d, t := &data.Decision, data.Trace
	attrs := make([]attribute.KeyValue, 0, 20)
	attrs = append(attrs, attribute.String("sluice.outcome", outcome(data)))
	if data.Err != nil {
		reason := throttler.Reason(data.Err)
		attrs = append(attrs, attribute.String("error.type", reason))
		span.SetStatus(codes.Error, reason)
	} else {
		attrs = append(attrs,
			attribute.String("sluice.source", d.Source.String()),
			attribute.String("sluice.guarantee", d.Guarantee.String()),
			attribute.String("sluice.limit", d.Limit.String()),
			attribute.Int64("sluice.remaining", d.Remaining))
		if !d.Allowed {
			attrs = append(attrs, attribute.Float64("sluice.retry_after", d.RetryAfter.Seconds()))
		}
	}
	for _, known := range [...]struct{ name, value string }{
		{"sluice.cause", throttler.Reason(d.Cause)},
		{"sluice.side", t.Side},
		{"sluice.group", t.Group},
		{"sluice.node", t.Node},
		{"sluice.lease", leaseUse(data)},
	} {
		if known.value != "" {
			attrs = append(attrs, attribute.String(known.name, known.value))
		}
	}
	if t.Node != "" {
		attrs = append(attrs, attribute.String("sluice.role", t.Role.String()))
	}
	if t.HandedOver {
		attrs = append(attrs, attribute.Bool("sluice.handed_over", true))
	}
	if t.Shadowed {
		attrs = append(attrs, attribute.Bool("sluice.shadowed", true))
	}
	span.SetAttributes(attrs...)
	for i := range t.Calls {
		o.call(ctx, &t.Calls[i])
	}
}

// leaseUse is what a lease did with a request, if there is one.
func leaseUse(data *throttler.DecisionEndData) string {
	switch data.Decision.Source {
	case throttler.Leased:
		return "spent"
	case throttler.LocalDeny:
		return "denied"
	}
	return data.Trace.Lease.String()
}

// call makes the span of a call to a server, which is over, by the conventions for databases.
func (o *Observer) call(ctx context.Context, c *throttler.Call) {
	operation := c.Command
	if operation == "" {
		operation = c.Op
	}
	attrs := make([]attribute.KeyValue, 0, 8)
	attrs = append(attrs,
		attribute.String("db.system.name", c.System),
		attribute.String("db.operation.name", operation),
		attribute.String("sluice.op", c.Op))
	name := operation
	if host, port, ok := server(c.Node); ok {
		name += " " + c.Node
		attrs = append(attrs, attribute.String("server.address", host))
		if port > 0 {
			attrs = append(attrs, attribute.Int("server.port", port))
		}
	}
	if c.Script != "" {
		attrs = append(attrs, attribute.String("db.stored_procedure.name", c.Script))
	}
	if c.Shared > 1 { // the conventions want no 1
		attrs = append(attrs, attribute.Int("db.operation.batch.size", c.Shared))
	}
	if c.Err != nil {
		attrs = append(attrs, attribute.String("error.type", throttler.Reason(c.Err)))
	}
	_, span := o.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(c.Start),
		trace.WithAttributes(attrs...))
	if c.Err != nil {
		span.SetStatus(codes.Error, throttler.Reason(c.Err))
	}
	span.End(trace.WithTimestamp(c.Start.Add(c.Duration)))
}

// server is the address of one server. That of a pool of them is none.
func server(node string) (host string, port int, ok bool) {
	if strings.HasPrefix(node, "/") { // a socket
		return node, 0, true
	}
	host, service, err := net.SplitHostPort(node)
	if err != nil || strings.Contains(node, ",") {
		return "", 0, false
	}
	port, err = strconv.Atoi(service)
	return host, port, err == nil
}
