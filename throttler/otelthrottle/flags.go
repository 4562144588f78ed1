package otelthrottle

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
)

// Flag is the state of a feature flag, as a featureflag.State has it. This package doesn't link package featureflag.
type Flag struct {
	Name     string
	Percent  float64 // of keys for which it is on, 0 to 100
	Version  uint64
	Reason   string // in the words of OpenTelemetry: "split", "default", "stale", "static" or "disabled"
	Stale    bool
	Provider string // source of the percentage; empty: "sluice"
	Err      error  // of the latest load, nil if that succeeded
}

// EmitFlag makes a log event feature_flag.evaluation, by the conventions for feature flags. Call it from a flag's OnChange, once
// for each change. The answer for a single request is in its span.
//
//	OnChange: func(s featureflag.State) {
//		observer.EmitFlag(otelthrottle.Flag{
//			Name: s.Name, Percent: s.Percent, Version: s.Version, Reason: string(s.Reason), Stale: s.Stale, Err: s.Err,
//		})
//	},
//
// The value is the percentage, not the answer for a key, and there is no context.id: that would be a key.
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
	if f.Err != nil { // the flag keeps its state
		severity = log.SeverityWarn
		attrs = append(attrs, attribute.String("error.type", "general"),
			attribute.String("feature_flag.error.message", f.Err.Error()))
	}
	if f.Stale {
		severity = log.SeverityWarn
	}
	o.emit(context.Background(), time.Now(), "feature_flag.evaluation", severity, "the flag's answers changed", nil, attrs...)
}

// WatchFlag reads a flag whenever metrics are collected. Both metrics are by feature_flag.key:
//
//	sluice.flag.percent  share of the keys for which the flag is on
//	sluice.flag.stale    1 if no load has succeeded for long, else 0
func (o *Observer) WatchFlag(flag func() Flag) error {
	if flag == nil {
		return errNothing
	}
	w := watcher{meter: o.meter}
	percent := w.real("sluice.flag.percent", "%", "Share of the keys for which the flag is on.")
	stale := w.gauge("sluice.flag.stale", "{flag}", "1 if no load of the flag has succeeded for long.")
	return w.watch(o, func(to metric.Observer) {
		f := flag()
		of := observed(attribute.String("feature_flag.key", f.Name))
		to.ObserveFloat64(percent, f.Percent, of...)
		to.ObserveInt64(stale, oneIf(f.Stale), of...)
	})
}
