// Command httpserver is an API with limits, to try with curl:
//
//	go run ./examples/httpserver
//	curl -i http://127.0.0.1:8080/hello                                 # five a second for each address
//	curl -i http://127.0.0.1:8080/report                                # costs 5
//	curl -i -H 'If-None-Match: "v1"' http://127.0.0.1:8080/report       # a 304 costs 1
//	curl -i http://127.0.0.1:8080/usage                                 # what this address used in the last minute
//
// What it decides can be watched live, on an address of its own that clients don't reach: in a browser at
// http://127.0.0.1:8081/debug/sluice, or in a terminal:
//
//	cd cmd/throttlectl && go run . top --url http://127.0.0.1:8081/debug/sluice
//
// It counts in memory; with -topology FILE it counts on Redis, and several servers share the limits.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/memory"
	"github.com/sluice-go/sluice/backend/redisbackend"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
	"github.com/sluice-go/sluice/throttler/insight"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "the `address` to listen on")
	topology := flag.String("topology", "", "a topology `file`: count on its Redis groups instead of in memory")
	stats := flag.String("stats", "127.0.0.1:8081", "the `address` to serve statistics on, for operators only; empty for none")
	flag.Parse()
	if err := run(*addr, *stats, *topology); err != nil {
		log.Fatal(err)
	}
}

func run(addr, stats, topology string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	counts, err := open(topology)
	if err != nil {
		return err
	}
	defer counts.Close()
	near, err := insight.NewNearLimit(insight.NearLimitConfig{})
	if err != nil {
		return err
	}
	defer near.Close()
	recorder, err := insight.New(insight.Config{WatchedKeys: 1000, NearLimit: near})
	if err != nil {
		return err
	}
	t, err := newThrottler(counts, throttler.Observers(recorder, near))
	if err != nil {
		return err
	}
	defer t.Close()
	handler, err := newHandler(t)
	if err != nil {
		return err
	}

	servers := []*http.Server{{Addr: addr, Handler: handler, ReadHeaderTimeout: 5 * time.Second}}
	log.Printf("listening: curl -i http://%s/hello", addr)
	if stats != "" {
		servers = append(servers, &http.Server{Addr: stats, Handler: newStats(recorder, counts), ReadHeaderTimeout: 5 * time.Second})
		log.Printf("statistics, for a browser or throttlectl top --url: http://%s/debug/sluice", stats)
	}
	return serve(ctx, servers...)
}

// serve serves until ctx ends or a server can't, and ends all of them.
func serve(ctx context.Context, servers ...*http.Server) error {
	failed := make(chan error, len(servers))
	var running sync.WaitGroup
	for _, s := range servers {
		running.Go(func() { failed <- s.ListenAndServe() })
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, s := range servers {
		if s.Shutdown(within) != nil {
			_ = s.Close() // of a client that never ends
		}
	}
	running.Wait()
	return err
}

func open(topology string) (backend.Backend, error) {
	if topology == "" {
		return memory.New(memory.Config{})
	}
	t, err := router.LoadTopology(topology)
	if err != nil {
		return nil, err
	}
	redisbackend.LogTo(slog.Default()) // which the Throttler logs to, too
	return router.Open(t, router.Config{OnEvent: func(e router.Event) { log.Print(e) }})
}

func newThrottler(counts backend.Backend, observer throttler.Observer) (*throttler.Throttler, error) {
	return throttler.New(throttler.Config{
		Backend: counts,
		Policy: limit.Policy{Name: "api", Limits: []limit.Limit{
			limit.PerSecond(5).Named("burst"),
			limit.Sliding(60, time.Minute, 5*time.Second).Named("minute"),
		}},
		Observer: observer,
	})
}

// newStats is for operators. It requires no authentication: serve it on an address that clients can't reach.
func newStats(recorder *insight.Recorder, counts backend.Backend) http.Handler {
	var cfg insight.HandlerConfig
	if groups, ok := counts.(*router.Router); ok {
		cfg.Nodes = func() (nodes []insight.Node) {
			for _, n := range groups.Nodes() {
				nodes = append(nodes, insight.Node{
					Group: n.Group, Node: n.Node, Role: n.Role.String(), Breaker: n.Breaker, Readable: n.Readable, Latency: n.Latency,
					LastHeartbeat: n.LastHeartbeat, RTT: n.Heartbeat.RTT, Ahead: n.Heartbeat.Ahead, Age: n.Age,
				})
			}
			return nodes
		}
		cfg.Router = func() insight.RouterStats { return insight.RouterStats(groups.Stats()) }
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/sluice", insight.Handler(recorder, cfg))
	return mux
}

func newHandler(t *throttler.Throttler) (http.Handler, error) {
	// Without trusted proxies the address is the connection's; no header can change it.
	client := httplimit.ClientAddr()
	hello, err := httplimit.New(t, httplimit.Config{Key: client, Headers: httplimit.Draft08 | httplimit.GitHub})
	if err != nil {
		return nil, err
	}
	// A report is charged before it is made. A client that has it already pays a fifth.
	report, err := httplimit.New(t, httplimit.Config{
		Key:     client,
		Cost:    func(*http.Request) int64 { return 5 },
		Settle:  httplimit.GiveBack(1, httplimit.Outcome.NotModified),
		Headers: httplimit.Draft08 | httplimit.GitHub,
	})
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle("GET /hello", hello.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := httplimit.FromContext(r.Context())
		fmt.Fprintf(w, "hello, %d left of %s, decided by %s, %s\n", d.Remaining, d.Limit, d.Source, d.Guarantee)
	})))
	mux.Handle("GET /report", report.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const version = `"v1"`
		w.Header().Set("ETag", version)
		if r.Header.Get("If-None-Match") == version {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprintln(w, "a report that took much work")
	})))
	mux.HandleFunc("GET /usage", func(w http.ResponseWriter, r *http.Request) {
		key, err := client(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		used, err := t.Usage(r.Context(), key, time.Minute)
		if err != nil {
			http.Error(w, "usage is not known now", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "%d used in the last minute\n", used)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := t.Ping(r.Context()); err != nil {
			http.Error(w, "the backend is unreachable", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux, nil
}
