// Command tokens is a proxy in front of a pretend language model. It keeps each tenant to a budget of tokens and of requests per
// minute, although what a request costs is known only once its answer has been streamed:
//
//	go run ./examples/tokens -listen 127.0.0.1:8080
//	curl -N -H 'X-Tenant: acme' -d '{"prompt": "tell me of rivers and of sluices"}' http://127.0.0.1:8080/
//
// A request reserves what it is expected to cost. At the end Settle makes that what the answer did cost: the rest is given back,
// an overrun is charged. A failure of the model costs nothing, and a client that leaves pays for what was streamed. Without
// -listen the command plays ten minutes of traffic in an instant, and compares that with other ways:
//
//	go run ./examples/tokens
//	go run ./examples/tokens -svg examples/tokens/tokens.svg
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/sluice-go/sluice/backend/memory"
)

func main() {
	listen := flag.String("listen", "", "the `address` of the proxy; if empty, traffic is played")
	tokens := flag.Int64("tokens", 30_000, "the budget of tokens for a tenant and minute")
	requests := flag.Int64("requests", 120, "the budget of requests for a tenant and minute")
	svg := flag.String("svg", "", "the `file` to draw what was played to")
	flag.Parse()
	if err := run(*listen, *tokens, *requests, *svg); err != nil {
		log.Fatal(err)
	}
}

func run(listen string, tokens, requests int64, svg string) error {
	if listen != "" {
		return serve(listen, tokens, requests)
	}
	results, err := playAll(newTrace(), tokens, requests)
	if err != nil {
		return err
	}
	fmt.Print(table(results))
	if svg == "" {
		return nil
	}
	return os.WriteFile(svg, draw(results, tokens), 0o644)
}

func serve(listen string, tokens, requests int64) error {
	counts, err := memory.New(memory.Config{}) // or redisbackend.Open, where several proxies share the budgets
	if err != nil {
		return err
	}
	defer counts.Close()
	b, err := newBudget(counts, tokens, requests)
	if err != nil {
		return err
	}
	defer b.close()
	behind, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	back := &http.Server{Handler: model(50 * time.Millisecond), ReadHeaderTimeout: 5 * time.Second}
	defer back.Close()
	go func() { _ = back.Serve(behind) }()
	front := &http.Server{
		Addr: listen, ReadHeaderTimeout: 5 * time.Second,
		Handler: &proxy{budget: b, model: "http://" + behind.Addr().String(), client: &http.Client{}},
	}
	return front.ListenAndServe()
}
