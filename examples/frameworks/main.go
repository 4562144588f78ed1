// Command frameworks serves one small API with limits by each of several web frameworks:
//
//	cd examples/frameworks && go run . gin
//	curl -i -H 'X-Api-Key: k' http://127.0.0.1:8080/hello                            # costs 10 of 30 a minute
//	curl -i -H 'X-Api-Key: k' -H 'If-None-Match: "v1"' http://127.0.0.1:8080/page     # a 304: 9 of 10 are given back
//	curl -i http://127.0.0.1:8080/hello                                               # 401: no key
//
// The limits are in limits.go; each framework has a file, with what it needs of a middleware and nothing else. chi and
// net/http's ServeMux take httplimit's Wrap as it is. gin, echo, fiber and connect-go have an adapter on httplimit's Begin.
package main

import (
	"context"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// server is what *http.Server and a fiber.App have in common.
type server interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
}

func httpServer(h http.Handler) server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
}

// frameworks make the same API, limited.
var frameworks = map[string]func(limited *httplimit.Middleware) server{
	"servemux": func(limited *httplimit.Middleware) server { return httpServer(newServeMux(limited)) },
	"chi":      func(limited *httplimit.Middleware) server { return httpServer(newChi(limited)) },
	"gin":      func(limited *httplimit.Middleware) server { return httpServer(newGin(limited)) },
	"echo":     func(limited *httplimit.Middleware) server { return httpServer(newEcho(limited)) },
	"fiber":    func(limited *httplimit.Middleware) server { return fiberServer{newFiber(limited)} },
	"connect":  func(limited *httplimit.Middleware) server { return httpServer(newConnect(limited)) },
}

func main() {
	names := slices.Sorted(maps.Keys(frameworks))
	if len(os.Args) != 2 || frameworks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: go run . "+strings.Join(names, "|"))
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(framework string) error {
	t, err := newThrottler()
	if err != nil {
		return err
	}
	defer t.Close()
	limited, err := newLimits(t)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		return err
	}
	s := frameworks[framework](limited)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(listener) }()
	log.Printf("%s: curl -i -H 'X-Api-Key: k' http://%s/hello", framework, listener.Addr())
	select {
	case err = <-failed:
	case <-ctx.Done():
		within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err = s.Shutdown(within)
	}
	return err
}
