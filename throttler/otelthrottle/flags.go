package otelthrottle

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
)

// Flag is what a feature flag answers now, and why, such as the State of a featureflag.Flag tells.
type Flag struct {
	Name     string
	Percent  float64 // of the keys that it is on for, 0 to 100
	Version  uint64
	Reason   string // in the words of OpenTelemetry: "split", "default", "stale", "static" or "disabled"
	Stale    bool
	Provider string // where the percentage comes from; empty: "sluice"
	Err      error  // of the latest load, nil if that succeeded
}

// EmitFlag makes a log event feature_flag.evaluation, by the conventions for feature flags. It is for a flag's OnChange,
// which is called once for each change: an event for each request would say no more. What a single request was told is in
// its span.
//
//	OnChange: func(s featureflag.State) {
//		observer.EmitFlag(otelthrottle.Flag{
//			Name: s.Name, Percent: s.Percent, Version: s.Version, Reason: string(s.Reason), Stale: s.Stale, Err: s.Err,
//		})
//	},
//
// The value is the percentage, not one key's answer, and no context.id is given: that would be a key.
func (o *Observer) EmitFlag(f Flag) {
	severity, provider := log.SeverityInfo, f.Provider
	if provider == "" {
		provider = "sluice"
	}
	attrs := []attribute.KeyValue{
		attribute.String("feature_flag.key", f.Name),
		attribute.String("feature_flag.provider.name", provider),
		attribute.Float64("feature_flag.result.value", f.Percent),
		attribute.String("feature_flag.result.reason", f.Reason),
		attribute.String("feature_flag.version", strconv.FormatUint(f.Version, 10)),
	}
	if f.Err != nil { // the flag goes on with what it had
		severity = log.SeverityWarn
		attrs = append(attrs, attribute.String("error.type", "general"),
			attribute.String("feature_flag.error.message", f.Err.Error()))
	}
	if f.Stale {
		severity = log.SeverityWarn
	}
	o.emit(context.Background(), time.Now(), "feature_flag.evaluation", severity, "the flag's answers changed", nil, attrs...)
}

// WatchFlag reads a flag whenever metrics are collected. Both are by feature_flag.key:
//
//	sluice.flag.percent  of the keys that it is on for
//	sluice.flag.stale    1 if no load has succeeded for long, else 0
func (o *Observer) WatchFlag(flag func() Flag) error {
	if flag == nil {
		return errNothing
	}
	w := watcher{meter: o.meter}
	percent := w.real("sluice.flag.percent", "%", "Share of the keys that the flag is on for.")
	stale := w.gauge("sluice.flag.stale", "{flag}", "1 if no load of the flag has succeeded for long.")
	return w.watch(o, func(to metric.Observer) {
		f := flag()
		of := observed(attribute.String("feature_flag.key", f.Name))
		to.ObserveFloat64(percent, f.Percent, of...)
		to.ObserveInt64(stale, oneIf(f.Stale), of...)
	})
}
