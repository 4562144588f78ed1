package otelthrottle_test

import (
	"context"
	"fmt"
	"testing"

	lognoop "go.opentelemetry.io/otel/log/noop"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

func newThrottler(t testing.TB, max int64, cfg *otelthrottle.Config) *throttler.Throttler {
	t.Helper()
	own := throttler.Config{Policy: limit.Policy{Name: "api", Limits: []limit.Limit{limit.PerDay(max)}}}
	if cfg != nil {
		observer, err := otelthrottle.New(*cfg)
		if err != nil {
			t.Fatal(err)
		}
		own.Observer = observer
	}
	th, err := throttler.New(own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = th.Close() })
	return th
}

// silent are configurations with which nothing records.
var silent = map[string]*otelthrottle.Config{
	"nobody observes":  nil,
	"no SDK":           {},
	"no-op providers":  {TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(), LoggerProvider: lognoop.NewLoggerProvider()},
	"near every limit": {NearLimit: 1},
}

func TestObserverAllocatesNothing(t *testing.T) { // not parallel: AllocsPerRun counts for the process
	for name, cfg := range silent {
		for _, max := range []int64{1, 1 << 40} { // denied and allowed
			th, ctx := newThrottler(t, max, cfg), context.Background()
			allocs := testing.AllocsPerRun(1000, func() {
				if _, err := th.Allow(ctx, "user:42"); err != nil {
					t.Fatal(err)
				}
			})
			if allocs != 0 {
				t.Errorf("%s, max %d: %v allocations, want none", name, max, allocs)
			}
		}
	}
}

func BenchmarkAllow(b *testing.B) {
	for _, name := range []string{"nobody observes", "no SDK", "no-op providers"} {
		for _, max := range []int64{1, 1 << 40} {
			th, ctx := newThrottler(b, max, silent[name]), context.Background()
			b.Run(fmt.Sprintf("%s, allowed %t", name, max > 1), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := th.Allow(ctx, "user:42"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
