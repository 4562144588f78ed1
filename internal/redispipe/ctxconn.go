package redispipe

import (
	"bytes"
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-go/sluice/internal/callguard"
)

// interrupter interrupts the connection of a client that makes one call at a time.
//
// go-redis misses a cancellation while it waits for a reply. Waiting in another goroutine costs a lone caller two
// switches: 1.8 x the latency on loopback. Instead, as in pgx, the caller makes the round trip itself, and the end of its
// context sets a deadline on the connection. How much of a reply was read by then is not known, so go-redis closes
// a connection after every error that isn't a reply; its next user never sees the rest of an earlier call.
//
// A connection is expensive, above all with TLS. So a reply to a caller who cancels is waited for a little longer, and after
// an interruption the pipeliner has goroutines wait for a while (see defaultHandOff): callers who leave don't cost a connection
// each. Where replies take longer than the grace, a goroutine adds little to them.
type interrupter struct {
	ended       func()        // interrupts the connection
	interrupted chan struct{} // holds one, when that is done

	mu        sync.Mutex // guards what follows
	last      *ctxConn   // the one that was given a deadline last, which go-redis does before it reads or writes
	cancelled time.Time  // no deadline is later; zero if not interrupted
	used      time.Time  // when the last call ended
	end       time.Time  // when the call under way has to end; zero if there is none
}

func newInterrupter() *interrupter {
	n := &interrupter{interrupted: make(chan struct{}, 1)}
	n.ended = func() {
		n.mu.Lock()
		n.cancelled = time.Now().Add(grace)
		if n.last != nil {
			_ = n.last.setLocked(n.last.due) // a connection that is closed says so
		}
		n.mu.Unlock()
		n.interrupted <- struct{}{}
	}
	return n
}

// grace is how long a caller who cancels still waits for the reply.
const grace = 2 * time.Millisecond

// watch interrupts the connection when ctx ends, until release is called with stop.
func (n *interrupter) watch(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, n.ended)
}

// release ends a watch. It waits for an interruption that has begun, which would hit the next call otherwise.
func (n *interrupter) release(stop func() bool) {
	if stop() {
		return
	}
	<-n.interrupted
	n.mu.Lock()
	n.cancelled = time.Time{}
	n.mu.Unlock()
}

// start notes when the call that begins has to end.
func (n *interrupter) start(end time.Time) {
	n.mu.Lock()
	n.end = end
	n.mu.Unlock()
}

// rest notes that a call ended. If it failed, its connection won't be used again.
func (n *interrupter) rest() {
	n.mu.Lock()
	n.used, n.end = time.Now(), time.Time{}
	n.mu.Unlock()
}

// fresh is how long a connection is assumed to be alive after a call.
const fresh = 200 * time.Microsecond

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialer makes connections that the interrupter interrupts.
func (n *interrupter) dialer(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.mu.Lock()
		end := n.end
		n.mu.Unlock()
		conn, err := dialUntil(ctx, end, network, addr, dial)
		if err != nil {
			return nil, beforeCall(err)
		}
		w := ctxConn{Conn: conn, interrupter: n}
		switch conn := conn.(type) {
		case syscall.Conn:
			return &socketConn{w, conn}, nil
		case netConner:
			return &coveredConn{w, conn}, nil
		}
		return &w, nil
	}
}

// dialUntil dials for a call that ends at a moment, which the client's context doesn't say; zero for no call. The dialer may
// ignore its context, as that for TLS does: a connection that comes too late is closed.
func dialUntil(ctx context.Context, end time.Time, network, addr string, dial dialer) (net.Conn, error) {
	if end.IsZero() { // the client looks whether the server is back
		return dial(ctx, network, addr)
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	type outcome struct {
		conn net.Conn
		err  error
	}
	done := make(chan outcome)
	go func() {
		o := func() (o outcome) {
			defer callguard.Recover(&o.err)
			o.conn, o.err = dial(ctx, network, addr)
			return o
		}()
		select {
		case done <- o:
		case <-ctx.Done():
			if o.err == nil {
				_ = o.conn.Close()
			}
		}
	}()
	select {
	case o := <-done:
		return o.conn, o.err
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
}

// ctxConn is a connection that an interrupter interrupts. Meanwhile no deadline of it is later than cancelled. Its errors are
// marked as unsent while it is being set up.
type ctxConn struct {
	net.Conn
	interrupter *interrupter
	called      bool      // whether a script call may have been written
	due         time.Time // the deadline of reads and of writes; guarded by interrupter.mu
}

func (w *ctxConn) Write(b []byte) (int, error) {
	// A pipeline begins a write, as "*9\r\n$7\r\nevalsha". What is shorter than a HELLO may be a part of that, where buffers are tiny.
	w.called = w.called || len(b) < 18 || bytes.Contains(b, []byte("eval"))
	n, err := w.Conn.Write(b)
	return n, w.explain(err)
}

func (w *ctxConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	return n, w.explain(err)
}

func (w *ctxConn) explain(err error) error {
	if err == nil || w.called {
		return err
	}
	return beforeCall(err)
}

// beforeCall marks the error of setting a connection up, of which the client may unwrap one layer.
func beforeCall(err error) error { return callguard.Unsent(callguard.Unsent(err)) }

func (w *ctxConn) SetDeadline(t time.Time) error {
	w.interrupter.mu.Lock()
	defer w.interrupter.mu.Unlock()
	return w.setLocked(t)
}

// SetWriteDeadline also sets the deadline of the read, which comes next and is the same: each costs a timer.
func (w *ctxConn) SetWriteDeadline(t time.Time) error { return w.SetDeadline(t) }

func (w *ctxConn) SetReadDeadline(t time.Time) error {
	w.interrupter.mu.Lock()
	defer w.interrupter.mu.Unlock()
	if !w.interrupter.cancelled.IsZero() || t.Equal(w.due) {
		return w.setLocked(t)
	}
	w.interrupter.last, w.due = w, time.Time{}
	return w.Conn.SetReadDeadline(t)
}

func (w *ctxConn) setLocked(t time.Time) error {
	w.interrupter.last = w
	if cancelled := w.interrupter.cancelled; !cancelled.IsZero() && (t.IsZero() || t.After(cancelled)) {
		t = cancelled
	}
	if t.Equal(w.due) && !t.IsZero() {
		return nil
	}
	w.due = t
	return w.Conn.SetDeadline(t)
}

// socketConn is a ctxConn on a socket. Before each call go-redis checks there whether the connection is alive.
type socketConn struct {
	ctxConn
	socket syscall.Conn
}

func (w *socketConn) SetDeadline(t time.Time) error {
	if t.IsZero() && w.alive() { // before it looks, and sets another one next
		return nil
	}
	return w.ctxConn.SetDeadline(t)
}

func (w *socketConn) SyscallConn() (syscall.RawConn, error) {
	if w.alive() {
		return seen{}, nil
	}
	return w.socket.SyscallConn()
}

// alive reports whether a call ended a moment ago. To check again costs a system call, 4 % of a lone caller's time.
func (w *socketConn) alive() bool {
	w.interrupter.mu.Lock()
	defer w.interrupter.mu.Unlock()
	return w.interrupter.last == &w.ctxConn && w.interrupter.cancelled.IsZero() && time.Since(w.interrupter.used) < fresh
}

// seen is a socket on which nothing has come.
type seen struct{ syscall.RawConn }

func (seen) Read(func(fd uintptr) bool) error { return nil }

// coveredConn is a ctxConn on a connection that wraps another, as TLS does.
type coveredConn struct {
	ctxConn
	netConner
}

type netConner interface{ NetConn() net.Conn }
