package otelthrottle

import (
	"context"
	"net"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/throttler"
)

// spanKey is the context key of the span that begin of an Observer started. The trace of an event may be another observer's.
type spanKey struct{ *Observer }

// begin starts the span of a decision. If it doesn't record, nothing else has to.
func (o *Observer) begin(ctx context.Context, p *policy, e *throttler.Event) context.Context {
	within, span := o.tracer.Start(ctx, p.span, trace.WithSpanKind(trace.SpanKindInternal),
		trace.WithAttributes(p.attr, attribute.Int64("sluice.cost", e.Cost)))
	if !span.IsRecording() {
		span.End()
		return within
	}
	if e.Trace == nil {
		e.Trace = new(backend.Trace)
	}
	return context.WithValue(within, spanKey{o}, span)
}

// end ends the span that begin started, if it did.
func (o *Observer) end(ctx context.Context, e *throttler.Event) {
	span, ok := ctx.Value(spanKey{o}).(trace.Span)
	if !ok {
		return
	}
	defer span.End()
	d, t := &e.Decision, e.Trace
	attrs := make([]attribute.KeyValue, 0, 24)
	attrs = append(attrs, attribute.String("sluice.outcome", outcome(e)))
	if e.Err != nil {
		reason := throttler.Reason(e.Err)
		attrs = append(attrs, attribute.String("error.type", reason))
		span.SetStatus(codes.Error, reason)
	} else {
		attrs = append(attrs,
			attribute.String("sluice.source", d.Source.String()),
			attribute.String("sluice.guarantee", d.Guarantee.String()))
		listed := d.Source == throttler.Listed // it asked no limit
		if !listed {
			attrs = append(attrs,
				attribute.String("sluice.limit", d.Limit.String()), attribute.Int64("sluice.remaining", d.Remaining))
		}
		if !d.Allowed && !listed {
			attrs = append(attrs, attribute.Float64("sluice.retry_after", d.RetryAfter.Seconds()))
		}
	}
	attrs = known(attrs, "sluice.cause", throttler.Reason(d.Cause))
	attrs = known(attrs, "sluice.lease", leaseUse(e))
	span.SetAttributes(traced(attrs, t)...)
	if len(t.Calls) > 0 {
		ctx = trace.ContextWithSpan(ctx, span) // in a chain the one in the context is the last observer's
	}
	for i := range t.Calls {
		o.call(ctx, &t.Calls[i])
	}
}

// traced adds what a trace recorded.
func traced(attrs []attribute.KeyValue, t *backend.Trace) []attribute.KeyValue {
	attrs = known(attrs, "sluice.side", t.Side)
	if t.Flag != "" { // by the conventions for feature flags
		attrs = append(attrs,
			attribute.String("feature_flag.key", t.Flag), attribute.String("feature_flag.result.variant", t.Side))
		if t.FlagVersion > 0 {
			attrs = append(attrs, attribute.String("feature_flag.version", strconv.FormatUint(t.FlagVersion, 10)))
		}
	}
	attrs = known(attrs, "sluice.group", t.Group)
	if t.Node != "" {
		attrs = append(attrs, attribute.String("sluice.node", t.Node), attribute.String("sluice.role", t.Role.String()))
	}
	if n := len(t.Calls); n > 0 { // the last one decided
		attrs = known(attrs, "sluice.script", t.Calls[n-1].Script)
	}
	if t.HandedOver {
		attrs = append(attrs, attribute.Bool("sluice.handed_over", true))
	}
	if t.Shadowed {
		attrs = append(attrs, attribute.Bool("sluice.shadowed", true))
	}
	return attrs
}

// known adds an attribute unless its value is empty.
func known(attrs []attribute.KeyValue, name, value string) []attribute.KeyValue {
	if value == "" {
		return attrs
	}
	return append(attrs, attribute.String(name, value))
}

// leaseUse is what a lease did with the request; empty without one.
func leaseUse(e *throttler.Event) string {
	switch e.Decision.Source {
	case throttler.Leased:
		return "spent"
	case throttler.OnCredit:
		return "owed"
	case throttler.LocalDeny:
		return "denied"
	}
	return e.Trace.Lease
}

// call makes the span of a finished call to a server, by the conventions for databases.
func (o *Observer) call(ctx context.Context, c *backend.Call) {
	operation := c.Command
	if operation == "" {
		operation = c.Op
	}
	attrs := make([]attribute.KeyValue, 0, 10)
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
	if c.Shared > 1 { // the conventions exclude 1
		attrs = append(attrs, attribute.Int("db.operation.batch.size", c.Shared))
	}
	failure := c.Status // the server's word for it, if any
	if failure == "" {
		failure = throttler.Reason(c.Err)
	}
	attrs = known(attrs, "db.response.status_code", c.Status)
	attrs = known(attrs, "error.type", failure)
	_, span := o.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(c.Start),
		trace.WithAttributes(attrs...))
	if c.Err != nil {
		span.SetStatus(codes.Error, failure)
	}
	span.End(trace.WithTimestamp(c.Start.Add(c.Duration)))
}

// server splits the address of a single server. A pool has none.
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
