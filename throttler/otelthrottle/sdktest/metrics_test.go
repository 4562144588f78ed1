//go:build unix

package sdktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t, otelthrottle.Config{NearLimit: 0.25})
	th := s.throttler(throttler.Config{Policy: api(limit.PerHour(4))})
	for range 6 {
		if _, err := th.Allow(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	s.want("sluice.decisions", map[string]float64{"exact allowed api local": 4, "exact denied api local": 2})
	s.want("sluice.decision.duration", map[string]float64{"allowed api local": 4, "denied api local": 2})
	s.want("sluice.decisions.near_limit", map[string]float64{"api": 2}) // one left, and none
	s.want("sluice.exposure", map[string]float64{})

	r, err := th.Reserve(t.Context(), "another", 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Settle(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	s.want("sluice.refunds", map[string]float64{"returned api": 2})
	if r, err = th.Reserve(t.Context(), "a third", 1); err != nil {
		t.Fatal(err)
	}
	if err := r.Settle(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	s.want("sluice.overruns", map[string]float64{"charged api": 5})
	if n := len(s.spans.Ended()); n != 0 {
		t.Errorf("%d spans of requests that nobody traces", n)
	}
}

// A policy for each tenant, say, must not make a series for each tenant.
func TestPoliciesAreBounded(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t, otelthrottle.Config{MaxPolicies: 3})
	n := 0
	th := s.throttler(throttler.Config{
		Policy: api(limit.PerHour(4)),
		PolicyFor: func(context.Context, string) *limit.Policy {
			n++
			return &limit.Policy{Name: fmt.Sprint("tenant-", n), Limits: []limit.Limit{limit.PerHour(4)}}
		},
	})
	for range 10 {
		if _, err := th.Allow(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	s.want("sluice.decisions", map[string]float64{
		"exact allowed tenant-1 local": 1, "exact allowed tenant-2 local": 1, "exact allowed tenant-3 local": 1,
		"exact allowed _OTHER local": 7,
	})
}

func TestNodes(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t, otelthrottle.Config{})
	r, err := router.New([]router.NodeGroup{
		{Name: "eu-1", Weight: 1, Primary: newMemory(t), Replicas: []backend.Backend{newMemory(t)}},
	}, router.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if err := s.observer.WatchNodes(func() []otelthrottle.Node { return nodesOf(r) }); err != nil {
		t.Fatal(err)
	}
	s.want("sluice.node.clock_offset", map[string]float64{}) // a memory has no server to ask
	s.want("sluice.node.breaker", map[string]float64{
		"closed eu-1 primary primary": 1, "half-open eu-1 primary primary": 0, "open eu-1 primary primary": 0,
		"closed eu-1 replica-1 replica": 1, "half-open eu-1 replica-1 replica": 0, "open eu-1 replica-1 replica": 0,
	})
	s.want("sluice.replica.readable", map[string]float64{"eu-1 replica-1 replica": 1})
	s.want("sluice.replica.age", map[string]float64{"eu-1 replica-1 replica": 0})
}

// TestNodeOfRedis: a server tells its clock and the round trip, and what becomes of it is an event.
func TestNodeOfRedis(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	s := newTelemetry(t, otelthrottle.Config{})
	r := newRouter(t, server, router.Config{
		Heartbeat: 20 * time.Millisecond, OpenFor: time.Hour, OnEvent: s.onEvent,
	})
	if err := s.observer.WatchNodes(func() []otelthrottle.Node { return nodesOf(r) }); err != nil {
		t.Fatal(err)
	}
	node := "eu-1 " + server.Addr + " primary"
	await(t, "a heartbeat", func() bool { return len(s.series("sluice.node.rtt")) > 0 })
	if rtt := s.series("sluice.node.rtt")[node]; rtt <= 0 || rtt > 5 {
		t.Errorf("round trip %v s", rtt)
	}
	if offset, ok := s.series("sluice.node.clock_offset")[node]; !ok || offset == 0 || max(offset, -offset) > 5 { // it is this host's clock
		t.Errorf("clock %v s ahead, %t", offset, ok)
	}
	s.want("sluice.replica.age", map[string]float64{})

	server.Kill()
	await(t, "the breaker opens", func() bool { return s.series("sluice.node.breaker")["open "+node] == 1 })
	await(t, "its event", func() bool { return len(s.events.all()) > 0 })
	e := s.events.all()[0]
	if e.name != "sluice.node.breaker_opened" || e.severity != "WARN" || e.attrs["sluice.node"] != server.Addr ||
		e.attrs["sluice.group"] != "eu-1" {
		t.Errorf("%+v, want the breaker's", e)
	}
}

// TestHandedOverByARouter: a topology that changes moves keys, which is counted and in their spans.
func TestHandedOverByARouter(t *testing.T) {
	t.Parallel()
	first, second := testserver.Redis(t), testserver.Redis(t)
	s := newTelemetry(t, otelthrottle.Config{})
	r := newRouter(t, first, router.Config{})
	if err := s.observer.WatchRouter("counts", func() otelthrottle.RouterStats { return otelthrottle.RouterStats(r.Stats()) }); err != nil {
		t.Fatal(err)
	}
	th := s.throttler(throttler.Config{Backend: r, Policy: api(limit.PerHour(10))})
	s.request(th, 1)
	next := router.Topology{Epoch: 2, Groups: []router.Group{{Name: "eu-2", Primary: second.Addr}}}
	if err := r.Update(next); err != nil {
		t.Fatal(err)
	}
	for _, want := range []map[string]string{
		{"sluice.handed_over": "true", "sluice.group": "eu-2", "sluice.remaining": "8"},
		{"sluice.handed_over": "-", "sluice.group": "eu-2", "sluice.remaining": "7"},
	} {
		_, made := s.request(th, 1)
		made["ratelimit api"][0].has(t, want)
	}
	s.want("sluice.router.handovers", map[string]float64{"counts": 1})
	s.want("sluice.router.redirects", map[string]float64{"counts": 0})
	s.want("sluice.router.bounded", map[string]float64{"counts": 0})
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t, otelthrottle.Config{})
	onEvent := s.onEvent
	onEvent(router.Event{Kind: router.RoleChanged, Group: "eu-1", Node: "10.0.0.1:6379", From: "primary", To: "replica"})
	onEvent(router.Event{Kind: router.Misconfigured, Time: time.Now(), Err: errors.New("NOPERM"), Lost: 2})
	onEvent(router.Event{Kind: router.LinkUp})
	events := s.events.all()
	if len(events) != 3 {
		t.Fatalf("%d events, want 3", len(events))
	}
	for i, want := range []event{
		{name: "sluice.node.role_changed", severity: "WARN", body: "role changed", attrs: map[string]string{
			"sluice.group": "eu-1", "sluice.node": "10.0.0.1:6379", "sluice.from": "primary", "sluice.to": "replica",
		}},
		{name: "sluice.node.misconfigured", severity: "ERROR", body: "misconfigured", attrs: map[string]string{
			"exception.message": "NOPERM", "sluice.lost": "2",
		}},
		{name: "sluice.node.link_up", severity: "INFO", body: "link up"},
	} {
		got := events[i]
		if got.name != want.name || got.severity != want.severity || got.body != want.body {
			t.Errorf("%+v, want %+v", got, want)
		}
		for name, value := range want.attrs {
			if got.attrs[name] != value {
				t.Errorf("%s: %s = %q, want %q", got.name, name, got.attrs[name], value)
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	o, err := otelthrottle.New(otelthrottle.Config{NearLimit: 2, MaxPolicies: -1})
	joined, ok := err.(interface{ Unwrap() []error })
	if o != nil || !ok || len(joined.Unwrap()) != 2 {
		t.Errorf("%v, %v, want both problems", o, err)
	}
	if o, err := otelthrottle.New(otelthrottle.Config{TracerProvider: (*sdktrace.TracerProvider)(nil)}); o != nil || err == nil {
		t.Errorf("%v, %v, want a refusal of a nil provider", o, err)
	}
}
