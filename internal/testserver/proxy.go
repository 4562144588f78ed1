//go:build unix

package testserver

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// An Action is what a Proxy does to one command. The zero value is Pass. "Before" and "after" are seen from the server:
// before, it never sees the command; after, it has executed it and sent its whole reply.
type Action struct {
	kind  actionKind
	delay time.Duration
	text  string // of the error that is handed back
}

var (
	Pass        = Action{}                  // hand the command on, and its reply back
	CloseBefore = Action{kind: closeBefore} // don't send the command; close the connection
	HangBefore  = Action{kind: hangBefore}  // don't send the command nor any later one; the client waits
	CloseAfter  = Action{kind: closeAfter}  // lose the reply; close the connection
	HangAfter   = Action{kind: hangAfter}   // lose the reply and all later ones; the client waits
	Truncate    = Action{kind: truncate}    // hand back the first half of the reply; close the connection
)

// Answer hands back an error in place of the reply, as a proxy does that has lost it. The server has executed the command.
func Answer(text string) Action { return Action{kind: answer, text: text} }

// Delay hands the reply back after d, and with it those of the commands that follow on the same connection.
func Delay(d time.Duration) Action { return Action{delay: d} }

type actionKind int

const (
	_ actionKind = iota
	closeBefore
	hangBefore
	closeAfter
	hangAfter
	truncate
	answer
	stream // internal: what follows is no longer one reply a command
)

// A Fault chooses what happens to a command; args[0] is its name in upper case. It is called once for each command, in
// the order of its connection, but for several connections at once. The handshake of a client (HELLO) passes here too.
type Fault func(args []string) Action

// streams are the commands that end the strict exchange of requests and replies.
var streams = map[string]bool{
	"MONITOR": true, "PSUBSCRIBE": true, "PSYNC": true, "SSUBSCRIBE": true, "SUBSCRIBE": true, "SYNC": true,
}

// A Proxy stands between clients and one Redis server and can fail every command in its own way. It understands RESP2
// and RESP3, keeps the order of replies and passes pipelines on as pipelines; what it is told to close or to hang is
// one connection. A subscriber or a replica may connect through it: what follows their command is passed on as it is.
// CLIENT REPLY OFF is not supported, it would shift all replies.
type Proxy struct {
	Addr string // host:port where clients connect, the same for the whole test

	t      testing.TB
	target string
	fault  atomic.Pointer[Fault]
	wg     sync.WaitGroup // all goroutines of the proxy

	mu       sync.Mutex       // guards what follows
	listener *net.TCPListener // nil while cut
	links    map[*link]struct{}
}

// NewProxy starts a proxy for the server at target, which need not run yet. By default it passes everything.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{Addr: reserve(t), t: t, target: target, links: make(map[*link]struct{})}
	t.Cleanup(func() {
		p.Cut()
		p.wg.Wait()
	})
	p.Heal()
	return p
}

// SetFault sets what happens to all commands read from now on; nil passes them.
func (p *Proxy) SetFault(f Fault) { p.fault.Store(&f) }

// Cut makes a partition: all connections are dropped and new ones are refused.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	shutdown(p.listener)
	p.listener = nil
	for l := range p.links {
		l.close()
	}
	clear(p.links)
}

// Heal ends the partition that Cut made.
func (p *Proxy) Heal() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return
	}
	listener, err := net.Listen("tcp", p.Addr)
	if err != nil {
		p.t.Fatalf("testserver: proxy: %v", err)
	}
	tcp := listener.(*net.TCPListener)
	p.listener = tcp
	p.wg.Go(func() { p.accept(tcp) })
}

// shutdown closes a listener at once. Close alone leaves it open for as long as a process that another test is
// starting, between fork and exec, holds copies of all descriptors.
func shutdown(listener *net.TCPListener) {
	if raw, err := listener.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
	_ = listener.Close()
}

func (p *Proxy) accept(listener *net.TCPListener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed by Cut
		}
		l := newLink(p, client)
		p.mu.Lock()
		if p.listener != listener { // cut in between
			l.close()
		} else {
			p.links[l] = struct{}{}
			p.wg.Go(l.serve)
		}
		p.mu.Unlock()
	}
}

func (p *Proxy) action(args []string) Action {
	if len(args) > 0 && streams[args[0]] {
		return Action{kind: stream}
	}
	if f := p.fault.Load(); f != nil && *f != nil && len(args) > 0 {
		return (*f)(args)
	}
	return Pass
}
