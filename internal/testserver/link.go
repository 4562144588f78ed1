//go:build unix

package testserver

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// A link is one client's connection and the server's connection that belongs to it.
type link struct {
	proxy  *Proxy
	client net.Conn
	ctx    context.Context // done once the link is closed
	cancel context.CancelFunc

	mu      sync.Mutex // guards what follows
	closed  bool
	server  net.Conn // nil until dialled
	pending []Action // of the commands whose reply isn't handed back yet, in order
}

func newLink(p *Proxy, client net.Conn) *link {
	l := &link{proxy: p, client: client}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

func (l *link) serve() {
	defer func() {
		l.close()
		l.proxy.mu.Lock()
		delete(l.proxy.links, l)
		l.proxy.mu.Unlock()
	}()
	server, err := new(net.Dialer).DialContext(l.ctx, "tcp", l.proxy.target)
	if err != nil {
		return
	}
	l.mu.Lock()
	l.server = server
	if l.closed {
		_ = server.Close()
	}
	l.mu.Unlock()

	var replies sync.WaitGroup
	replies.Go(func() {
		defer l.close()
		l.handBack(bufio.NewReader(server))
	})
	l.handOn(bufio.NewReader(l.client), bufio.NewWriter(server))
	l.close()
	replies.Wait()
}

// handOn passes commands to the server until either side closes.
func (l *link) handOn(client *bufio.Reader, server *bufio.Writer) {
	for {
		raw, args, err := readRequest(client)
		if err != nil {
			return
		}
		if len(args) == 0 { // an empty line has no reply
			continue
		}
		action := l.proxy.action(args)
		if action.kind == closeBefore || action.kind == hangBefore {
			_ = server.Flush()
			l.push(action)
			_, _ = io.Copy(io.Discard, client) // until the client gives up or push closes
			return
		}
		l.push(action) // before it is sent: the reply must find it
		_, _ = server.Write(raw)
		if action.kind == stream {
			_ = server.Flush()
			_, _ = client.WriteTo(l.server)
			return
		}
		if client.Buffered() == 0 { // a pipeline goes out as it came in
			if err := server.Flush(); err != nil {
				return
			}
		}
	}
}

// handBack passes replies to the client until either side closes.
func (l *link) handBack(server *bufio.Reader) {
	hung := false
	for {
		reply, err := readReply(server)
		if err != nil {
			return
		}
		if reply[0] == '>' || reply[0] == '\r' || reply[0] == '\n' { // pushed, it answers no command
			if _, err := l.client.Write(reply); err != nil {
				return
			}
			continue
		}
		action := l.head()
		switch action.kind {
		case closeAfter:
			return
		case hangAfter:
			hung = true
		case truncate:
			_, _ = l.client.Write(reply[:len(reply)/2])
			return
		case answer:
			reply = []byte("-" + action.text + "\r\n")
		}
		if !l.sleep(action.delay) {
			return
		}
		if !hung {
			if _, err := l.client.Write(reply); err != nil {
				return
			}
		}
		if action.kind == stream {
			_, _ = server.WriteTo(l.client)
			return
		}
		l.pop()
	}
}

// sleep waits for d and reports whether the link is still there.
func (l *link) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-l.ctx.Done():
		return false
	}
}

func (l *link) push(a Action) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(l.pending, a)
	l.closeIfDueLocked()
}

// head is the action of the oldest command without a reply; Pass if the server speaks unasked, say to refuse a client.
func (l *link) head() Action {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return Pass
	}
	return l.pending[0]
}

func (l *link) pop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) > 0 {
		l.pending = l.pending[1:]
	}
	l.closeIfDueLocked()
}

// closeIfDueLocked closes for a CloseBefore once all earlier replies are handed back.
func (l *link) closeIfDueLocked() {
	if len(l.pending) > 0 && l.pending[0].kind == closeBefore {
		l.closeLocked()
	}
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeLocked()
}

func (l *link) closeLocked() {
	if l.closed {
		return
	}
	l.closed = true
	l.cancel()
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}
