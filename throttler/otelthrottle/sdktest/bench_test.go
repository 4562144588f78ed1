//go:build unix

package sdktest

import (
	"context"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

// BenchmarkAllow decides in memory with an SDK that nobody reads: measured only, and traced too.
func BenchmarkAllow(b *testing.B) {
	traces := sdktrace.NewTracerProvider()
	observer, err := otelthrottle.New(otelthrottle.Config{
		TracerProvider: traces,
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
	})
	if err != nil {
		b.Fatal(err)
	}
	th, err := throttler.New(throttler.Config{Policy: api(limit.PerDay(1 << 40)), Observer: observer})
	if err != nil {
		b.Fatal(err)
	}
	defer th.Close()
	traced, parent := traces.Tracer("application").Start(context.Background(), "GET /")
	defer parent.End()
	for name, ctx := range map[string]context.Context{"measured": context.Background(), "traced": traced} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := th.Allow(ctx, "user:42"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
