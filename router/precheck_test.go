//go:build unix

package router_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
)

// TestPrecheckAsksReplicas: what a replica denies is no call of the primary, and no answer of a replica admits.
func TestPrecheckAsksReplicas(t *testing.T) {
	c := startCluster(t, 1, 1)
	r := dial(t, c.topology, router.Config{})
	th, err := throttler.New(throttler.Config{
		Backend: r, Policy: limit.Policy{Name: "p", Limits: []limit.Limit{limit.PerHour(5)}}, Precheck: throttler.PrecheckAlways,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		d, err := th.Allow(context.Background(), "alice")
		if err != nil || d.Allowed != (i < 5) || d.Allowed && d.Source != throttler.Primary {
			t.Fatalf("request %d: allowed %t by %s, %v", i, d.Allowed, d.Source, err)
		}
	}
	c.replicas["a"][0].AwaitSync(c.primaries["a"])
	before := c.primaries["a"].Stats(t)
	for range 100 {
		d, err := th.Allow(context.Background(), "alice")
		if err != nil || d.Allowed || d.Source != throttler.Replica || d.Guarantee != throttler.Exact {
			t.Fatalf("allowed %t by %s, %s, %v", d.Allowed, d.Source, d.Guarantee, err)
		}
		if wait := d.RetryAfter; wait <= 0 || wait > time.Hour {
			t.Fatalf("retry after %s", wait)
		}
	}
	after := c.primaries["a"].Stats(t)
	if n := after["evalsha"] + after["eval"] - before["evalsha"] - before["eval"]; n != 0 {
		t.Errorf("100 denials made %d calls to the primary", n)
	}
	if n := after["get"] - before["get"]; n > markerReads(after) {
		t.Errorf("100 denials read from the primary %d times", n)
	}
}
