package main

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/backend/memory"
)

// patient is a transport as a client would write it: it waits as long as Retry-After says, a few times.
type patient struct {
	http.RoundTripper
	attempts *int
}

func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	for tries := 1; ; tries++ {
		*p.attempts++
		res, err := p.RoundTripper.RoundTrip(r)
		if err != nil || res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusServiceUnavailable {
			return res, err
		}
		wait, err := strconv.Atoi(res.Header.Get("Retry-After"))
		if err != nil || tries == 3 {
			return res, nil
		}
		_ = res.Body.Close()
		select {
		case <-time.After(time.Duration(wait) * time.Second):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// pipes is a listener without a network, which a synctest bubble needs: its time goes on only when nobody reads from one.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return addressed{c}, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { close(p.done); return nil }

func (p *pipes) Addr() net.Addr { return addressed{}.RemoteAddr() }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	p.conns <- there
	return here, nil
}

// addressed is a connection that has an address.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4711} }

// A client that honours Retry-After needs to know nothing of the limits: all its requests succeed, at the pace of the
// limits, with one attempt more for each denial.
func TestClientThatWaitsGetsThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer counts.Close()
		limits, err := newThrottler(counts, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer limits.Close()
		handler, err := newHandler(limits)
		if err != nil {
			t.Fatal(err)
		}
		listener := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{Handler: handler}
		go func() { _ = server.Serve(listener) }()
		defer server.Close()

		attempts, started := 0, time.Now()
		transport := &http.Transport{DialContext: listener.dial}
		defer transport.CloseIdleConnections()
		c := &http.Client{Transport: patient{transport, &attempts}}
		const requests = 65
		for n := range requests {
			res, err := c.Get("http://api.example/hello")
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Fatalf("request %d: %s after %d attempts", n+1, res.Status, attempts)
			}
		}
		// Sixty take until the 12th second, five in each; the others must wait until the minute has room.
		if denials := attempts - requests; denials != 12 {
			t.Errorf("%d denials, want 12", denials)
		}
		if took := time.Since(started); took != time.Minute {
			t.Errorf("it took %v, want 1m", took)
		}
	})
}
