package main

import (
	"context"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// healthServer is a health service whose Watches end: a graceful stop would wait for them.
type healthServer struct {
	*health.Server
	ended context.Context
	end   func() // ends the Watches
}

func newHealthServer() *healthServer {
	ctx, cancel := context.WithCancel(context.Background())
	return &healthServer{Server: health.NewServer(), ended: ctx, end: cancel}
}

// watch is the stream of a Watch.
type watch struct {
	healthpb.Health_WatchServer
	ctx context.Context
}

func (w *watch) Context() context.Context { return w.ctx }

// Watch implements the protocol.
func (h *healthServer) Watch(req *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.ended, cancel)()
	return h.Server.Watch(req, &watch{stream, ctx})
}

// healthEvery is how often the health is determined.
const healthEvery = time.Second

// watchHealth says whether the service is fit, until stop is called.
func (srv *server) watchHealth() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	srv.setHealth(srv.fit(ctx))
	go func() {
		defer close(done)
		ticker := time.NewTicker(healthEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				srv.setHealth(srv.fit(ctx))
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// fit reports whether there is a domain, and a server that answers, as far as the settings want these.
func (srv *server) fit(ctx context.Context) bool {
	if srv.settings.oneConfig {
		some := false
		for range srv.service.Rules().Domains() {
			some = true
			break
		}
		if !some {
			return false
		}
	}
	return !srv.settings.redisHealth || ping(ctx, srv.counts, srv.groups)
}

func (srv *server) setHealth(healthy bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if healthy {
		status = healthpb.HealthCheckResponse_SERVING
	}
	srv.healthy.Store(healthy)
	srv.health.SetServingStatus(serviceName, status)
	srv.health.SetServingStatus("", status)
}

// drain tells gateways to go elsewhere, and answers the requests under way.
func (srv *server) drain() {
	srv.setHealth(false)
	time.Sleep(srv.settings.drainDelay)
	srv.health.end()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		srv.grpc.GracefulStop()
	}()
	timer := time.NewTimer(srv.settings.drain)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		srv.log.Warn("requests under way were cut off")
		srv.grpc.Stop()
		<-stopped
	}
}
