package redispipe

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// TestInterruptLine: while a line is interrupted, each of its connections is soon over its deadlines, whatever they are set
// to, and afterwards none is.
func TestInterruptLine(t *testing.T) {
	n := newInterrupter()
	open := n.dialer(func(context.Context, string, string) (net.Conn, error) {
		conn, other := net.Pipe()
		t.Cleanup(func() { _ = other.Close() })
		return conn, nil
	})
	dial := func() net.Conn {
		conn, err := open(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	late := func(conn net.Conn) bool {
		_, err := conn.Read(make([]byte, 1))
		return errors.Is(err, os.ErrDeadlineExceeded)
	}
	used := dial()
	for range 100 {
		_ = used.SetReadDeadline(time.Time{})
		ctx, cancel := context.WithCancel(t.Context())
		stop := n.watch(ctx)
		time.AfterFunc(time.Millisecond/10, cancel)
		if !late(used) {
			t.Fatal("a read was not interrupted")
		}
		_ = used.SetDeadline(time.Time{})
		if !late(used) {
			t.Fatal("an interrupted connection got a new deadline")
		}
		next := dial()
		_ = next.SetReadDeadline(time.Now().Add(time.Hour))
		if !late(next) {
			t.Fatal("an interrupted line got a new connection")
		}
		_ = next.SetWriteDeadline(time.Now().Add(time.Hour))
		if _, err := next.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("an interrupted line got a new connection: write: %v", err)
		}
		n.release(stop)
		for _, conn := range []net.Conn{used, next} {
			const short = 2 * time.Millisecond
			begin := time.Now()
			_ = conn.SetReadDeadline(begin.Add(short))
			if !late(conn) || time.Since(begin) < short {
				t.Fatal("a line that was released is still interrupted")
			}
		}
		used = next
	}
	ctx, cancel := context.WithCancel(t.Context())
	n.release(n.watch(ctx))
	cancel() // too late
	if !n.cancelled.IsZero() || len(n.interrupted) > 0 {
		t.Error("a context that ended afterwards interrupted the line")
	}
}

// TestInterruptAlive: whether a socket still lives is not looked up again right after a call.
func TestInterruptAlive(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	n := newInterrupter()
	open := n.dialer(new(net.Dialer).DialContext)
	dial := func() *socketConn {
		conn, err := open(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn.(*socketConn)
	}
	looks := func(w *socketConn) (looked bool) {
		raw, err := w.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Read(func(uintptr) bool { looked = true; return true })
		return looked
	}
	used, other := dial(), dial()
	_ = used.SetDeadline(time.Now().Add(time.Hour))
	if !looks(used) {
		t.Error("a connection is taken for alive before its first call")
	}
	n.rest()
	n.used = n.used.Add(time.Hour) // a busy machine may take long
	if looks(used) || !looks(other) {
		t.Error("right after a call, its connection is looked at, or another one is not")
	}
	n.used = time.Now().Add(-fresh)
	if !looks(used) {
		t.Error("a connection is taken for alive long after a call")
	}
	n.used = time.Now().Add(time.Hour)
	n.cancelled = time.Now()
	if !looks(used) {
		t.Error("an interrupted connection is taken for alive")
	}
}
