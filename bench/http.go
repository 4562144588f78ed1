package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"time"

	"github.com/go-chi/httprate"

	"github.com/sluice-go/sluice/throttler/httplimit"
)

// An httpMaker builds a middleware around a handler, with its default headers and its counts in this process.
type httpMaker struct {
	name string
	wrap func(Quota, http.Handler) (h http.Handler, closes func() error, err error)
}

// httpPeers limit each client address. A bare handler is what the others add to.
var httpPeers = []httpMaker{
	{sluiceHTTP, wrapSluice},
	{httpRate, wrapHTTPRate},
	{bareHandler, func(_ Quota, next http.Handler) (http.Handler, func() error, error) { return next, closeNothing, nil }},
}

func closeNothing() error { return nil }

func wrapSluice(q Quota, next http.Handler) (http.Handler, func() error, error) {
	p, err := openSluiceMemory(Setup{Quotas: []Quota{q}})
	if err != nil {
		return nil, nil, err
	}
	m, err := httplimit.New(p.(*sluicePeer).throttler, httplimit.Config{Key: httplimit.ClientAddr()})
	if err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	return m.Wrap(next), p.Close, nil
}

func wrapHTTPRate(q Quota, next http.Handler) (http.Handler, func() error, error) {
	byAddress := func(r *http.Request) (string, error) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		return httprate.CanonicalizeIP(host), err
	}
	return httprate.LimitBy(int(q.Max), q.Window, byAddress)(next), closeNothing, nil
}

// runHTTP lets the middlewares take turns at requests of many clients, in one goroutine.
func runHTTP(c *config) ([]MemoryRow, error) {
	var makers []httpMaker
	for _, m := range httpPeers {
		if len(c.peers) == 0 || slices.Contains(c.peers, m.name) {
			makers = append(makers, m)
		}
	}
	random := rand.New(rand.NewPCG(c.seed, 4))
	requests := makeRequests(min(c.keys, 2000))
	var rows []MemoryRow
	for _, denied := range []bool{false, true} {
		verdict := "allowed"
		if denied {
			verdict = "denied"
		}
		row := MemoryRow{Name: "HTTP middleware, default headers, " + verdict, Denied: denied}
		fmt.Fprintln(c.verbose, row.Name)
		allocs := make([][]float64, len(makers))
		for _, m := range makers {
			row.Peers = append(row.Peers, MemoryResult{Peer: m.name})
		}
		for range c.rounds {
			for _, i := range random.Perm(len(makers)) {
				nanos, mallocs, err := httpSlice(makers[i], denied, requests, c.slice/4)
				if err != nil {
					return nil, fmt.Errorf("%s: %s: %w", row.Name, makers[i].name, err)
				}
				row.Peers[i].Rounds = append(row.Peers[i].Rounds, nanos)
				allocs[i] = append(allocs[i], mallocs)
			}
		}
		for i := range row.Peers {
			row.Peers[i].Nanos, row.Peers[i].Allocs = median(row.Peers[i].Rounds), median(allocs[i])
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// makeRequests makes one request for each client.
func makeRequests(n int) []*http.Request {
	all := make([]*http.Request, n)
	for i := range all {
		all[i] = httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
		all[i].RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1234", i>>16, i>>8&255, i&255)
	}
	return all
}

// answer is a ResponseWriter that keeps the header and the status.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(p []byte) (int, error) { return len(p), nil }
func (a *answer) WriteHeader(status int)      { a.status = status }

// httpSlice lets a middleware serve requests for d. It returns the time and the allocations of one request.
func httpSlice(m httpMaker, denied bool, requests []*http.Request, d time.Duration) (nanos, allocs float64, err error) {
	quota, want := Row{Limits: 1, Denied: denied}.Quotas()[0], 0
	if denied && m.name != bareHandler {
		want = http.StatusTooManyRequests
	}
	h, closes, err := m.wrap(quota, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, closes()) }()
	w := &answer{header: http.Header{}}
	for range 2 { // every client has been seen, and is denied from now on if it is to be
		for _, r := range requests {
			h.ServeHTTP(w, r)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n, start := 0, time.Now()
	for n == 0 || time.Since(start) < d {
		for range 64 {
			clear(w.header)
			w.status = 0
			h.ServeHTTP(w, requests[n%len(requests)])
			if n++; w.status != want {
				return 0, 0, fmt.Errorf("the status is %d, want %d", w.status, want)
			}
		}
	}
	elapsed := time.Since(start)
	runtime.ReadMemStats(&after)
	return float64(elapsed.Nanoseconds()) / float64(n), float64(after.Mallocs-before.Mallocs) / float64(n), nil
}
