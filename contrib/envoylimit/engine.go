package envoylimit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/backend/lease"
	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
	"github.com/sluice-go/sluice/throttler"
)

// engineKey is what domains must have in common to share an engine: the lease of Config, that of their files, or none.
type engineKey struct {
	common *lease.Config
	own    rules.Lease
	leased bool // by own
}

// engine decides for the domains that lease alike.
type engine struct {
	key      engineKey
	counts   backend.Backend // the Throttler's
	lease    *lease.Lease    // nil: none
	throttle *throttler.Throttler

	users   atomic.Int64
	retired atomic.Bool
	idle    chan struct{} // closed once retired and without users
	once    sync.Once
}

func (s *Service) engineKey(d *rules.Domain) engineKey {
	if d.Lease != nil {
		return engineKey{own: *d.Lease, leased: true}
	}
	return engineKey{common: s.cfg.Lease}
}

func (s *Service) newEngine(key engineKey) (*engine, error) {
	e := &engine{key: key, counts: s.inner, idle: make(chan struct{})}
	if key.leased || key.common != nil {
		leases := key.own.Config()
		if key.common != nil {
			leases = *key.common
		}
		var err error
		if e.lease, err = lease.New(shared{s.inner}, leases); err != nil {
			return nil, err
		}
		e.counts = e.lease
	}
	cfg := s.cfg.Throttler
	cfg.Backend, cfg.Policy, cfg.PolicyFor = e.counts, unmatched, policyFor
	cfg.Observer = throttler.Observers(cfg.Observer, recorder{})
	var err error
	if e.throttle, err = throttler.New(cfg); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// unmatched is the policy that a Throttler must have; every request brings its own.
var unmatched = limit.Policy{Name: "unmatched", Limits: []limit.Limit{limit.PerSecond(1)}}

// acquire reports whether the engine may be used; release must follow in any case.
func (e *engine) acquire() bool {
	e.users.Add(1)
	return !e.retired.Load()
}

func (e *engine) release() {
	if e.users.Add(-1) == 0 && e.retired.Load() {
		e.once.Do(func() { close(e.idle) })
	}
}

// retire closes the engine when its last user is gone.
func (e *engine) retire() error {
	e.users.Add(1)
	e.retired.Store(true)
	e.release()
	<-e.idle
	return e.close()
}

func (e *engine) close() (err error) {
	if e.throttle != nil {
		err = e.throttle.Close()
	}
	if e.lease != nil {
		err = errors.Join(err, e.lease.Close())
	}
	return err
}

// shared is a backend that several leases hold: Close leaves it open.
type shared struct{ backend.Backend }

func (s shared) Close() error { return nil }

func (s shared) Peek(ctx context.Context, req backend.Request) (backend.Result, error) {
	return backend.Peek(ctx, s.Backend, req)
}

func (s shared) Refund(ctx context.Context, req backend.Request, receipt state.Receipt, amount int64) error {
	return backend.Refund(ctx, s.Backend, req, receipt, amount)
}

func (s shared) Charge(ctx context.Context, req backend.Request, mark state.Mark) (backend.Result, error) {
	return backend.Charge(ctx, s.Backend, req, mark)
}

func (s shared) Reset(ctx context.Context, req backend.Request) error {
	return backend.Reset(ctx, s.Backend, req)
}

func (s shared) Grant(ctx context.Context, req backend.Request, extra int64) error {
	return backend.Grant(ctx, s.Backend, req, extra)
}

func (s shared) Ping(ctx context.Context) error { return backend.Ping(ctx, s.Backend) }

func (s shared) Load(ctx context.Context, req backend.Request) (backend.Snapshot, error) {
	return backend.Load(ctx, s.Backend, req)
}

func (s shared) Seed(ctx context.Context, req backend.Request, st state.State) error {
	return backend.Seed(ctx, s.Backend, req, st)
}

func (s shared) Doubt(req backend.Request) error { return backend.Doubt(s.Backend, req) }
