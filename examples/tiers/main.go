// Command tiers is an API whose limits depend on the API key, by a file that may change while it runs:
//
//	go run ./examples/tiers
//	curl -i -H 'X-Api-Key: sk_4e1ab07d9f2c4c55a3e8d1706b5f2c90' http://127.0.0.1:8080/    # pro, by policies.yaml
//	curl -i -H 'X-Api-Key: sk_d1706b5f2c904e1ab07d9f2c4c55a3e8' http://127.0.0.1:8080/    # free, as all others
//
// The file has hashes of keys, as throttlectl hash prints them. Who is denied most is shown by name:
//
//	cd cmd/throttlectl && go run . top --url http://127.0.0.1:8081/debug/sluice --names ../../examples/tiers/names.yaml
//
// A real API authenticates before it limits: here each invented key gets a quota of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-go/sluice/throttler"
	"github.com/sluice-go/sluice/throttler/httplimit"
	"github.com/sluice-go/sluice/throttler/insight"
	"github.com/sluice-go/sluice/throttler/registry"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "the `address` to listen on")
	stats := flag.String("stats", "127.0.0.1:8081", "the `address` to serve statistics on, for operators only")
	file := flag.String("policies", "examples/tiers/policies.yaml", "the `file` of policies")
	flag.Parse()
	if err := run(*addr, *stats, *file); err != nil {
		log.Fatal(err)
	}
}

func run(addr, stats, file string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	policies, err := registry.Open(file, registry.Config{})
	if err != nil {
		return err
	}
	defer policies.Close()
	api, operators, err := newHandlers(policies)
	if err != nil {
		return err
	}
	servers := []*http.Server{
		{Addr: addr, Handler: api, ReadHeaderTimeout: 5 * time.Second},
		{Addr: stats, Handler: operators, ReadHeaderTimeout: 5 * time.Second},
	}
	failed := make(chan error, len(servers))
	for _, s := range servers {
		go func() { failed <- s.ListenAndServe() }()
		defer s.Close()
	}
	log.Printf("listening: curl -i -H 'X-Api-Key: ...' http://%s/", addr)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// newHandlers returns the API and what operators see of it. It counts in memory; with a Backend in the Config several processes
// share the limits.
func newHandlers(policies *registry.Registry) (api, operators http.Handler, err error) {
	recorder, err := insight.New(insight.Config{Registry: policies, WatchedKeys: 1000})
	if err != nil {
		return nil, nil, err
	}
	t, err := throttler.New(throttler.Config{Policies: policies, Observer: recorder})
	if err != nil {
		return nil, nil, err
	}
	limited, err := httplimit.New(t, httplimit.Config{Key: httplimit.Header("X-Api-Key", nil)}) // nil: API keys are random
	if err != nil {
		return nil, nil, err
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	mux := http.NewServeMux()
	mux.Handle("/debug/sluice", insight.Handler(recorder, insight.HandlerConfig{ClearKeys: true})) // hashes, as in policies.yaml
	return limited.Wrap(hello), mux, nil
}
