package memcached

import (
	"cmp"
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
	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/internal/callguard"
	"github.com/sluice-go/sluice/internal/deadline"
	"github.com/sluice-go/sluice/internal/fielderrors"
	"github.com/sluice-go/sluice/internal/storedname"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/ring"
)

// Config configures a Memcached. The zero value is ready to use.
type Config struct {
	// Prefix starts the name of every item: [A-Za-z0-9_:.-]{1,16}. Empty: "sl:".
	Prefix string

	// Timeout bounds one call with all its tries; an earlier deadline of the caller's context wins. Zero: 250 ms.
	Timeout time.Duration

	// Tries bounds how often a call reads an item and tries to swap it while others change it. No try starts after three
	// quarters of Timeout. Zero: 16.
	Tries int

	// IdleConns is the number of idle connections kept open to each server. Zero: 16.
	IdleConns int

	// MaxCalls bounds the concurrent calls to each server; further calls to that server wait. It bounds the connections to a
	// server that has stopped answering. Zero: 256.
	MaxCalls int

	// Now replaces the clock. Memcached's own can't be read, so the clocks of all processes must agree: a clock that is off
	// by d opens and ends windows d too early or late. Nil: time.Now.
	Now func() time.Time
}

const (
	defaultTimeout   = 250 * time.Millisecond
	defaultTries     = 16
	defaultIdleConns = 16
	defaultMaxCalls  = 256
	maxServers       = 2048 // as many as package ring has points for
)

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, storedname.DefaultPrefix)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Tries = cmp.Or(c.Tries, defaultTries)
	c.IdleConns = cmp.Or(c.IdleConns, defaultIdleConns)
	c.MaxCalls = cmp.Or(c.MaxCalls, defaultMaxCalls)
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
// policy for a key are one item in the encoding of package limit/state, changed by compare-and-swap: an eviction
// drops all counts of a key together, and costs at most one window.
//
// It serves migrations away from Memcached (see package dual). It has no replicas, a changed pool doesn't hand keys over, and
// under contention a call may fail with an Error of kind Contended, which charged nothing. Memcached doesn't report what it
// loses by restarts and evictions: decisions are exact only as far as it keeps its items.
type Memcached struct {
	cfg     Config
	ring    *ring.Ring
	servers map[string]*server // by the names in ring
}

var (
	_ backend.Backend  = (*Memcached)(nil)
	_ backend.Peeker   = (*Memcached)(nil)
	_ backend.Refunder = (*Memcached)(nil)
	_ backend.Charger  = (*Memcached)(nil)
	_ backend.Resetter = (*Memcached)(nil)
	_ backend.Granter  = (*Memcached)(nil)
	_ backend.Pinger   = (*Memcached)(nil)
	_ backend.Loader   = (*Memcached)(nil)
	_ backend.Seeder   = (*Memcached)(nil)
	_ backend.Sealer   = (*Memcached)(nil)
	_ control.Clock    = (*Memcached)(nil)
)

// New returns a Memcached over servers, each "host:port" or the path of a Unix socket. Every process must use the same names.
// New does no network I/O; Ping does.
func New(servers []string, cfg Config) (*Memcached, error) {
	cfg = cfg.withDefaults()
	names, err := newRing(servers)
	if err = errors.Join(err, cfg.validate()); err != nil {
		return nil, err
	}
	m := &Memcached{cfg: cfg, ring: names, servers: make(map[string]*server, len(servers))}
	for _, name := range servers {
		m.servers[name] = newServer(name, &cfg)
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
		changed, err := s.Arrive(req.Policy, now, req.Move, req.Floor, true)
		if err != nil {
			return backend.Result{}, false, err
		}
		v := s.Take(req.Policy, now, req.Cost)
		return backend.Result{Verdict: v, Now: now.Micros, State: *s, Source: backend.Primary}, v.Allowed || changed, nil
	})
}

// Charge implements [backend.Charger].
func (m *Memcached) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	if err := req.CheckCharge(ctx); err != nil {
		return backend.Result{}, err
	}
	if err := checkExpiry(req.Policy); err != nil {
		return backend.Result{}, err
	}
	return change(ctx, m, "charge", &req, func(req *backend.Request, s *state.State, now state.At) (backend.Result, bool, error) {
		if _, err := s.Arrive(req.Policy, now, req.Move, req.Floor, true); err != nil {
			return backend.Result{}, false, err
		}
		v := s.Charge(req.Policy, now, mark, req.Cost)
		return backend.Result{Verdict: v, Now: now.Micros, State: *s, Source: backend.Primary}, !s.Empty(), nil
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

// Grant implements [backend.Granter].
func (m *Memcached) Grant(ctx context.Context, req backend.Request, extra int64) error {
	if err := req.CheckGrant(ctx, extra); err != nil {
		return err
	}
	return m.update(ctx, "grant", &req, func(req *backend.Request, s *state.State, now state.At) { s.Grant(req.Policy, now, extra) })
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

// Ping implements [backend.Pinger]: it pings every server.
func (m *Memcached) Ping(ctx context.Context) error {
	if ctx == nil {
		return fielderrors.ErrNilContext
	}
	if ctx.Err() != nil { // a fast server would hide it
		return ctx.Err()
	}
	err := m.each(func(s *server) error { return s.ping(ctx) })
	if errors.Is(err, backend.ErrClosed) {
		return backend.ErrClosed
	}
	return err
}

// NowMicros implements [control.Clock].
func (m *Memcached) NowMicros() int64 { return m.cfg.Now().UnixMicro() }

// Close waits for the calls in flight, at most three times Timeout, and closes the connections.
func (m *Memcached) Close() error {
	return m.each((*server).close)
}

// each calls do for all servers concurrently, so that a frozen one doesn't delay the others. Errors are in the order of the
// servers' names.
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

// serverOf returns the server that stores an item.
func (m *Memcached) serverOf(name string) *server { return m.servers[m.ring.Owner(name)] }

// change reads the state of a key, applies do, and stores the result by compare-and-swap. After a conflict it starts again,
// unless three quarters of its time have passed: a timeout would not show that the server is healthy. It stores nothing if do
// returns false or an error, or once the context has ended.
func change[T any](ctx context.Context, m *Memcached, op string, req *backend.Request,
	do func(*backend.Request, *state.State, state.At) (result T, write bool, refusal error)) (T, error) {
	name, own := m.name(req), cloneRequest(req) // an abandoned call continues for a while
	server := m.serverOf(name)
	return traced(ctx, server, req.Trace, op, "", func(ctx context.Context) (T, error) {
		var zero T
		last := errContended
		begin := time.Now()
		end, _ := ctx.Deadline()
		retryFor := end.Sub(begin) * 3 / 4
		for try := range m.cfg.Tries {
			if err := deadline.Sleep(ctx, backoff(try)); err != nil {
				return zero, callguard.Unsent(err)
			}
			item, st, err := server.get(name)
			if isLost(err) { // the server had closed this idle connection; others may work
				last = err
				continue
			}
			if err != nil {
				return zero, err
			}
			now := state.Moment(own.Policy, own.Key, m.NowMicros())
			result, write, err := do(&own, &st, now)
			if err != nil || !write {
				return result, err
			}
			if err := ctx.Err(); err != nil {
				return zero, callguard.Unsent(err)
			}
			if err = server.swap(item, name, &st, now.Micros); err == nil {
				return result, nil
			}
			if !isConflict(err) {
				return zero, err
			}
			if last = errContended; time.Since(begin) > retryFor {
				break
			}
		}
		return zero, last
	})
}

// isConflict reports whether another caller added, changed or deleted the item between the read and the swap.
func isConflict(err error) bool {
	return errors.Is(err, memcache.ErrNotStored) || errors.Is(err, memcache.ErrCASConflict) ||
		errors.Is(err, memcache.ErrCacheMiss)
}

// backoff returns a random wait before a try, so that contenders for a key spread.
func backoff(try int) time.Duration {
	if try == 0 {
		return 0
	}
	return rand.N(min(100*time.Microsecond<<min(try, 7), 10*time.Millisecond))
}

const (
	relativeExpiry = 30 * 24 * 60 * 60 // Memcached reads larger values as Unix times
	expirySlack    = 2                 // seconds; the server's clock moves in steps of one
)

// expiration returns a Memcached expiration that is not before until. It only frees memory, by the server's clock.
func expiration(nowMicros, until int64) int32 {
	seconds := (max(until-nowMicros, 0)+999_999)/1_000_000 + expirySlack
	if seconds > relativeExpiry {
		seconds += time.Now().Unix()
	}
	return int32(min(seconds, math.MaxInt32))
}

// checkExpiry rejects windows that end after the last Unix time that Memcached can express, in 2038.
func checkExpiry(p *limit.Policy) error {
	room := time.Duration(math.MaxInt32-time.Now().Unix()-expirySlack) * time.Second
	if horizon := state.Horizon(p); horizon > room {
		return &limit.Error{Field: "window", Value: horizon.String(),
			Bound: fmt.Sprintf("must be at most %s: Memcached's times end in 2038", room)}
	}
	return nil
}

// cloneRequest returns a copy that doesn't share what belongs to the caller again once the call has returned.
func cloneRequest(r *backend.Request) backend.Request {
	c := *r
	c.Policy = &limit.Policy{Name: r.Policy.Name, Limits: slices.Clone(r.Policy.Limits)}
	c.Trace = nil
	if r.Floor != nil {
		floor := r.Floor.Clone()
		c.Floor = &floor
	}
	return c
}
