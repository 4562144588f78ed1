package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/ring"
)

// MemcachedConfig configures a Memcached. The zero value is ready to use.
type MemcachedConfig struct {
	// Prefix starts the name of every item: [A-Za-z0-9_:.-]{1,16}. Empty: "sl:".
	Prefix string

	// Timeout is how long one call may take, all its tries included; an earlier deadline of the caller's context
	// wins. Zero: 250 ms.
	Timeout time.Duration

	// Tries is how often a call reads an item and tries to swap it before it gives up because others were faster: at most,
	// for after three quarters of its time it tries no more. Zero: 16.
	Tries int

	// IdleConns is how many connections to a server are kept open. Zero: 16.
	IdleConns int

	// MaxCalls is how many calls may be under way at once; more wait for their turn. It bounds the connections while a
	// server hangs. Zero: 256.
	MaxCalls int

	// Now replaces the clock. Memcached has none that can be asked, so the hosts of all processes must keep the same
	// time: a clock that is off by d opens and ends windows d too early or late. Nil: time.Now.
	Now func() time.Time
}

const (
	defaultMemcachedTimeout = 250 * time.Millisecond
	defaultMemcachedTries   = 16
	defaultIdleConns        = 16
	defaultMaxCalls         = 256
)

func (c MemcachedConfig) withDefaults() MemcachedConfig {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.Timeout == 0 {
		c.Timeout = defaultMemcachedTimeout
	}
	if c.Tries == 0 {
		c.Tries = defaultMemcachedTries
	}
	if c.IdleConns == 0 {
		c.IdleConns = defaultIdleConns
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = defaultMaxCalls
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func (c MemcachedConfig) validate() error {
	errs := []error{checkPrefix(c.Prefix)}
	bad := func(field, value string) {
		errs = append(errs, &limit.Error{Field: field, Value: value, Bound: "must not be negative"})
	}
	if c.Timeout < 0 {
		bad("timeout", c.Timeout.String())
	}
	if c.Tries < 0 {
		bad("tries", strconv.Itoa(c.Tries))
	}
	if c.IdleConns < 0 {
		bad("idle connections", strconv.Itoa(c.IdleConns))
	}
	if c.MaxCalls < 0 {
		bad("max calls", strconv.Itoa(c.MaxCalls))
	}
	return errors.Join(errs...)
}

// Memcached counts in a pool of Memcached servers, 1.4 or newer, over which a ring spreads the keys. All limits of a
// policy for a key are one item in the encoding of package limit, changed by compare-and-swap: an eviction can't
// part what belongs together, and costs at most one window.
//
// It is there to be moved away from (see Dual): it has no replicas, its pool does not hand keys over when servers
// come and go, and under contention a call may end without a verdict, as an Error of kind Contended that charged
// nothing.
type Memcached struct {
	cfg    MemcachedConfig
	client *memcache.Client
	calls  calls
}

var (
	_ Backend  = (*Memcached)(nil)
	_ Peeker   = (*Memcached)(nil)
	_ Refunder = (*Memcached)(nil)
	_ Resetter = (*Memcached)(nil)
	_ Pinger   = (*Memcached)(nil)
	_ Loader   = (*Memcached)(nil)
	_ Seeder   = (*Memcached)(nil)
	_ Sealer   = (*Memcached)(nil)
	_ Clock    = (*Memcached)(nil)
)

// NewMemcached counts on servers, each "host:port" or the path of a Unix socket. Every process must name them alike.
// It does no network I/O; Ping does.
func NewMemcached(servers []string, cfg MemcachedConfig) (*Memcached, error) {
	cfg = cfg.withDefaults()
	pool, err := newMemcachedPool(servers)
	if err = errors.Join(err, cfg.validate()); err != nil {
		return nil, err
	}
	client := memcache.NewFromSelector(pool)
	client.Timeout = cfg.Timeout
	client.MaxIdleConns = cfg.IdleConns
	return &Memcached{
		cfg: cfg, client: client,
		calls: calls{
			system: "memcached",
			node:   "memcached", timeout: cfg.Timeout, explain: explainMemcached,
			deaf: true, slots: make(chan struct{}, cfg.MaxCalls),
		},
	}, nil
}

// memcachedPool picks servers by a ring of their addresses. It is a memcache.ServerSelector.
type memcachedPool struct {
	ring    *ring.Ring
	servers map[string]net.Addr
}

func newMemcachedPool(servers []string) (*memcachedPool, error) {
	pool := &memcachedPool{servers: make(map[string]net.Addr, len(servers))}
	members := make([]ring.Member, len(servers))
	var errs []error
	for i, server := range servers {
		members[i] = ring.Member{Name: server}
		if strings.Contains(server, "/") {
			pool.servers[server] = address{"unix", server}
			continue
		}
		if _, port, err := net.SplitHostPort(server); err != nil || port == "" {
			errs = append(errs, &limit.Error{Field: fmt.Sprintf("servers[%d]", i), Value: strconv.Quote(server),
				Bound: `must be "host:port" or the path of a Unix socket, with a slash`})
		}
		pool.servers[server] = address{"tcp", server}
	}
	var err error
	pool.ring, err = ring.New(members, ring.Config{})
	return pool, errors.Join(append(errs, err)...)
}

// address is a net.Addr that is resolved when it is dialled, not before.
type address struct{ network, text string }

func (a address) Network() string { return a.network }
func (a address) String() string  { return a.text }

func (p *memcachedPool) PickServer(key string) (net.Addr, error) {
	return p.servers[p.ring.Owner(key)], nil
}

func (p *memcachedPool) Each(do func(net.Addr) error) error {
	errs := make(chan error, len(p.servers))
	for _, server := range p.servers { // at once: a frozen one must not keep the others waiting
		go func() { errs <- do(server) }()
	}
	var all []error
	for range p.servers {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// Take implements [Backend].
func (m *Memcached) Take(ctx context.Context, req Request) (Result, error) {
	if err := req.CheckTake(ctx); err != nil {
		return Result{}, err
	}
	if err := checkExpiry(req.Policy); err != nil {
		return Result{}, err
	}
	return change(ctx, m, opTake, &req, func(req *Request, s *limit.State, now limit.At) (Result, bool, error) {
		news, err := s.Arrive(req.Policy, now, req.Move, req.Floor, true)
		if err != nil {
			return Result{}, false, err
		}
		v := s.Take(req.Policy, now, req.Cost)
		return Result{Verdict: v, Now: now.Micros, State: *s, Source: Primary}, v.Allowed || news, nil
	})
}

// Refund implements [Refunder].
func (m *Memcached) Refund(ctx context.Context, req Request, receipt limit.Receipt, amount int64) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	if receipt.Refundable(amount) < 1 {
		return nil
	}
	return m.update(ctx, opRefund, &req, func(_ *Request, s *limit.State, now limit.At) { s.Refund(now, &receipt, amount) })
}

// Reset implements [Resetter].
func (m *Memcached) Reset(ctx context.Context, req Request) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	return m.update(ctx, opReset, &req, func(req *Request, s *limit.State, now limit.At) { s.Reset(req.Policy, now) })
}

// update changes the state of a key, if there is one.
func (m *Memcached) update(ctx context.Context, op string, req *Request, do func(*Request, *limit.State, limit.At)) error {
	_, err := change(ctx, m, op, req, func(req *Request, s *limit.State, now limit.At) (struct{}, bool, error) {
		if _, err := s.Enter(now, req.giveBackMove()); err != nil || s.Empty() {
			return struct{}{}, false, err
		}
		do(req, s, now)
		return struct{}{}, true, nil
	})
	return err
}

// Seed implements [Seeder].
func (m *Memcached) Seed(ctx context.Context, req Request, state limit.State) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	state = state.Clone()
	_, err := change(ctx, m, "seed", &req, func(req *Request, s *limit.State, now limit.At) (struct{}, bool, error) {
		changed, err := s.Arrive(req.Policy, now, req.Move, &state, false)
		return struct{}{}, changed, err
	})
	return err
}

// Seal implements [Sealer].
func (m *Memcached) Seal(ctx context.Context, req Request) (Snapshot, error) {
	if err := req.CheckSeal(ctx); err != nil {
		return Snapshot{}, err
	}
	return change(ctx, m, "seal", &req, func(req *Request, s *limit.State, now limit.At) (Snapshot, bool, error) {
		sealed, err := s.Seal(now, req.Move)
		return Snapshot{State: *s, Now: now.Micros, Source: Primary}, sealed, err
	})
}

// Load implements [Loader].
func (m *Memcached) Load(ctx context.Context, req Request) (Snapshot, error) {
	if err := req.Check(ctx); err != nil {
		return Snapshot{}, err
	}
	name := m.name(&req)
	return traced(ctx, &m.calls, req.Trace, "load", "get", m.calls.deadline(), func(context.Context) (Snapshot, error) {
		_, state, err := m.get(name)
		return Snapshot{State: state, Now: m.NowMicros(), Source: Primary}, err
	})
}

// Peek implements [Peeker].
func (m *Memcached) Peek(ctx context.Context, req Request) (Result, error) {
	if err := req.CheckTake(ctx); err != nil {
		return Result{}, err
	}
	snapshot, err := m.Load(ctx, req)
	if err != nil {
		return Result{}, err
	}
	return snapshot.Peek(&req), nil
}

// Ping implements [Pinger]: it asks every server.
func (m *Memcached) Ping(ctx context.Context) error {
	if ctx != nil && ctx.Err() != nil { // a server that is fast would hide it
		return ctx.Err()
	}
	_, err := call(ctx, &m.calls, "ping", m.calls.deadline(), func(context.Context) (struct{}, error) {
		err := m.client.Ping()
		if isLost(err) { // as in get
			_ = m.client.Close()
			err = m.client.Ping()
		}
		return struct{}{}, err
	})
	return err
}

// NowMicros implements [Clock].
func (m *Memcached) NowMicros() int64 { return m.cfg.Now().UnixMicro() }

// Close waits for the calls under way, which end within three times the timeout, and closes the connections.
func (m *Memcached) Close() error {
	if !m.calls.close() {
		return nil
	}
	return m.client.Close()
}

func (m *Memcached) name(req *Request) string {
	return storedName(m.cfg.Prefix, req.Policy.Name, req.Key)
}

// get reads an item; nil if there is none.
func (m *Memcached) get(name string) (*memcache.Item, limit.State, error) {
	item, err := m.client.Get(name)
	if isLost(err) { // so are the other idle connections, most likely: a restart
		_ = m.client.Close() // only the idle ones
		item, err = m.client.Get(name)
	}
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil, limit.State{}, nil
	}
	if err != nil {
		return nil, limit.State{}, unsent{err}
	}
	state, err := limit.ParseState(item.Value)
	return item, state, err
}

// change reads the state of a key, changes it and swaps it in if nobody else did meanwhile, else it begins again, unless three
// quarters of its time have gone: one that ran out of it could not say that the server is well. A change that is not to be
// written, or refused with an error, is only read. Once the caller has gone nothing more is written.
func change[T any](ctx context.Context, m *Memcached, op string, req *Request,
	do func(*Request, *limit.State, limit.At) (result T, write bool, refusal error)) (T, error) {
	name, own := m.name(req), req.clone() // a call that was abandoned goes on for a while
	return traced(ctx, &m.calls, req.Trace, op, "", m.calls.deadline(), func(ctx context.Context) (T, error) {
		var none T
		last := errContended
		begin := time.Now()
		deadline, _ := ctx.Deadline()
		enough := deadline.Sub(begin) * 3 / 4
		for try := range m.cfg.Tries {
			if err := sleep(ctx, backoff(try)); err != nil {
				return none, unsent{err}
			}
			item, state, err := m.get(name)
			if isLost(err) { // an idle connection that the server had closed; others may be alive
				last = err
				continue
			}
			if err != nil {
				return none, err
			}
			now := own.at(m.NowMicros())
			result, write, err := do(&own, &state, now)
			if err != nil || !write {
				return result, err
			}
			if err := ctx.Err(); err != nil {
				return none, unsent{err}
			}
			if err = m.swap(item, name, &state, now.Micros); err == nil {
				return result, nil
			}
			if !isConflict(err) {
				return none, err
			}
			if last = errContended; time.Since(begin) > enough {
				break
			}
		}
		return none, last
	})
}

// isConflict reports whether somebody else was faster: the item came, changed or went between reading and swapping.
func isConflict(err error) bool {
	return errors.Is(err, memcache.ErrNotStored) || errors.Is(err, memcache.ErrCASConflict) ||
		errors.Is(err, memcache.ErrCacheMiss)
}

// isLost reports whether a connection broke under a call.
func isLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// backoff is how long to wait before a try: others are at the same key, and must not be met again.
func backoff(try int) time.Duration {
	if try == 0 {
		return 0
	}
	return rand.N(min(100*time.Microsecond<<min(try, 7), 10*time.Millisecond))
}

// swap stores the state where item was.
func (m *Memcached) swap(item *memcache.Item, name string, state *limit.State, nowMicros int64) error {
	value, err := state.AppendText(nil)
	if err != nil {
		return unsent{err}
	}
	expiry := expiration(nowMicros, state.Until())
	if item == nil {
		return m.client.Add(&memcache.Item{Key: name, Value: value, Expiration: expiry})
	}
	if item.CasID == 0 {
		return errNoSwap
	}
	item.Value, item.Expiration = value, expiry
	return m.client.CompareAndSwap(item)
}

const (
	relativeExpiry = 30 * 24 * 60 * 60 // longer ones are read as a Unix time
	expirySlack    = 2                 // seconds; the server's clock moves in steps of one
)

// expiration is a Memcached expiration that is not before until. It serves cleaning only, by the server's clock.
func expiration(nowMicros, until int64) int32 {
	seconds := (max(until-nowMicros, 0)+999_999)/1_000_000 + expirySlack
	if seconds > relativeExpiry {
		seconds += time.Now().Unix()
	}
	return int32(min(seconds, math.MaxInt32))
}

// checkExpiry refuses windows that end after the last Unix time that Memcached can express, in 2038.
func checkExpiry(p *limit.Policy) error {
	room := time.Duration(math.MaxInt32-time.Now().Unix()-expirySlack) * time.Second
	if horizon := p.Horizon(); horizon > room {
		return &limit.Error{Field: "window", Value: horizon.String(),
			Bound: fmt.Sprintf("must be at most %s: Memcached's times end in 2038", room)}
	}
	return nil
}

var (
	errContended  = errors.New("others changed the item at every try")
	errUnreadable = errors.New("memcache: unexpected line in a response")
	errNoSwap     = errors.New("the server was started without compare-and-swap (-C)")
	errNoRoom     = errors.New("memcache: the server has no room for the item")
)

// explainMemcached is for [calls].
func explainMemcached(err error) (kind Kind, mayHaveRun bool, shown error) {
	var before unsent
	mayHaveRun, shown = !errors.As(err, &before), err
	text := err.Error()
	noRoom := strings.Contains(text, `: "SERVER_ERROR out of memory`) ||
		strings.Contains(text, `: "SERVER_ERROR object too large`)
	switch { // gomemcache quotes what the server sent, a key perhaps
	case noRoom:
		shown = errNoRoom
	case strings.Contains(text, "memcache: unexpected"):
		shown = errUnreadable
	}
	var dial *net.OpError
	var connect *memcache.ConnectTimeoutError
	switch {
	case errors.Is(err, errContended):
		return Contended, false, shown
	case errors.Is(err, limit.ErrCorruptState):
		return Corrupt, false, shown
	case errors.Is(err, context.Canceled):
		return Interrupted, mayHaveRun, shown
	case errors.As(err, &dial) && dial.Op == "dial", errors.As(err, &connect):
		return Unavailable, false, shown
	case errors.Is(err, errNoSwap):
		return Misconfigured, false, shown
	case noRoom:
		return Unavailable, false, shown
	}
	return Unavailable, mayHaveRun, shown
}
