package main

import (
	"io"
	"net/http"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// newServeMux limits all routes of a ServeMux at once; httplimit's Routes tells them apart. A handler that needs limits of its
// own may be wrapped alone as well: mux.Handle("GET /export", exports.Wrap(export)).
func newServeMux(limited *httplimit.Middleware) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", hello)
	mux.HandleFunc("GET /page", page)
	mux.HandleFunc("GET /broken", broken)
	mux.HandleFunc("GET /healthz", hello)
	return limited.Wrap(mux)
}

// The handlers of ServeMux and chi.

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }

func page(w http.ResponseWriter, r *http.Request) {
	const version = `"v1"`
	w.Header().Set("ETag", version)
	if r.Header.Get("If-None-Match") == version {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = io.WriteString(w, "a page\n")
}

func broken(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "the database is down", http.StatusServiceUnavailable)
}
