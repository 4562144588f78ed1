package backend

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// line is what a lane can interrupt: the connection of a client that makes one call at a time.
//
// go-redis doesn't notice that a context is cancelled while it waits for a reply. To wait in another goroutine costs a
// lone caller two switches: 1.8 x the latency on loopback. Instead, as pgx does, the caller makes the round trip itself,
// and the end of its context sets a deadline on the connection. What was read of a reply by then is not known, so
// go-redis closes a connection after every error that isn't a reply; its next user never sees what is left of an earlier
// call.
//
// A connection is dear, above all with TLS, so a reply that is on its way is waited for a little longer than a caller who
// cancels; and after a cut the lanes have goroutines wait for a while (see defaultHandOff), so that not each caller who leaves costs
// a connection. Where replies take longer than the grace, that adds little to them.
type line struct {
	ended       func()        // interrupts the line
	interrupted chan struct{} // holds one, when that is done

	mu   sync.Mutex // guards what follows
	wire *wire      // the one that was given a deadline last, which go-redis does before it reads or writes
	cut  time.Time  // no deadline is later; zero if the line is not interrupted
	used time.Time  // when the last call ended
	end  time.Time  // when the call under way has to end; zero if there is none
}

func newLine() *line {
	n := &line{interrupted: make(chan struct{}, 1)}
	n.ended = func() {
		n.mu.Lock()
		n.cut = time.Now().Add(grace)
		if n.wire != nil {
			_ = n.wire.setLocked(n.wire.due) // a connection that is closed says so
		}
		n.mu.Unlock()
		n.interrupted <- struct{}{}
	}
	return n
}

// grace is how long the reply to a caller who has cancelled is waited for.
const grace = 2 * time.Millisecond

// watch interrupts the line when ctx ends, until release is called with what it returns.
func (n *line) watch(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, n.ended)
}

// release makes the line ready for its next user. An interruption that has begun is waited for, or it would hit that one.
func (n *line) release(stop func() bool) {
	if stop() {
		return
	}
	<-n.interrupted
	n.mu.Lock()
	n.cut = time.Time{}
	n.mu.Unlock()
}

// start notes when the call that begins has to end.
func (n *line) start(end time.Time) {
	n.mu.Lock()
	n.end = end
	n.mu.Unlock()
}

// rest notes that a call ended. If it failed, its connection won't be used again.
func (n *line) rest() {
	n.mu.Lock()
	n.used, n.end = time.Now(), time.Time{}
	n.mu.Unlock()
}

// fresh is how long a connection is taken for alive after a call.
const fresh = 200 * time.Microsecond

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialer makes connections of the line.
func (n *line) dialer(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.mu.Lock()
		end := n.end
		n.mu.Unlock()
		conn, err := dialUntil(ctx, end, network, addr, dial)
		if err != nil {
			return nil, err
		}
		w := wire{Conn: conn, line: n}
		switch conn := conn.(type) {
		case syscall.Conn:
			return &socketWire{w, conn}, nil
		case netConner:
			return &coveredWire{w, conn}, nil
		}
		return &w, nil
	}
}

// dialUntil dials for a call that ends at a moment, which the client's context doesn't tell; zero for no call. The dialer may
// ignore its context, as that for TLS does: what comes too late is closed.
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
		conn, err := dial(ctx, network, addr)
		select {
		case done <- outcome{conn, err}:
		case <-ctx.Done():
			if err == nil {
				_ = conn.Close()
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

// wire is a connection of a line. While that is interrupted, all its deadlines end by the cut.
type wire struct {
	net.Conn
	line *line
	due  time.Time // the deadline of reads and of writes; guarded by line.mu
}

func (w *wire) SetDeadline(t time.Time) error {
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	return w.setLocked(t)
}

// SetWriteDeadline sets that of the read, too, which comes next and has the same one: each costs a timer.
func (w *wire) SetWriteDeadline(t time.Time) error { return w.SetDeadline(t) }

func (w *wire) SetReadDeadline(t time.Time) error {
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	if !w.line.cut.IsZero() || t.Equal(w.due) {
		return w.setLocked(t)
	}
	w.line.wire, w.due = w, time.Time{}
	return w.Conn.SetReadDeadline(t)
}

func (w *wire) setLocked(t time.Time) error {
	w.line.wire = w
	if cut := w.line.cut; !cut.IsZero() && (t.IsZero() || t.After(cut)) {
		t = cut
	}
	if t.Equal(w.due) && !t.IsZero() {
		return nil
	}
	w.due = t
	return w.Conn.SetDeadline(t)
}

// socketWire is a wire on a socket. Before each call go-redis looks there whether the connection still lives.
type socketWire struct {
	wire
	socket syscall.Conn
}

func (w *socketWire) SetDeadline(t time.Time) error {
	if t.IsZero() && w.alive() { // before it looks, and sets another one next
		return nil
	}
	return w.wire.SetDeadline(t)
}

func (w *socketWire) SyscallConn() (syscall.RawConn, error) {
	if w.alive() {
		return seen{}, nil
	}
	return w.socket.SyscallConn()
}

// alive reports whether a call has ended right now. To look again costs a system call, 4 % of a lone caller's time.
func (w *socketWire) alive() bool {
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	return w.line.wire == &w.wire && w.line.cut.IsZero() && time.Since(w.line.used) < fresh
}

// seen is a socket on which there is nothing to be seen.
type seen struct{ syscall.RawConn }

func (seen) Read(func(fd uintptr) bool) error { return nil }

// coveredWire is a wire on a connection that covers another, as TLS does.
type coveredWire struct {
	wire
	netConner
}

type netConner interface{ NetConn() net.Conn }
