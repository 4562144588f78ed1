package otelthrottle

import (
	"maps"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/throttler"
)

// policy holds the attributes of one policy: attributes made for each decision would cost four allocations.
type policy struct {
	span string // the name of its spans
	attr attribute.KeyValue
	near []metric.AddOption

	decided [2][sources][guarantees]atomic.Pointer[options] // by whether it was allowed
	exposed atomic.Pointer[map[exposure][]metric.AddOption] // is replaced, never changed
}

// exposure is a kind of admission that is not exact. There are few: the reasons are words.
type exposure struct{ source, guarantee, cause string }

const (
	sources    = int(throttler.OnCredit) + 1
	guarantees = int(throttler.Bounded) + 1
)

// options are the attributes of one kind of decision.
type options struct {
	counted []metric.AddOption
	timed   []metric.RecordOption
}

func newPolicy(name string) *policy {
	p := &policy{span: "ratelimit", attr: attribute.String("sluice.policy", name)}
	if name != "" {
		p.span += " " + name
	}
	p.near = p.add()
	return p
}

func (p *policy) with(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(attrs, p.attr)...))
}

func (p *policy) add(attrs ...attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{p.with(attrs...)}
}

// of is the options for a decision.
func (p *policy) of(d *throttler.Decision) *options {
	how, source, guarantee := 0, int(d.Source), int(d.Guarantee)
	if d.Allowed {
		how = 1
	}
	if source >= sources || guarantee >= guarantees { // of a backend that knows others
		return p.options(d)
	}
	kept := &p.decided[how][source][guarantee]
	if opts := kept.Load(); opts != nil {
		return opts
	}
	opts := p.options(d)
	kept.Store(opts)
	return opts
}

// exposedBy is the options for an admission that is not exact.
func (p *policy) exposedBy(d *throttler.Decision) []metric.AddOption {
	by := exposure{d.Source.String(), d.Guarantee.String(), throttler.Reason(d.Cause)}
	kept := p.exposed.Load()
	if kept != nil {
		if opts, ok := (*kept)[by]; ok {
			return opts
		}
	}
	opts := p.add(attribute.String("sluice.source", by.source), attribute.String("sluice.guarantee", by.guarantee),
		attribute.String("sluice.cause", by.cause))
	next := map[exposure][]metric.AddOption{by: opts}
	if kept != nil {
		maps.Copy(next, *kept)
	}
	p.exposed.CompareAndSwap(kept, &next) // what another has kept meanwhile is kept again at its next use
	return opts
}

func (p *policy) options(d *throttler.Decision) *options {
	how := attribute.String("sluice.outcome", denied)
	if d.Allowed {
		how = attribute.String("sluice.outcome", allowed)
	}
	source := attribute.String("sluice.source", d.Source.String())
	guarantee := attribute.String("sluice.guarantee", d.Guarantee.String())
	return &options{
		counted: p.add(how, source, guarantee),
		timed:   []metric.RecordOption{p.with(how, source)},
	}
}
