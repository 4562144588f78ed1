//go:build unix

package pagetest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memcached"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/internal/testserver"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/registry"
)

// hostile are keys that clients would choose to attack an operator.
var hostile = []string{
	`<script>alert(1)</script>`, `<img src=x onerror=alert(2)>`, `"><svg/onload=alert(3)>`, "user:\u202egnp.exe", "\x1b[31mred\x00",
}

// unhurried is how long a call to a server that is up may take on a busy machine.
const unhurried = 30 * time.Second

// application is a service that leases from groups of Redis, and moves there from Memcached.
type application struct {
	recorder  *insight.Recorder
	throttler *throttler.Throttler
	primary   *testserver.Server // of the first group
	handler   http.Handler
}

func newApplication(t testing.TB) *application {
	t.Helper()
	primaries := []*testserver.Server{testserver.Redis(t), testserver.Redis(t)}
	replica := testserver.Replica(t, primaries[0])
	groups, err := router.Open(router.Topology{Groups: []router.Group{
		{Name: "eu-1", Primary: primaries[0].Addr, Replicas: []string{replica.Addr}}, {Name: "eu-2", Primary: primaries[1].Addr},
	}}, router.Config{Backend: redisbackend.Config{Timeout: unhurried}})
	if err != nil {
		t.Fatal(err)
	}
	old, err := memcached.New([]string{testserver.Memcached(t).Addr}, memcached.Config{Timeout: unhurried})
	if err != nil {
		t.Fatal(err)
	}
	flag, err := featureflag.New(featureflag.Config{Name: "limits-in-redis", Source: featureflag.Static(80)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Close() })
	migrating, err := dual.New(dual.Config{Old: old, New: groups, Decide: flag.Decide, CarryOver: true})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := lease.New(migrating, lease.Config{Processes: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leases.Close() })

	near, err := insight.NewNearLimit(insight.NearLimitConfig{})
	if err != nil {
		t.Fatal(err)
	}
	policies, err := registry.New([]byte(`{"version": "2026-11-22", "policies": {"free": ["20/1m", "240/1h"], "pro": ["200/1s+400"]},
		"default": "free", "keys": {"pro:*": "pro"}, "deny": ["banned"]}`), registry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = policies.Close() })
	a := &application{primary: primaries[0]}
	a.recorder, err = insight.New(insight.Config{Registry: policies, WatchedKeys: 1000, NearLimit: near})
	if err != nil {
		t.Fatal(err)
	}
	a.throttler, err = throttler.New(throttler.Config{
		Backend: leases, Processes: 2, Observer: throttler.Observers(a.recorder, near),
		Policies: policies,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.throttler.Close()
		_ = near.Close()
	})
	a.handler = insight.Handler(a.recorder, insight.HandlerConfig{
		ClearKeys: true,
		Nodes: func() (nodes []insight.Node) {
			for _, n := range groups.Nodes() {
				nodes = append(nodes, insight.Node{
					Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Latency: n.Latency,
					LastHeartbeat: n.LastHeartbeat, RTT: n.Heartbeat.RTT, Ahead: n.Heartbeat.Ahead, Age: n.Age,
				})
			}
			return nodes
		},
		Router: func() insight.RouterStats { return insight.RouterStats(groups.Stats()) },
		Lease:  leases.Stats,
		Dual:   migrating.Stats,
		Flag: func() insight.Flag {
			s := flag.State()
			return insight.Flag{Name: s.Name, Percent: s.Percent, Version: s.Version, Reason: string(s.Reason), Stale: s.Stale}
		},
	})
	return a
}

// ask takes for a key n times.
func (a *application) ask(t testing.TB, key string, n int) {
	t.Helper()
	for range n { // a test's context ends before its cleanup stops the traffic
		if _, err := a.throttler.Allow(context.WithoutCancel(t.Context()), key); err != nil {
			t.Error(err)
		}
	}
}

// traffic asks for many keys, in waves, until stop is called.
func (a *application) traffic(t testing.TB) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
			case <-stopped:
				return
			}
			a.ask(t, fmt.Sprintf("pro:tenant-%d", i%3), 4+(i/250)%3*3)
			a.ask(t, fmt.Sprintf("user-%d", i*i%307), 1+i/400%2)
			if i%9 == 0 {
				a.ask(t, fmt.Sprintf("scraper-%d", i%7), 3)
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(stopped)
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// serve serves a handler until stop is called. An empty address is any free port.
func serve(t testing.TB, address string, handler http.Handler) (url string, stop func()) {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/sluice", handler)
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // http.ErrServerClosed
	}()
	stop = func() {
		_ = server.Close()
		<-done
	}
	t.Cleanup(stop)
	return "http://" + listener.Addr().String() + "/debug/sluice", stop
}
