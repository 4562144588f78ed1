package otelthrottle

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

var errNothing = errors.New("otelthrottle: nothing to watch: nil")

// watcher collects instruments that are read together.
type watcher struct {
	meter metric.Meter
	all   []metric.Observable
	errs  []error
}

func (w *watcher) counter(name, unit, description string) metric.Int64ObservableCounter {
	i, err := w.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	w.all, w.errs = append(w.all, i), append(w.errs, err)
	return i
}

func (w *watcher) gauge(name, unit, description string) metric.Int64ObservableGauge {
	i, err := w.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	w.all, w.errs = append(w.all, i), append(w.errs, err)
	return i
}

func (w *watcher) real(name, unit, description string) metric.Float64ObservableGauge {
	i, err := w.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	w.all, w.errs = append(w.all, i), append(w.errs, err)
	return i
}

func (w *watcher) watch(o *Observer, read func(metric.Observer)) error {
	if err := errors.Join(w.errs...); err != nil {
		return fmt.Errorf("otelthrottle: %w", err)
	}
	registration, err := w.meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		read(to)
		return nil
	}, w.all...)
	if err != nil {
		return fmt.Errorf("otelthrottle: %w", err)
	}
	o.mu.Lock()
	o.watched = append(o.watched, registration)
	o.mu.Unlock()
	return nil
}

func observed(attrs ...attribute.KeyValue) []metric.ObserveOption {
	return []metric.ObserveOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
}
