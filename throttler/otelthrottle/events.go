package otelthrottle

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"

	"github.com/sluice-go/sluice/throttler"
)

// Outage implements [throttler.OutageObserver]: a count and an event sluice.outage, or sluice.outage_end once it is over.
func (o *Observer) Outage(ctx context.Context, outage throttler.Outage) {
	p, reason := o.labels.Get(outage.Policy.Name), throttler.Reason(outage.Cause)
	if outage.Over {
		o.emit(ctx, time.Now(), "sluice.outage_end", log.SeverityInfo, "the backend gives verdicts again", nil,
			p.attr, attribute.Float64("sluice.outage.duration", outage.Duration.Seconds()),
			attribute.Int64("sluice.outage.requests", outage.Requests))
		return
	}
	how := attribute.String("sluice.failure_policy", outage.Failure.String())
	cause := attribute.String("sluice.cause", reason)
	o.instruments.outages.Add(ctx, 1, p.with(how, cause))
	severity := log.SeverityWarn
	if reason == "misconfigured" || reason == "corrupt" { // waiting doesn't help
		severity = log.SeverityError
	}
	o.emit(ctx, time.Now(), "sluice.outage", severity, "no verdict from the backend, the failure policy decides", outage.Cause,
		p.attr, how, cause)
}

// NodeEvent is a change of state of a node, as a router.Event has it. This package doesn't link the router.
type NodeEvent struct {
	Time        time.Time // zero: now
	Kind        string    // such as "breaker opened"
	Group, Node string
	From, To    string
	Err         error
	Lost        uint64 // number of events dropped since the one before it was handled
}

// EmitNode makes a log event of a change of state: "breaker opened" is called sluice.node.breaker_opened. Call it from a
// router's OnEvent:
//
//	OnEvent: func(e router.Event) {
//		observer.EmitNode(otelthrottle.NodeEvent{
//			Time: e.Time, Kind: e.Kind.String(), Group: e.Group, Node: e.Node, From: e.From, To: e.To, Err: e.Err, Lost: e.Lost,
//		})
//	},
func (o *Observer) EmitNode(e NodeEvent) {
	severity := log.SeverityInfo
	switch e.Kind {
	case "misconfigured", "topology rejected", "topology not published":
		severity = log.SeverityError
	case "breaker opened", "restarted", "role changed", "link down":
		severity = log.SeverityWarn
	}
	attrs := make([]attribute.KeyValue, 0, 5)
	attrs = known(attrs, "sluice.group", e.Group)
	attrs = known(attrs, "sluice.node", e.Node)
	attrs = known(attrs, "sluice.from", e.From)
	attrs = known(attrs, "sluice.to", e.To)
	if e.Lost > 0 {
		attrs = append(attrs, attribute.Int64("sluice.lost", int64(e.Lost)))
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	name := "sluice.node." + strings.ReplaceAll(e.Kind, " ", "_")
	o.emit(context.Background(), e.Time, name, severity, e.Kind, e.Err, attrs...)
}

func (o *Observer) emit(ctx context.Context, at time.Time, name string, severity log.Severity, body string, err error,
	attrs ...attribute.KeyValue) {
	if !o.logger.Enabled(ctx, log.EnabledParameters{Severity: severity, EventName: name}) {
		return
	}
	var r log.Record
	r.SetEventName(name)
	r.SetTimestamp(at)
	r.SetSeverity(severity)
	r.SetSeverityText(severity.String())
	r.SetBody(attribute.StringValue(body))
	r.AddAttributes(attrs...)
	if err != nil {
		r.SetErr(err)
	}
	o.logger.Emit(ctx, r)
}
