//go:build unix

package sdktest

import (
	"net"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

func TestAllowedAndDenied(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	s := newTelemetry(t, otelthrottle.Config{})
	th := s.throttler(throttler.Config{Backend: newRouter(t, server, router.Config{}), Policy: api(limit.PerHour(3))})
	host, port, _ := net.SplitHostPort(server.Addr)
	for _, want := range []map[string]string{
		{"sluice.outcome": "allowed", "sluice.remaining": "1", "sluice.retry_after": "-"},
		{"sluice.outcome": "denied", "sluice.remaining": "1"},
	} {
		d, made := s.request(th, 2)
		decision := made["ratelimit api"][0]
		decision.has(t, want)
		decision.has(t, map[string]string{
			"sluice.policy": "api", "sluice.cost": "2", "sluice.source": "primary", "sluice.guarantee": "exact",
			"sluice.limit": "3/1h", "sluice.group": "eu-1", "sluice.node": server.Addr, "sluice.role": "primary",
			"sluice.script": "takesfixed", "sluice.side": "-", "sluice.lease": "-", "sluice.cause": "-", "error.type": "-",
			"feature_flag.key": "-", "feature_flag.version": "-",
		})
		if decision.Status().Code != codes.Unset || d.Allowed && decision.attrs["sluice.retry_after"] != "" {
			t.Errorf("status %v, attributes %v", decision.Status(), decision.attrs)
		}
		calls := made["EVALSHA "+server.Addr]
		if len(calls) != 1 || len(made) != 2 {
			t.Fatalf("spans %v, want one call", made)
		}
		calls[0].has(t, map[string]string{
			"db.system.name": "redis", "db.operation.name": "EVALSHA", "db.stored_procedure.name": "takesfixed",
			"server.address": host, "server.port": port, "sluice.op": "take", "error.type": "-", "db.operation.batch.size": "-",
			"db.response.status_code": "-",
		})
	}
}

func TestLeased(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	s := newTelemetry(t, otelthrottle.Config{})
	ls, err := lease.New(newRouter(t, server, router.Config{}), lease.Config{Batch: 10, Steady: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ls.Close() })
	if err := s.observer.WatchLease("hot", ls); err != nil {
		t.Fatal(err)
	}
	th := s.throttler(throttler.Config{Backend: ls, Policy: api(limit.PerHour(100_000))})
	for _, test := range []struct {
		use, source string
		calls       int
	}{{"forwarded", "primary", 1}, {"fetched", "primary", 1}, {"spent", "leased", 0}} {
		_, made := s.request(th, 1)
		made["ratelimit api"][0].has(t, map[string]string{"sluice.lease": test.use, "sluice.source": test.source})
		if n := len(made["EVALSHA "+server.Addr]); n != test.calls {
			t.Errorf("%s: %d calls, want %d", test.use, n, test.calls)
		}
	}
	s.want("sluice.lease.takes", map[string]float64{"hot spent": 1, "hot denied": 0, "hot owed": 0, "hot forwarded": 1})
	s.want("sluice.lease.stranded", map[string]float64{"hot": 8})
	s.want("sluice.lease.efficiency", map[string]float64{"hot": 1.0 / 3})
	if err := s.observer.Close(); err != nil {
		t.Error(err)
	}
	s.want("sluice.lease.keys", map[string]float64{})
}

// TestOnCredit: what is on credit, and next to it, is exposure of one cause.
func TestOnCredit(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	s := newTelemetry(t, otelthrottle.Config{})
	ls, err := lease.New(newRouter(t, server, router.Config{}), lease.Config{Batch: -1, Slack: 0.5, Processes: 2, Flush: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ls.Close() })
	if err := s.observer.WatchLease("hot", ls); err != nil {
		t.Fatal(err)
	}
	th := s.throttler(throttler.Config{Backend: ls, Policy: api(limit.PerHour(100_000))})
	for _, use := range []string{"forwarded", "owed"} {
		_, made := s.request(th, 1)
		made["ratelimit api"][0].has(t, map[string]string{"sluice.lease": use, "sluice.cause": "on_credit"})
	}
	s.want("sluice.exposure", map[string]float64{"on_credit bounded api primary": 1, "on_credit bounded api on_credit": 1})
	s.want("sluice.lease.takes", map[string]float64{"hot spent": 0, "hot denied": 0, "hot owed": 1, "hot forwarded": 1})
	s.want("sluice.lease.debt", map[string]float64{"hot": 1})
	s.want("sluice.lease.charges", map[string]float64{"hot": 0})
}

func TestFallback(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	s := newTelemetry(t, otelthrottle.Config{})
	th := s.throttler(throttler.Config{Backend: newRouter(t, server, router.Config{Heartbeat: -1}), Policy: api(limit.PerHour(3))})
	server.Kill()
	_, made := s.request(th, 1)
	made["ratelimit api"][0].has(t, map[string]string{
		"sluice.outcome": "allowed", "sluice.source": "fallback", "sluice.guarantee": "bounded", "sluice.cause": "unavailable",
		"sluice.group": "eu-1", "sluice.node": server.Addr,
	})
	call := made["EVALSHA "+server.Addr]
	if len(call) != 1 || call[0].Status().Code != codes.Error {
		t.Fatalf("spans %v, want a call that failed", made)
	}
	call[0].has(t, map[string]string{"error.type": "unavailable", "db.response.status_code": "-"})
	s.want("sluice.decisions", map[string]float64{"bounded allowed api fallback": 1})
	s.want("sluice.exposure", map[string]float64{"unavailable bounded api fallback": 1})
	s.want("sluice.outages", map[string]float64{"unavailable local api": 1})
	events := s.events.all()
	if len(events) != 1 || events[0].name != "sluice.outage" || events[0].severity != "WARN" || !events[0].traced ||
		events[0].attrs["sluice.cause"] != "unavailable" || events[0].attrs["sluice.failure_policy"] != "local" {
		t.Errorf("events %+v, want the outage", events)
	}
}

// TestRefusedByTheServer: the server's word for its error is exported by the conventions.
func TestRefusedByTheServer(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	s := newTelemetry(t, otelthrottle.Config{})
	th := s.throttler(throttler.Config{Backend: newRouter(t, server, router.Config{}), Policy: api(limit.PerHour(3))})
	_, made := s.request(th, 1)
	made["ratelimit api"][0].has(t, map[string]string{"sluice.source": "fallback", "sluice.cause": "unavailable"})
	call := made["EVALSHA "+server.Addr]
	if len(call) != 1 || call[0].Status().Code != codes.Error {
		t.Fatalf("spans %v, want a call that failed", made)
	}
	call[0].has(t, map[string]string{"db.response.status_code": "OOM", "error.type": "OOM"})
}

func TestMigrated(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	s := newTelemetry(t, otelthrottle.Config{})
	useNew := false
	d, err := dual.New(dual.Config{
		Old: newMemory(t), New: newRouter(t, server, router.Config{}), CarryOver: true,
		Decide: func(string) (bool, uint64) { return useNew, map[bool]uint64{true: 7}[useNew] },
		Flag:   "to-redis",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if err := s.observer.WatchDual("counts", d); err != nil {
		t.Fatal(err)
	}
	th := s.throttler(throttler.Config{Backend: d, Policy: api(limit.PerHour(10))})
	for _, want := range []map[string]string{
		{"sluice.side": "old", "sluice.handed_over": "true", "sluice.group": "-", "sluice.remaining": "9",
			"feature_flag.key": "to-redis", "feature_flag.result.variant": "old"},
		{"sluice.side": "old", "sluice.handed_over": "-", "sluice.group": "-", "sluice.remaining": "8"},
		{"sluice.side": "new", "sluice.handed_over": "true", "sluice.group": "eu-1", "sluice.remaining": "7"},
		{"sluice.side": "new", "sluice.handed_over": "-", "sluice.group": "eu-1", "sluice.remaining": "6",
			"feature_flag.key": "to-redis", "feature_flag.result.variant": "new", "feature_flag.version": "7"},
	} {
		_, made := s.request(th, 1)
		made["ratelimit api"][0].has(t, want)
		useNew = useNew || want["sluice.remaining"] == "8"
		if calls := len(made["EVALSHA "+server.Addr]); want["sluice.remaining"] == "7" && calls != 2 {
			t.Errorf("%d calls of a handover to the new side, want 2", calls)
		}
	}
	s.want("sluice.dual.decisions", map[string]float64{"counts old": 2, "counts new": 2})
	s.want("sluice.dual.handovers", map[string]float64{"counts": 2})
}

func TestShadowed(t *testing.T) {
	t.Parallel()
	s := newTelemetry(t, otelthrottle.Config{})
	old, policy := newMemory(t), api(limit.PerHour(10))
	d, err := dual.New(dual.Config{
		Old: old, New: newMemory(t), Shadow: func(string) bool { return true },
		Decide: func(string) (bool, uint64) { return false, 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if err := s.observer.WatchDual("counts", d); err != nil {
		t.Fatal(err)
	}
	th := s.throttler(throttler.Config{Backend: d, Policy: policy})
	_, made := s.request(th, 1)
	made["ratelimit api"][0].has(t, map[string]string{"sluice.side": "old", "sluice.shadowed": "true", "sluice.outcome": "allowed"})
	await(t, "the first shadow call", func() bool { return d.Stats().Shadow.Agreed == 1 })
	if _, err := old.Take(t.Context(), backend.Request{Key: secret, Policy: &policy, Cost: 9}); err != nil { // behind its back
		t.Fatal(err)
	}
	_, made = s.request(th, 1)
	made["ratelimit api"][0].has(t, map[string]string{"sluice.side": "old", "sluice.shadowed": "true", "sluice.outcome": "denied"})
	await(t, "the second one", func() bool { return d.Stats().Shadow.Allowed == 1 })
	s.want("sluice.dual.shadows", map[string]float64{
		"counts agreed": 1, "counts denied": 0, "counts allowed": 1, "counts remaining": 0, "counts failed": 0, "counts dropped": 0,
	})
}

// Spans are made where somebody records, or always, and their errors say so.
func TestWhoIsTraced(t *testing.T) {
	t.Parallel()
	for _, always := range []bool{false, true} {
		s := newTelemetry(t, otelthrottle.Config{Always: always})
		th := s.throttler(throttler.Config{Policy: api(limit.PerHour(3))})
		if _, err := th.AllowN(t.Context(), secret, 4); err == nil {
			t.Fatal("a cost that can't fit was no error")
		}
		spans := s.spans.Ended()
		if (len(spans) == 1) != always {
			t.Errorf("always %t: %d spans of a request that is not traced", always, len(spans))
		}
		for _, o := range spans {
			span{o, attributes(o.Attributes())}.has(t, map[string]string{
				"sluice.outcome": "error", "error.type": "cost_exceeds_limit", "sluice.source": "-",
			})
			if o.Status().Code != codes.Error {
				t.Errorf("status %v", o.Status())
			}
		}
		s.want("sluice.decisions", map[string]float64{"cost_exceeds_limit error api": 1})
	}
}

// A list asks no limit, so that there is none to tell of, nor what is left of it or when to come again.
func TestListed(t *testing.T) {
	t.Parallel()
	for outcome, list := range map[string]throttler.Config{"allowed": {Allow: []string{"*"}}, "denied": {Deny: []string{"*"}}} {
		s := newTelemetry(t, otelthrottle.Config{})
		list.Policy = api(limit.PerHour(3))
		_, made := s.request(s.throttler(list), 2)
		made["ratelimit api"][0].has(t, map[string]string{
			"sluice.outcome": outcome, "sluice.source": "listed", "sluice.guarantee": "exact",
			"sluice.limit": "-", "sluice.remaining": "-", "sluice.retry_after": "-",
		})
	}
}

// TestTwoObservers: in one chain each observer ends its own span, and makes those of calls below it.
func TestTwoObservers(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	first, second := newTelemetry(t, otelthrottle.Config{Always: true}), newTelemetry(t, otelthrottle.Config{Always: true})
	th := first.throttler(throttler.Config{
		Backend: newRouter(t, server, router.Config{}), Policy: api(limit.PerHour(3)), Observer: second.observer,
	})
	if _, err := th.Allow(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*telemetry{"first": first, "second": second} {
		ended := make(map[string]sdktrace.ReadOnlySpan)
		for _, span := range s.spans.Ended() {
			ended[span.Name()] = span
		}
		decision, call := ended["ratelimit api"], ended["EVALSHA "+server.Addr]
		if len(s.spans.Started()) != 2 || decision == nil || call == nil {
			t.Fatalf("%s: %d spans began, %v ended, want a decision and a call", name, len(s.spans.Started()), ended)
		}
		if call.Parent().SpanID() != decision.SpanContext().SpanID() || len(decision.Attributes()) < 5 {
			t.Errorf("%s: the call belongs to %s, the decision is %s with %v", name, call.Parent().SpanID(),
				decision.SpanContext().SpanID(), decision.Attributes())
		}
	}
}
