package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/contrib/envoylimit"
	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/otelthrottle"
)

// addresses are where the command listens.
type addresses struct{ grpc, http, debug, metrics string }

// serviceName is that of the health service, as in the reference.
const serviceName = "ratelimit"

// server is everything that runs, in the order of opening.
type server struct {
	settings *settings
	log      *slog.Logger
	closers  []func() error
	failed   chan error // of what serves

	telemetry *telemetry
	metrics   *metrics
	recorder  *insight.Recorder
	observer  *otelthrottle.Observer
	counts    backend.Backend
	groups    *router.Router // nil without groups
	service   *envoylimit.Service

	grpc    *grpc.Server
	health  *healthServer
	healthy atomic.Bool
}

// run serves until ctx ends, and then drains.
func run(ctx context.Context, s *settings, out io.Writer, started func(addresses)) (err error) {
	srv := &server{settings: s, log: newLogger(s, out), failed: make(chan error, 8)}
	defer func() {
		for _, f := range slices.Backward(srv.closers) {
			err = errors.Join(err, f())
		}
	}()
	for _, env := range s.unused {
		srv.log.Warn("a setting has no meaning here", "name", env)
	}
	if err := srv.open(ctx); err != nil {
		return err
	}
	at, err := srv.listen()
	if err != nil {
		return err
	}
	stop := srv.watchHealth()
	srv.log.Info("serving", "grpc", at.grpc, "http", at.http, "operators", at.debug)
	started(at)
	select {
	case <-ctx.Done():
	case err = <-srv.failed:
	}
	stop()
	srv.drain()
	return err
}

func (srv *server) owns(f func() error) { srv.closers = append(srv.closers, f) }

// open opens what decides, from telemetry up to the service.
func (srv *server) open(ctx context.Context) (err error) {
	s := srv.settings
	redisbackend.LogTo(srv.log)
	srv.owns(func() error { redisbackend.LogTo(nil); return nil })
	if srv.telemetry, err = newTelemetry(ctx, s); err != nil {
		return err
	}
	srv.owns(func() error {
		if err := srv.telemetry.close(ctx); err != nil {
			srv.log.Warn("telemetry was not sent to the end", "err", err)
		}
		return nil
	})
	if srv.metrics, err = newMetrics(srv.telemetry.own); err != nil {
		return err
	}
	if srv.recorder, err = insight.New(insight.Config{WatchedKeys: 1000}); err != nil {
		return err
	}
	observed := otelthrottle.Config{MeterProvider: srv.telemetry.meters}
	if srv.telemetry.traces != nil {
		observed.TracerProvider = srv.telemetry.traces
	}
	if srv.observer, err = otelthrottle.New(observed); err != nil {
		return err
	}
	srv.owns(srv.observer.Close)
	if srv.counts, srv.groups, err = openCounts(s, srv.onEvent); err != nil {
		return err
	}
	srv.owns(srv.counts.Close)
	if srv.groups != nil {
		if err := errors.Join(
			srv.observer.WatchRouter("limits", func() otelthrottle.RouterStats { return otelthrottle.RouterStats(srv.groups.Stats()) }),
			srv.observer.WatchNodes(srv.nodes),
		); err != nil {
			return err
		}
	}
	return srv.openService()
}

func (srv *server) openService() error {
	s := srv.settings
	files, err := rules.Open(filepath.Join(s.root, s.subdirectory, s.directory), rules.FilesConfig{
		Config: rules.Config{MergeDomains: s.mergeDomains}, Refresh: s.refresh, Logger: srv.log,
		OnReload: func(err error) {
			if err != nil {
				srv.metrics.refused.Add(1)
			} else {
				srv.metrics.reloads.Add(1)
			}
		},
	})
	if err != nil {
		return err
	}
	srv.metrics.reloads.Add(1)
	cfg := envoylimit.Config{
		Rules: files.Set(), Shadow: s.shadow, Quota: s.quota, Metadata: s.metadata, FullStatuses: s.fullStatuses, NearLimit: s.nearLimit,
		MaxRequests: s.maxRequests, MaxDescriptors: s.maxDescriptors,
		Throttler: throttler.Config{
			Backend: srv.counts, Failure: s.failurePolicy(), OpenCap: s.openCap, Processes: s.processes,
			Observer: throttler.Observers(srv.recorder, srv.observer), Logger: srv.log,
		},
	}
	if s.headers {
		cfg.Headers = envoylimit.Headers{Limit: s.limitHeader, Remaining: s.remainingHeader, Reset: s.resetHeader}
	}
	cfg.Headers.IETF = s.ietf
	if s.localCache > 0 {
		cfg.Lease = &lease.Config{Batch: -1, MaxKeys: max(1, s.localCache/viewBytes)}
	}
	if srv.service, err = envoylimit.New(cfg); err != nil {
		return err
	}
	srv.owns(srv.service.Close)
	srv.metrics.service.Store(srv.service)
	files.Follow(srv.service.SetRules)
	srv.owns(files.Close)
	return nil
}

// viewBytes is about what a key of a local view takes.
const viewBytes = 700

// Bounds of what a client may make this process hold. The streams of a connection are more than SLUICE_MAX_REQUESTS, because beyond
// that a request is to be refused at once.
const (
	maxMessage = 64 << 10
	maxStreams = 10_000
)

// listen serves all ports.
func (srv *server) listen() (at addresses, err error) {
	s := srv.settings
	opts := []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: s.maxAge, MaxConnectionAgeGrace: s.maxAgeGrace}),
		grpc.ChainUnaryInterceptor(srv.metrics.unary), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
	}
	if srv.telemetry.traces != nil {
		opts = append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(srv.telemetry.traces), otelgrpc.WithPropagators(propagator))))
	}
	if s.useTLS {
		cfg, err := serverTLS(s, func(err error) { srv.log.Error("the new certificate can't be used", "err", err) })
		if err != nil {
			return at, err
		}
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg)))
	}
	srv.grpc, srv.health = grpc.NewServer(opts...), newHealthServer()
	pb.RegisterRateLimitServiceServer(srv.grpc, srv.service)
	healthpb.RegisterHealthServer(srv.grpc, srv.health)
	reflection.Register(srv.grpc)
	listener, err := srv.listenGRPC()
	if err != nil {
		return at, err
	}
	at.grpc = listener.Addr().String()
	var running sync.WaitGroup
	running.Go(func() {
		if err := srv.grpc.Serve(listener); err != nil {
			srv.failed <- err
		}
	})
	srv.owns(func() error { srv.health.end(); srv.grpc.Stop(); running.Wait(); return nil })
	if at.http, err = srv.serve(net.JoinHostPort(s.host, strconv.Itoa(s.port)), public(srv.service, &srv.healthy)); err != nil {
		return at, err
	}
	at.debug, err = srv.serve(net.JoinHostPort(s.debugHost, strconv.Itoa(s.debugPort)),
		operators(s, srv.service, srv.recorder, srv.groups, srv.telemetry))
	if err != nil || !s.prometheus {
		return at, err
	}
	mux := http.NewServeMux()
	mux.Handle(s.prometheusPath, srv.telemetry.handler())
	at.metrics, err = srv.serve(s.prometheusAddr, mux)
	return at, err
}

func (srv *server) listenGRPC() (net.Listener, error) {
	s := srv.settings
	if s.grpcUDS == "" {
		return net.Listen("tcp", net.JoinHostPort(s.grpcHost, strconv.Itoa(s.grpcPort)))
	}
	if info, err := os.Lstat(s.grpcUDS); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(s.grpcUDS); err != nil { // of a process that was killed
			return nil, err
		}
	}
	return net.Listen("unix", s.grpcUDS)
}

// serve serves HTTP until the command closes.
func (srv *server) serve(address string, h http.Handler) (at string, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(srv.log.Handler(), slog.LevelWarn)}
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			srv.failed <- fmt.Errorf("%s: %w", address, err)
		}
	})
	srv.owns(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		running.Wait()
		return nil
	})
	return listener.Addr().String(), nil
}

func (srv *server) nodes() (all []otelthrottle.Node) {
	for _, n := range srv.groups.Nodes() {
		all = append(all, otelthrottle.Node{
			Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Age: n.Age,
			RTT: n.Heartbeat.RTT, Ahead: n.Heartbeat.Ahead,
		})
	}
	return all
}

func (srv *server) onEvent(e router.Event) {
	srv.log.Warn("sluice: "+e.Kind.String(), "group", e.Group, "node", e.Node, "from", e.From, "to", e.To, "err", e.Err)
}
