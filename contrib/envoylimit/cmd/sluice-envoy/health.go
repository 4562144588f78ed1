package main

import (
	"context"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

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
