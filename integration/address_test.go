//go:build unix

package integration_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// An address stays the same while what is behind it changes, as a virtual address, a name or a proxy does in a failover.
type address struct {
	addr string

	mu       sync.Mutex // guards what follows
	target   string
	open     map[net.Conn]struct{}
	listener net.Listener
	closed   bool
	running  sync.WaitGroup
}

func newAddress(t *testing.T, target string) *address {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &address{addr: l.Addr().String(), target: target, open: make(map[net.Conn]struct{}), listener: l}
	a.running.Go(a.accept)
	t.Cleanup(a.close)
	return a
}

// move drops all connections; later ones go to target.
func (a *address) move(target string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.target = target
	a.dropLocked()
}

func (a *address) dropLocked() {
	for c := range a.open {
		_ = c.Close()
	}
	clear(a.open)
}

func (a *address) close() {
	a.mu.Lock()
	a.closed = true
	_ = a.listener.Close()
	a.dropLocked()
	a.mu.Unlock()
	a.running.Wait()
}

func (a *address) accept() {
	for {
		client, err := a.listener.Accept()
		if err != nil {
			return
		}
		a.running.Go(func() { a.serve(client) })
	}
}

func (a *address) serve(client net.Conn) {
	defer client.Close()
	a.mu.Lock()
	target := a.target
	a.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	if !a.keep(target, client, server) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	_, _ = io.Copy(server, client)
	_ = server.Close()
	back.Wait()
	a.mu.Lock()
	delete(a.open, client)
	delete(a.open, server)
	a.mu.Unlock()
}

// keep remembers the connections to drop them, unless the address has moved on.
func (a *address) keep(target string, both ...net.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.target != target {
		return false
	}
	for _, c := range both {
		a.open[c] = struct{}{}
	}
	return true
}
