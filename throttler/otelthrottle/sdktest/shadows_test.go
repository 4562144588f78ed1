//go:build unix

package sdktest

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

// TestShadowPolicy counts what a policy that is not enforced would have decided.
func TestShadowPolicy(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t, otelthrottle.Config{})
	shadow, err := insight.NewShadow(insight.ShadowConfig{
		Backend: newMemory(t), Policy: limit.Policy{Name: "stricter", Limits: []limit.Limit{limit.PerHour(2)}}, Observer: s.observer,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shadow.Close() })
	th := s.throttler(throttler.Config{Policy: api(limit.PerHour(10)), Observer: shadow})
	for i, test := range []struct{ cost, allowed, denied int64 }{{2, 1, 0}, {1, 1, 1}, {3, 1, 2}} { // the last can never fit
		s.request(th, test.cost)
		await(t, "the shadow's answer", func() bool {
			sum := 0.0
			for _, n := range s.series("sluice.shadow.decisions") {
				sum += n
			}
			return sum == float64(i+1)
		})
	}
	s.want("sluice.shadow.decisions", map[string]float64{
		"allowed api stricter": 1, "denied api stricter": 1, "cost_exceeds_limit denied api stricter": 1,
	})
	s.want("sluice.decisions", map[string]float64{"exact allowed api local": 3})
}

func TestOperations(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t, otelthrottle.Config{})
	th := s.throttler(throttler.Config{Policy: api(limit.Sliding(10, time.Hour, time.Minute))})
	_, _ = th.Peek(t.Context(), secret)
	_, _ = th.Usage(t.Context(), secret, time.Hour)
	_, _ = th.Usage(t.Context(), secret, 2*time.Hour)
	if err := th.Reset(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	_ = th.Reset(t.Context(), "")
	got := s.series("sluice.operation.duration")
	for _, want := range []string{"peek api", "usage api", "invalid usage api", "reset api"} {
		if got[want] != 1 {
			t.Errorf("%s: %v, want 1 of %v", want, got[want], got)
		}
	}
}

func TestOutageEnd(t *testing.T) {
	t.Parallel()
	s, policy := newTelemetry(t, otelthrottle.Config{}), api(limit.PerHour(1))
	s.observer.Outage(t.Context(), throttler.Outage{Over: true, Policy: &policy, Duration: 90 * time.Second, Requests: 7})
	e := s.events.all()[0]
	if e.name != "sluice.outage_end" || e.severity != "INFO" || e.attrs["sluice.policy"] != "api" ||
		e.attrs["sluice.outage.duration"] != "90" || e.attrs["sluice.outage.requests"] != "7" {
		t.Errorf("%+v", e)
	}
}
