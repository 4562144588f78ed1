package main

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// newChi uses Wrap: it is a chi middleware. With, Group and Route give parts of a router limits of their own.
func newChi(limited *httplimit.Middleware) http.Handler {
	r := chi.NewRouter()
	r.Get("/healthz", hello)
	r.Group(func(r chi.Router) {
		r.Use(limited.Wrap)
		r.Get("/hello", hello)
		r.Get("/page", page)
		r.Get("/broken", broken)
	})
	return r
}
