package main

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/dual"
)

const (
	varName   = "sluice_migration"
	pingEvery = time.Second
)

// status is what throttlectl migrate status reads.
type status struct {
	Flag flagStatus `json:"flag"`
	Old  sideStatus `json:"old"`
	New  sideStatus `json:"new"`
	Dual dual.Stats `json:"dual"`
}

type flagStatus struct {
	Name    string  `json:"name"`
	Percent float64 `json:"percent"`
	Version uint64  `json:"version"`
	Reason  string  `json:"reason"`
	Stale   bool    `json:"stale"`
	Error   string  `json:"error"`
}

type sideStatus struct {
	Name      string `json:"name"`
	Reachable bool   `json:"reachable"`
	Error     string `json:"error"`
	RTTMicros int64  `json:"rtt_micros"`
}

// observed is how the application looks from outside: the flag as its first process sees it, and both sides.
type observed struct {
	app      *application
	old, new atomic.Pointer[sideStatus] // from the last ping
}

// watch asks both sides how they are, at most once a second and beside all requests, until ctx ends.
func (v *observed) watch(ctx context.Context) {
	for {
		v.ping(ctx)
		if pause(ctx, pingEvery) != nil {
			return
		}
	}
}

func (v *observed) ping(ctx context.Context) {
	old, new := v.app.processes[0].sides()
	v.old.Store(ping(ctx, "memcached "+v.app.servers.memcached, old))
	v.new.Store(ping(ctx, fmt.Sprintf("redis, %d groups", len(v.app.servers.topology.Groups)), new))
}

func ping(ctx context.Context, name string, side backend.Pinger) *sideStatus {
	asked := time.Now()
	switch err := side.Ping(ctx); {
	case errors.Is(err, backend.ErrClosed):
		return &sideStatus{Name: name, Error: "left behind: the release is over"}
	case err != nil:
		return &sideStatus{Name: name, Error: err.Error()}
	}
	return &sideStatus{Name: name, Reachable: true, RTTMicros: time.Since(asked).Microseconds()}
}

func (v *observed) status() any {
	f := v.app.processes[0].flag.State()
	s := status{
		Flag: flagStatus{Name: f.Name, Percent: f.Percent, Version: f.Version, Reason: string(f.Reason), Stale: f.Stale},
		Old:  *v.old.Load(), New: *v.new.Load(), Dual: v.app.stats(),
	}
	if f.Err != nil {
		s.Flag.Error = f.Err.Error()
	}
	return s
}

// serve publishes the status at /debug/vars of address, until the function that it returns is called. An application
// would call expvar.Publish and serve expvar.Handler; here several runs may share a process, as they do in the tests.
func (v *observed) serve(address string) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	v.ping(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		v.watch(ctx)
	}()

	vars := new(expvar.Map).Init()
	vars.Set(varName, expvar.Func(v.status))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/vars", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		fmt.Fprintln(w, vars)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	serving := make(chan struct{})
	go func() {
		defer close(serving)
		_ = server.Serve(listener) // http.ErrServerClosed
	}()
	return "http://" + listener.Addr().String() + "/debug/vars", func() {
		cancel()
		_ = server.Close()
		<-serving
		<-watching
	}, nil
}
