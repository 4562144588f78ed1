package memcached

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/outcome"
	"github.com/sluice-go/sluice/internal/tracing"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/ring"
)

// server is one server of a pool. It has a client and a call guard of its own, so that a server that hangs or restarts
// affects no keys of the others.
type server struct {
	name   string
	client *memcache.Client
	guard  *callguard.Guard
}

func newServer(name string, cfg *Config) *server {
	network := "tcp"
	if strings.Contains(name, "/") {
		network = "unix"
	}
	client := memcache.NewFromSelector(address{network, name})
	client.Timeout = cfg.Timeout
	client.MaxIdleConns = cfg.IdleConns
	return &server{name: name, client: client, guard: callguard.New(callguard.Config{
		Timeout: cfg.Timeout, MaxCalls: cfg.MaxCalls, IgnoresContext: true, Closed: backend.ErrClosed,
		Wrap: func(ctx context.Context, op string, err error) error {
			return outcome.Wrap(ctx, op, name, err, classify)
		},
	})}
}

// newRing returns a ring of the servers' addresses.
func newRing(servers []string) (*ring.Ring, error) {
	members := make([]ring.Member, len(servers))
	var errs []error
	switch n := len(servers); {
	case n == 0:
		errs = append(errs, &limit.Error{Field: "memcached: servers", Value: "none", Bound: "must have at least one"})
	case n > maxServers:
		errs = append(errs, &limit.Error{Field: "memcached: servers", Value: strconv.Itoa(n), Bound: fmt.Sprintf("must be at most %d", maxServers)})
	}
	for i, server := range servers {
		members[i] = ring.Member{Name: server}
		bad := func(bound string) {
			errs = append(errs, &limit.Error{Field: fmt.Sprintf("memcached: servers[%d]", i), Value: strconv.Quote(server), Bound: bound})
		}
		if !strings.Contains(server, "/") {
			if _, port, err := net.SplitHostPort(server); err != nil || port == "" {
				bad(`must be "host:port" or the path of a Unix socket, with a slash`)
				continue
			}
		}
		if first := slices.Index(servers, server); first < i {
			bad(fmt.Sprintf("must be unique: servers[%d] is the same", first))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return ring.New(members, ring.Config{})
}

// address is a net.Addr that is resolved when it is dialled, and the memcache.ServerSelector of a client with one server.
type address struct{ network, text string }

func (a address) Network() string                     { return a.network }
func (a address) String() string                      { return a.text }
func (a address) PickServer(string) (net.Addr, error) { return a, nil }
func (a address) Each(do func(net.Addr) error) error  { return do(a) }

// traced makes a call, and records it if there is a trace.
func traced[T any](ctx context.Context, s *server, t *backend.Trace, op, command string,
	do func(context.Context) (T, error)) (T, error) {
	if t == nil {
		return callguard.Do(ctx, s.guard, op, s.guard.Deadline(), do)
	}
	c := backend.Call{System: "memcached", Node: s.name, Op: op, Command: command, Start: time.Now()}
	reply, err := callguard.Do(ctx, s.guard, op, s.guard.Deadline(), do)
	tracing.Record(t, c, err)
	return reply, err
}

// close waits for the calls in flight.
func (s *server) close() error {
	if !s.guard.Close() {
		return nil
	}
	return s.client.Close()
}

func (s *server) ping(ctx context.Context) error {
	_, err := callguard.Do(ctx, s.guard, "ping", s.guard.Deadline(), func(context.Context) (struct{}, error) {
		err := s.client.Ping()
		if isLost(err) { // as in get
			_ = s.client.Close()
			err = s.client.Ping()
		}
		return struct{}{}, err
	})
	return err
}

// get reads an item. It returns nil if there is none.
func (s *server) get(name string) (*memcache.Item, state.State, error) {
	item, err := s.client.Get(name)
	if isLost(err) { // after a restart, most likely, the other idle connections are lost, too
		_ = s.client.Close() // only the idle ones
		item, err = s.client.Get(name)
	}
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil, state.State{}, nil
	}
	if err != nil {
		return nil, state.State{}, callguard.Unsent(err)
	}
	st, err := state.ParseState(item.Value)
	return item, st, err
}

// isLost reports whether a connection broke under a call.
func isLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// swap stores the state in place of item.
func (s *server) swap(item *memcache.Item, name string, st *state.State, nowMicros int64) error {
	value, err := st.AppendText(nil)
	if err != nil {
		return callguard.Unsent(err)
	}
	expiry := expiration(nowMicros, st.Until())
	if item == nil {
		return s.client.Add(&memcache.Item{Key: name, Value: value, Expiration: expiry})
	}
	if item.CasID == 0 {
		return errNoSwap
	}
	item.Value, item.Expiration = value, expiry
	return s.client.CompareAndSwap(item)
}

var (
	errContended  = errors.New("others changed the item at every try")
	errUnreadable = errors.New("memcache: unexpected line in a response")
	errNoSwap     = errors.New("the server was started without compare-and-swap (-C)")
	errNoRoom     = errors.New("memcache: the server has no room for the item")
)

// classify classifies the client's errors for [outcome.Wrap].
func classify(err error) (kind backend.Kind, mayHaveRun bool, shown error) {
	mayHaveRun, shown = !callguard.IsUnsent(err), err
	text := err.Error()
	noRoom := strings.Contains(text, `: "SERVER_ERROR out of memory`) ||
		strings.Contains(text, `: "SERVER_ERROR object too large`)
	switch { // gomemcache quotes the server's reply, which may hold a key
	case noRoom:
		shown = errNoRoom
	case strings.Contains(text, "memcache: unexpected"):
		shown = errUnreadable
	}
	var dial *net.OpError
	var connect *memcache.ConnectTimeoutError
	switch {
	case errors.Is(err, errContended):
		return backend.Contended, false, shown
	case errors.Is(err, state.ErrCorruptState):
		return backend.Corrupt, false, shown
	case errors.Is(err, context.Canceled):
		return backend.Interrupted, mayHaveRun, shown
	case errors.As(err, &dial) && dial.Op == "dial", errors.As(err, &connect):
		return backend.Unavailable, false, shown
	case errors.Is(err, errNoSwap), noRoom:
		return backend.Misconfigured, false, shown
	}
	return backend.Unavailable, mayHaveRun, shown
}
