package memcached

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/storedname"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/ring"
)

// MemcachedConfig configures a Memcached. The zero value is ready to use.
type Config struct {
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

	// MaxCalls is how many calls to a server may be under way at once; more wait for their turn, and calls to other
	// servers don't. It bounds the connections to a server that hangs. Zero: 256.
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
	maxServers              = 2048 // what package ring has points for
)

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = storedname.DefaultPrefix
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

func (c Config) validate() error {
	errs := fielderrors.List{Prefix: "memcached: "}
	fielderrors.NotNegative(&errs, "Timeout", c.Timeout)
	fielderrors.NotNegative(&errs, "Tries", c.Tries)
	fielderrors.NotNegative(&errs, "IdleConns", c.IdleConns)
	fielderrors.NotNegative(&errs, "MaxCalls", c.MaxCalls)
	return errors.Join(storedname.CheckPrefix("memcached: Prefix", c.Prefix), errs.Err())
}

// Memcached counts in a pool of Memcached servers, 1.4 or newer, over which a ring spreads the keys. All limits of a
// policy for a key are one item in the encoding of package limit/state, changed by compare-and-swap: an eviction can't
// part what belongs together, and costs at most one window.
//
// It is there to be moved away from (see Dual): it has no replicas, its pool does not hand keys over when servers
// come and go, and under contention a call may end without a verdict, as an Error of kind Contended that charged
// nothing. Its servers don't tell what they lose by restarts and evictions: its decisions are exact as far as they keep
// their items.
type Memcached struct {
	cfg     Config
	ring    *ring.Ring
	servers map[string]*server // by the names in ring
}

var (
	_ backend.Backend  = (*Memcached)(nil)
	_ backend.Peeker   = (*Memcached)(nil)
	_ backend.Refunder = (*Memcached)(nil)
	_ backend.Resetter = (*Memcached)(nil)
	_ backend.Pinger   = (*Memcached)(nil)
	_ backend.Loader   = (*Memcached)(nil)
	_ backend.Seeder   = (*Memcached)(nil)
	_ backend.Sealer   = (*Memcached)(nil)
	_ backend.Clock    = (*Memcached)(nil)
)

// NewMemcached counts on servers, each "host:port" or the path of a Unix socket. Every process must name them alike.
// It does no network I/O; Ping does.
func New(servers []string, cfg Config) (*Memcached, error) {
	cfg = cfg.withDefaults()
	names, err := newMemcachedRing(servers)
	if err = errors.Join(err, cfg.validate()); err != nil {
		return nil, err
	}
	m := &Memcached{cfg: cfg, ring: names, servers: make(map[string]*server, len(servers))}
	for _, name := range servers {
		m.servers[name] = newMemcachedServer(name, &cfg)
	}
	return m, nil
}

// Take implements [backend.Backend].
func (m *Memcached) Take(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := req.CheckTake(ctx); err != nil {
		return backend.Result{}, err
	}
	if err := checkExpiry(req.Policy); err != nil {
		return backend.Result{}, err
	}
	return change(ctx, m, "take", &req, func(req *backend.Request, s *state.State, now state.At) (backend.Result, bool, error) {
		news, err := s.Arrive(req.Policy, now, req.Move, req.Floor, true)
		if err != nil {
			return backend.Result{}, false, err
		}
		v := s.Take(req.Policy, now, req.Cost)
		return backend.Result{Verdict: v, Now: now.Micros, State: *s, Source: backend.Primary}, v.Allowed || news, nil
	})
}

// Refund implements [backend.Refunder].
func (m *Memcached) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	if receipt.Refundable(amount) < 1 {
		return nil
	}
	return m.update(ctx, "refund", &req, func(_ *backend.Request, s *state.State, now state.At) { s.Refund(now, &receipt, amount) })
}

// Reset implements [backend.Resetter].
func (m *Memcached) Reset(ctx context.Context, req backend.Request) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	return m.update(ctx, "reset", &req, func(req *backend.Request, s *state.State, now state.At) { s.Reset(req.Policy, now) })
}

// update changes the state of a key, if there is one.
func (m *Memcached) update(ctx context.Context, op string, req *backend.Request, do func(*backend.Request, *state.State, state.At)) error {
	_, err := change(ctx, m, op, req, func(req *backend.Request, s *state.State, now state.At) (struct{}, bool, error) {
		if _, err := s.Enter(now, req.Move.GiveBack()); err != nil || s.Empty() {
			return struct{}{}, false, err
		}
		do(req, s, now)
		return struct{}{}, true, nil
	})
	return err
}

// Seed implements [backend.Seeder].
func (m *Memcached) Seed(ctx context.Context, req backend.Request, st state.State) error {
	if err := req.Check(ctx); err != nil {
		return err
	}
	st = st.Clone()
	_, err := change(ctx, m, "seed", &req, func(req *backend.Request, s *state.State, now state.At) (struct{}, bool, error) {
		changed, err := s.Arrive(req.Policy, now, req.Move, &st, false)
		return struct{}{}, changed, err
	})
	return err
}

// Seal implements [backend.Sealer].
func (m *Memcached) Seal(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := req.CheckSeal(ctx); err != nil {
		return backend.Snapshot{}, err
	}
	return change(ctx, m, "seal", &req, func(req *backend.Request, s *state.State, now state.At) (backend.Snapshot, bool, error) {
		sealed, err := s.Seal(now, req.Move)
		return backend.Snapshot{State: *s, Now: now.Micros, Source: backend.Primary}, sealed, err
	})
}

// Load implements [backend.Loader].
func (m *Memcached) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	if err := req.Check(ctx); err != nil {
		return backend.Snapshot{}, err
	}
	name := m.name(&req)
	s := m.serverOf(name)
	return traced(ctx, s, req.Trace, "load", "get", func(context.Context) (backend.Snapshot, error) {
		_, st, err := s.get(name)
		return backend.Snapshot{State: st, Now: m.NowMicros(), Source: backend.Primary}, err
	})
}

// Peek implements [backend.Peeker].
func (m *Memcached) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	if err := req.CheckTake(ctx); err != nil {
		return backend.Result{}, err
	}
	snapshot, err := m.Load(ctx, req)
	if err != nil {
		return backend.Result{}, err
	}
	return snapshot.Peek(&req), nil
}

// Ping implements [backend.Pinger]: it asks every server.
func (m *Memcached) Ping(ctx context.Context) error {
	if ctx == nil {
		return backend.ErrNilContext
	}
	if ctx.Err() != nil { // a server that is fast would hide it
		return ctx.Err()
	}
	err := m.each(func(s *server) error { return s.ping(ctx) })
	if errors.Is(err, backend.ErrClosed) {
		return backend.ErrClosed
	}
	return err
}

// NowMicros implements [backend.Clock].
func (m *Memcached) NowMicros() int64 { return m.cfg.Now().UnixMicro() }

// Close waits for the calls under way, which end within three times the timeout, and closes the connections.
func (m *Memcached) Close() error {
	return m.each((*server).close)
}

// each does something at all servers at once, so that a frozen one doesn't keep the others waiting. Errors come in the
// order of the servers' names.
func (m *Memcached) each(do func(*server) error) error {
	names := slices.Sorted(maps.Keys(m.servers))
	errs := make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { errs[i] = do(m.servers[name]) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (m *Memcached) name(req *backend.Request) string {
	return storedname.Of(m.cfg.Prefix, req.Policy.Name, req.Key)
}

// server is where an item is stored.
func (m *Memcached) serverOf(name string) *server { return m.servers[m.ring.Owner(name)] }

// change reads the state of a key, changes it and swaps it in if nobody else did meanwhile, else it begins again, unless three
// quarters of its time have gone: one that ran out of it could not say that the server is well. A change that is not to be
// written, or refused with an error, is only read. Once the caller has gone nothing more is written.
func change[T any](ctx context.Context, m *Memcached, op string, req *backend.Request,
	do func(*backend.Request, *state.State, state.At) (result T, write bool, refusal error)) (T, error) {
	name, own := m.name(req), req.Clone() // a call that was abandoned goes on for a while
	server := m.serverOf(name)
	return traced(ctx, server, req.Trace, op, "", func(ctx context.Context) (T, error) {
		var none T
		last := errContended
		begin := time.Now()
		end, _ := ctx.Deadline()
		enough := end.Sub(begin) * 3 / 4
		for try := range m.cfg.Tries {
			if err := deadline.Sleep(ctx, backoff(try)); err != nil {
				return none, callguard.Unsent(err)
			}
			item, st, err := server.get(name)
			if isLost(err) { // an idle connection that the server had closed; others may be alive
				last = err
				continue
			}
			if err != nil {
				return none, err
			}
			now := state.Moment(own.Policy, own.Key, m.NowMicros())
			result, write, err := do(&own, &st, now)
			if err != nil || !write {
				return result, err
			}
			if err := ctx.Err(); err != nil {
				return none, callguard.Unsent(err)
			}
			if err = server.swap(item, name, &st, now.Micros); err == nil {
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

// backoff is how long to wait before a try: others are at the same key, and must not be met again.
func backoff(try int) time.Duration {
	if try == 0 {
		return 0
	}
	return rand.N(min(100*time.Microsecond<<min(try, 7), 10*time.Millisecond))
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
	if horizon := state.Horizon(p); horizon > room {
		return &limit.Error{Field: "window", Value: horizon.String(),
			Bound: fmt.Sprintf("must be at most %s: Memcached's times end in 2038", room)}
	}
	return nil
}
