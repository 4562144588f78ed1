package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"go.opentelemetry.io/contrib/bridges/otelslog"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/featureflag"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

const (
	flagName  = "to-redis"
	flagEvery = time.Second
	settle    = 10 * time.Second
)

// The policies: a tenant has much, of which leases are made, a user has little.
var (
	apiPolicy    = limit.Policy{Name: "api", Limits: []limit.Limit{limit.Fixed(100_000, 10*time.Second).Named("tenant")}}
	searchPolicy = limit.Policy{Name: "search", Limits: []limit.Limit{
		limit.Fixed(20, 2*time.Second).Named("burst"), limit.Sliding(60, 10*time.Second, time.Second).Named("steady"),
	}}
)

// stricter is what the service would like to enforce, and only counts for now.
var stricter = limit.Policy{Name: "stricter", Limits: []limit.Limit{limit.Fixed(10, 2*time.Second)}}

// application is the service.
type application struct {
	sdk      *sdk
	observer *otelthrottle.Observer
	flags    featureflag.Source
	closers  []io.Closer // in the order of opening

	api, search *throttler.Throttler
}

// openApplication builds what counts, from the servers up: a router, a Dual that moves keys from this process's memory to
// it by a flag, leases on top; and has all of it observed.
func openApplication(ctx context.Context, topology router.Topology, dir string, s *sdk) (app *application, err error) {
	app = &application{sdk: s, flags: featureflag.File(filepath.Join(dir, "flags.json"))}
	defer func() {
		if err != nil {
			app.close()
		}
	}()
	redisbackend.LogTo(otelslog.NewLogger("redis", otelslog.WithLoggerProvider(s.loggers)))
	app.observer, err = otelthrottle.New(otelthrottle.Config{
		TracerProvider: s.traces, MeterProvider: s.meters, LoggerProvider: s.loggers,
	})
	if err != nil {
		return nil, err
	}
	app.owns(app.observer)
	flag, err := app.openFlag(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := app.openCounts(topology, flag)
	if err != nil {
		return nil, err
	}
	if app.api, err = app.throttler(counts, apiPolicy); err != nil {
		return nil, err
	}
	app.search, err = app.throttler(counts, searchPolicy)
	return app, err
}

func (a *application) owns(c io.Closer) { a.closers = append(a.closers, c) }

func (a *application) close() {
	for _, c := range slices.Backward(a.closers) {
		_ = c.Close()
	}
	redisbackend.LogTo(nil)
	_ = a.sdk.close()
}

func (a *application) openFlag(ctx context.Context) (*featureflag.Flag, error) {
	if _, err := featureflag.Set(ctx, a.flags, flagName, 10); err != nil {
		return nil, err
	}
	flag, err := featureflag.New(featureflag.Config{
		Name: flagName, Source: a.flags, Refresh: flagEvery,
		OnChange: func(s featureflag.State) { a.observer.EmitFlag(flagState(s)) },
	})
	if err != nil {
		return nil, err
	}
	a.owns(flag)
	if err := flag.Ready(ctx); err != nil {
		return nil, err
	}
	return flag, a.observer.WatchFlag(func() otelthrottle.Flag { return flagState(flag.State()) })
}

func flagState(s featureflag.State) otelthrottle.Flag {
	return otelthrottle.Flag{
		Name: s.Name, Percent: s.Percent, Version: s.Version, Reason: string(s.Reason), Stale: s.Stale, Err: s.Err,
	}
}

func (a *application) openCounts(topology router.Topology, flag *featureflag.Flag) (backend.Backend, error) {
	mem, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	groups, err := router.Open(topology, router.Config{OnEvent: a.onEvent})
	if err != nil {
		return nil, err
	}
	d, err := dual.New(dual.Config{
		Old: mem, New: groups, Decide: flag.Decide, Flag: flagName, CarryOver: true, Settle: settle,
		Shadow: func(key string) bool { // a fifth of the keys
			h := fnv.New32a()
			_, _ = io.WriteString(h, key)
			return h.Sum32()%5 == 0
		},
	})
	if err != nil {
		return nil, errors.Join(err, groups.Close())
	}
	ls, err := lease.New(d, lease.Config{Processes: 1, Life: 2 * time.Second})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	a.owns(ls) // and all below
	return ls, errors.Join(
		a.observer.WatchLease("limits", ls),
		a.observer.WatchDual("limits", d),
		a.observer.WatchRouter("limits", func() otelthrottle.RouterStats { return otelthrottle.RouterStats(groups.Stats()) }),
		a.observer.WatchNodes(func() []otelthrottle.Node { return nodes(groups) }),
	)
}

func (a *application) throttler(b backend.Backend, p limit.Policy) (*throttler.Throttler, error) {
	shadow, err := insight.NewShadow(insight.ShadowConfig{Backend: b, Policy: stricter, Observer: a.observer})
	if err != nil {
		return nil, err
	}
	a.owns(shadow)
	t, err := throttler.New(throttler.Config{
		Backend: b, Policy: p, Observer: throttler.Observers(a.observer, shadow),
		Logger: slog.New(slog.DiscardHandler), // the observer reports outages
	})
	if err == nil {
		a.owns(t)
	}
	return t, err
}

func (a *application) onEvent(e router.Event) {
	a.observer.EmitNode(otelthrottle.NodeEvent{
		Time: e.Time, Kind: e.Kind.String(), Group: e.Group, Node: e.Node, From: e.From, To: e.To, Err: e.Err, Lost: e.Lost,
	})
}

func nodes(groups *router.Router) []otelthrottle.Node {
	var all []otelthrottle.Node
	for _, n := range groups.Nodes() {
		all = append(all, otelthrottle.Node{
			Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Age: n.Age,
			RTT: n.Heartbeat.RTT, Ahead: n.Heartbeat.Ahead,
		})
	}
	return all
}

// handler is what the service serves, each request within a span.
func (a *application) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.sdk.metrics())
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.Handle("GET /api", limited(a.api, "X-Tenant", httplimit.Config{}, ok))
	mux.Handle("GET /search", limited(a.search, "X-User", httplimit.Config{}, ok))
	mux.Handle("GET /export", limited(a.search, "X-User", httplimit.Config{ // more than anybody has: a bug of the service
		Cost: func(*http.Request) int64 { return 1000 },
	}, ok))
	mux.Handle("GET /report", limited(a.search, "X-User", httplimit.Config{ // is given back what it did not take
		Cost:   func(*http.Request) int64 { return 3 },
		Settle: httplimit.GiveBack(1, httplimit.Outcome.NotModified),
	}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })))
	mux.Handle("GET /download", limited(a.search, "X-User", httplimit.Config{ // costs what it turned out to be
		Settle: func(_ *http.Request, o httplimit.Outcome) int64 { return o.Cost + o.Written/1024 },
	}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2048)) })))
	mux.HandleFunc("GET /usage", func(w http.ResponseWriter, r *http.Request) {
		key, err := httplimit.Header("X-User", nil)(r)
		if err != nil {
			httplimit.WriteError(w, r, err)
			return
		}
		used, err := a.search.Usage(r.Context(), key, 10*time.Second)
		if err != nil {
			httplimit.WriteError(w, r, err)
			return
		}
		fmt.Fprintln(w, used, "used in the last ten seconds")
	})
	tracer := a.sdk.traces.Tracer("telemetry")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := tracer.Start(r.Context(), r.Method, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		r = r.WithContext(ctx)
		mux.ServeHTTP(w, r)
		if r.Pattern != "" { // paths are without end, patterns are not
			span.SetName(r.Pattern)
		}
	})
}

// limited puts a limit in front of a handler, by a header that a gateway has checked.
func limited(t *throttler.Throttler, header string, cfg httplimit.Config, next http.Handler) http.Handler {
	cfg.Key = httplimit.Header(header, nil)
	m, err := httplimit.New(t, cfg)
	if err != nil {
		panic(err) // nothing in it comes from outside
	}
	return m.Wrap(next)
}

// serve serves until the function that it returns is called.
func serve(address string, handler http.Handler) (at string, stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	serving := make(chan struct{})
	go func() {
		defer close(serving)
		_ = server.Serve(listener) // http.ErrServerClosed
	}()
	return listener.Addr().String(), func() {
		_ = server.Close()
		<-serving
	}, nil
}
